"""From named tensors to the networks of this house, shapes and numbers checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smoothrl.agents.importers.safe_pickle import Refusal
from smoothrl.networks import MLP, Chain, GaussianPolicy, NatureQ


def mlp(state: Mapping[str, Tensor], layers: list[str], activation: str, what: str) -> MLP:
    """The MLP of these weights; the layers are named in order."""
    weights = []
    for name in layers:
        weight, bias = state.get(f"{name}.weight"), state.get(f"{name}.bias")
        if weight is None or bias is None or weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise Refusal(f"{what} has no fitting weight and bias {name!r}")
        weights.append((weight.float(), bias.float()))
    sizes = [weights[0][0].shape[1], *(w.shape[0] for w, _ in weights)]
    if any(w.shape[1] != size for (w, _), size in zip(weights, sizes, strict=False)):
        raise Refusal(f"the layers of {what} do not fit together")
    if not all(bool(torch.isfinite(t).all()) for pair in weights for t in pair):
        raise Refusal(f"{what} has weights that are not finite")
    with torch.device("meta"):
        network = MLP(sizes[0], sizes[-1], sizes[1:-1], activation)
    found = {
        f"layers.{i}.{name}": tensor.contiguous()
        for i, pair in enumerate(weights)
        for name, tensor in zip(("weight", "bias"), pair, strict=True)
    }
    network.load_state_dict(found, assign=True)
    return network


def gaussian(mean: MLP, log_std: Tensor | None, what: str) -> GaussianPolicy:
    """A policy from its mean network and log standard deviation."""
    observations, *hidden, actions = mean.sizes
    policy = GaussianPolicy(observations, actions, hidden, mean.activation)
    policy.mean = mean
    if log_std is None or log_std.numel() != actions or not bool(torch.isfinite(log_std).all()):
        raise Refusal(f"{what} has no fitting log standard deviation")
    policy.log_std = nn.Parameter(log_std.float().flatten())
    return policy


def nature(state: Mapping[str, Tensor], what: str) -> NatureQ:
    """The Nature CNN whose state dict has our own names."""
    dueling = "value.0.weight" in state
    first, last, hidden = (state.get(k) for k in ("cnn.0.weight", "advantage.2.weight", "advantage.0.weight"))
    if first is None or last is None or hidden is None or first.ndim != 4:
        raise Refusal(f"{what} is no Nature CNN")
    network = NatureQ(first.shape[1], last.shape[0], hidden.shape[0], first.shape[0] / 32, dueling)
    wanted = network.state_dict()
    odd = sorted(set(wanted) ^ set(state))
    if odd or any(wanted[k].shape != state[k].shape for k in wanted):
        raise Refusal(f"{what} is no Nature CNN on 84 x 84 frames ({odd[0][:60] if odd else 'other shapes'})")
    if not all(bool(torch.isfinite(v).all()) for v in state.values()):
        raise Refusal(f"{what} has weights that are not finite")
    network.load_state_dict({k: v.float() for k, v in state.items()})
    return network


def chain_of(
    state: Mapping[str, Tensor], convolutions: list[str], dense: list[str], activation: str, what: str
) -> Chain:
    """SB3's way: convolutions with ReLU (8/4, 4/2, 3/1), one dense layer with ReLU, then an MLP."""
    specs: list[dict[str, Any]] = []
    found: dict[str, Tensor] = {}

    def add(spec: dict[str, Any], name: str, dimensions: int) -> None:
        weight, bias = state.get(f"{name}.weight"), state.get(f"{name}.bias")
        if weight is None or bias is None or weight.ndim != dimensions or bias.shape != weight.shape[:1]:
            raise Refusal(f"{what} has no fitting weight and bias {name!r}")
        if not bool(torch.isfinite(weight).all() and torch.isfinite(bias).all()):
            raise Refusal(f"{what} has weights that are not finite")
        found[f"layers.{len(specs)}.weight"], found[f"layers.{len(specs)}.bias"] = (
            weight.float(),
            bias.float(),
        )
        specs.append(spec)

    for name, stride in zip(convolutions, (4, 2, 1), strict=False):
        shape = state[f"{name}.weight"].shape if f"{name}.weight" in state else (0, 0, 0, 0)
        sizes = {"in_channels": shape[1], "out_channels": shape[0], "kernel_size": shape[2], "stride": stride}
        add({"layer": "conv2d", **sizes}, name, 4)
        specs.append({"layer": "relu"})
    if convolutions:
        specs.append({"layer": "flatten"})
    for i, name in enumerate(dense):
        rows, columns = state[f"{name}.weight"].shape[:2] if f"{name}.weight" in state else (0, 0)
        add({"layer": "linear", "in_features": columns, "out_features": rows}, name, 2)
        if i < len(dense) - 1:
            specs.append({"layer": "relu" if convolutions and i == 0 else activation})
    network = Chain(specs)
    network.load_state_dict(found)
    return network
