"""From named tensors to the networks of this house: shapes and numbers are checked, then the tensors adopted.

Nothing is allocated for what a file merely claims: networks are built without memory first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from smoothrl.agents.file import network_from_state
from smoothrl.agents.importers.safe_pickle import Refusal
from smoothrl.errors import UserError
from smoothrl.networks import MLP, Chain, Description, GaussianPolicy, NatureQ

State = Mapping[str, Tensor]


def adopted(description: Description, state: State, what: str) -> nn.Module:
    """The network of this description with these tensors."""
    if not all(bool(torch.isfinite(value).all()) for value in state.values()):
        raise Refusal(f"{what} has weights that are not finite")
    try:
        return network_from_state(description, {k: v.float().contiguous() for k, v in state.items()})
    except UserError as error:
        raise Refusal(f"{what} is not what it claims: {error}") from error


def numbered(state: State, prefix: str) -> list[str]:
    """Names of the layers prefix.0, prefix.2, ... in order."""
    pattern = re.compile(re.escape(prefix) + r"\.(\d{1,3})\.(?:weight|bias)")
    return [f"{prefix}.{i}" for i in sorted({int(m[1]) for m in map(pattern.fullmatch, state) if m})]


def layer(state: State, name: str, dimensions: int, what: str) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer, neither of them empty."""
    weight, bias = state.get(f"{name}.weight"), state.get(f"{name}.bias")
    if (
        weight is None
        or bias is None
        or weight.ndim != dimensions
        or bias.shape != weight.shape[:1]
        or weight.numel() == 0
    ):
        raise Refusal(f"{what} has no fitting weight and bias {name!r}")
    return weight, bias


def mlp(state: State, layers: Sequence[str], activation: str, what: str) -> MLP:
    """The MLP of these weights; the layers are named in order."""
    if not layers:
        raise Refusal(f"{what} has no layers")
    pairs = [layer(state, name, 2, what) for name in layers]
    inputs, *hidden = (weight.shape[1] for weight, _ in pairs)
    description = {
        "kind": "mlp",
        "inputs": inputs,
        "outputs": pairs[-1][0].shape[0],
        "hidden": hidden,
        "activation": activation,
    }
    found = {
        f"layers.{i}.{name}": tensor
        for i, pair in enumerate(pairs)
        for name, tensor in zip(("weight", "bias"), pair, strict=True)
    }
    return cast(MLP, adopted(description, found, what))


def gaussian(mean: MLP, log_std: Tensor | None, what: str) -> GaussianPolicy:
    """A policy from its mean network and log standard deviation."""
    observations, *hidden, actions = mean.sizes
    if log_std is None or log_std.numel() != actions or not bool(torch.isfinite(log_std).all()):
        raise Refusal(f"{what} has no fitting log standard deviation")
    with torch.device("meta"):
        policy = GaussianPolicy(observations, actions, hidden, mean.activation)
    policy.mean = mean
    policy.log_std = nn.Parameter(log_std.float().flatten())
    return policy


def nature(state: State, what: str) -> NatureQ:
    """The Nature CNN whose state dict has our own names."""
    first, _ = layer(state, "cnn.0", 4, what)
    hidden, _ = layer(state, "advantage.0", 2, what)
    last, _ = layer(state, "advantage.2", 2, what)
    description = {
        "kind": "q-nature",
        "channels": first.shape[1],
        "actions": last.shape[0],
        "hidden": hidden.shape[0],
        "width": first.shape[0] / 32,
        "dueling": "value.0.weight" in state,
    }
    try:
        return cast(NatureQ, adopted(description, state, what))
    except Refusal as error:
        raise Refusal(f"{what} is no Nature CNN on 84 x 84 frames ({error})") from error


def chain_of(
    state: State,
    convolutions: Sequence[str],
    dense: Sequence[str],
    activation: str,
    what: str,
    last: Sequence[Description] = (),
) -> Chain:
    """SB3's way: convolutions with ReLU (8/4, 4/2, 3/1), one dense layer with ReLU, then an MLP."""
    specs: list[dict[str, Any]] = []
    found: dict[str, Tensor] = {}

    def add(spec: dict[str, Any], pair: tuple[Tensor, Tensor]) -> None:
        found[f"layers.{len(specs)}.weight"], found[f"layers.{len(specs)}.bias"] = pair
        specs.append(spec)

    for name, stride in zip(convolutions, (4, 2, 1), strict=False):
        pair = layer(state, name, 4, what)
        outputs, inputs, size, _ = pair[0].shape
        add(
            {
                "layer": "conv2d",
                "in_channels": inputs,
                "out_channels": outputs,
                "kernel_size": size,
                "stride": stride,
            },
            pair,
        )
        specs.append({"layer": "relu"})
    if convolutions:
        specs.append({"layer": "flatten"})
    for i, name in enumerate(dense):
        pair = layer(state, name, 2, what)
        add({"layer": "linear", "in_features": pair[0].shape[1], "out_features": pair[0].shape[0]}, pair)
        if i < len(dense) - 1:
            specs.append({"layer": "relu" if convolutions and i == 0 else activation})
    description = {"kind": "chain", "layers": [*specs, *last]}
    return cast(Chain, adopted(description, found, what))


def check_fits(network: nn.Module, shape: Sequence[int], actions: int, what: str) -> None:
    """The network maps observations of this shape to so many actions."""
    try:
        with torch.no_grad():
            outputs = tuple(network(torch.zeros(2, *shape)).shape)
    except (RuntimeError, ValueError, IndexError) as error:
        raise Refusal(f"{what} does not take the observations of shape {tuple(shape)} it claims") from error
    if outputs != (2, actions):
        raise Refusal(f"{what} has {outputs[-1]} outputs where {actions} actions are claimed")
