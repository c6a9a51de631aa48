"""From named tensors to the networks of this house, shapes and numbers checked."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from smoothrl.agents.importers.safe_pickle import Refusal
from smoothrl.networks import MLP, GaussianPolicy, NatureQ


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
