"""A user's own torch.nn.Module as an agent.

Modules made of plain layers one after another become a `Chain` (or, where they are one, an MLP), so that
their agent file needs no code of the user's. Any other module must bring a description of its own.
"""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothrl.agents.agent import Agent, AgentInfo, Smoothing
from smoothrl.agents.normaliser import Normaliser
from smoothrl.errors import UserError
from smoothrl.networks import LAYERS, MLP, Bounded, Chain

_KINDS = {kind: name for name, (kind, _) in LAYERS.items()}
_SKIPPED = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)


def from_torch(
    module: nn.Module,
    *,
    env_id: str,
    observation_shape: Sequence[int],
    actions: int,
    action_kind: Literal["discrete", "continuous"],
    method: str = "torch",
    scale: float | None = None,
    mean: npt.ArrayLike | None = None,
    std: npt.ArrayLike | None = None,
    clip: float | None = 10.0,
    action_box: tuple[Sequence[float], Sequence[float]] | None = None,
    trained_with: Smoothing | None = None,
    env_settings: dict[str, Any] | None = None,
) -> Agent:
    """An agent of a module that maps normalised observations to Q-values, logits or action means.

    `scale` multiplies raw observations (images: 1/255); `mean` and `std` normalise them and `clip` cuts them
    off. `action_box` clips the actions where the user's own code did so.
    """
    shape = tuple(int(n) for n in observation_shape)
    network = plain(module, shape)
    with torch.no_grad():
        outputs = network(torch.zeros(2, *shape))
    if tuple(outputs.shape) != (2, actions):
        raise UserError(
            f"the module maps two observations of shape {shape} to {tuple(outputs.shape)}; "
            f"(2, {actions}) is needed"
        )
    low, high = action_box or ((), ())
    if action_box is not None:
        network = Bounded(network, "clip", low, high)
    info = AgentInfo(
        method=method,
        env_id=env_id,
        action_kind=action_kind,
        actions=actions,
        observation_shape=shape,
        env_settings=dict(env_settings or {}),
        action_low=tuple(map(float, low)),
        action_high=tuple(map(float, high)),
        trained_with=trained_with or Smoothing(),
        notes={"origin": "torch", "module": type(module).__name__},
    )
    return Agent(network, _normaliser(shape, scale, mean, std, clip), info)


def _normaliser(
    shape: tuple[int, ...],
    scale: float | None,
    mean: npt.ArrayLike | None,
    std: npt.ArrayLike | None,
    clip: float | None,
) -> Normaliser:
    if (mean is None) != (std is None) or (mean is not None and scale is not None):
        raise UserError("give mean and std together, or scale, or neither")
    if mean is None or std is None:
        return Normaliser() if scale is None else Normaliser("scale", float(scale))
    centre, spread = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    if centre.shape != shape or spread.shape != shape or not (spread > 0).all():
        raise UserError(f"mean and std must have the observation's shape {shape}, std above 0")
    return Normaliser("moments", clip=clip, mean=centre, std=spread)


# ----------------------------------------------------------------------------------- conversion


def plain(module: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The module as one of our own networks; refused where only its own code can build it."""
    module = module.eval()
    if isinstance(getattr(module, "description", None), dict):
        return module
    leaves = list(_leaves(module))
    odd = [type(layer).__name__ for layer in leaves if type(layer) not in _KINDS]
    if odd or not leaves:
        raise UserError(_advice(f"its layer {odd[0]} is not a plain one" if odd else "it has no layers"))
    network = _as_mlp(leaves) or _as_chain(leaves)
    if not _same(module, network, shape):
        raise UserError(_advice("its forward is not its layers one after another"))
    return network


def _advice(why: str) -> str:
    return (
        f"the module cannot be stored as plain layers: {why}; give it a `description` dict and register its "
        "kind with smoothrl.networks.register (docs/bring-your-agent.md)"
    )


def _leaves(module: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        if isinstance(child, _SKIPPED):
            continue
        found += _leaves(child) if next(child.children(), None) is not None else [child]
    return found or ([module] if type(module) in _KINDS else [])


def _as_mlp(leaves: list[nn.Module]) -> MLP | None:
    """Linear layers with one kind of activation between them, tanh or relu."""
    dense, between = leaves[::2], {type(layer) for layer in leaves[1::2]}
    linear = [layer for layer in dense if isinstance(layer, nn.Linear) and layer.bias is not None]
    if len(linear) != len(dense) or len(leaves) % 2 == 0 or between not in ({nn.Tanh}, {nn.ReLU}):
        return None
    network = MLP(
        linear[0].in_features,
        linear[-1].out_features,
        [layer.out_features for layer in linear[:-1]],
        "tanh" if between == {nn.Tanh} else "relu",
    )
    for ours, theirs in zip(network.layers, linear, strict=True):
        ours.load_state_dict(theirs.state_dict())
    return network


def _as_chain(leaves: list[nn.Module]) -> Chain:
    specs = [{"layer": _KINDS[type(leaf)], **_settings(leaf)} for leaf in leaves]
    network = Chain(specs)
    for ours, theirs in zip(network.layers, leaves, strict=True):
        ours.load_state_dict(theirs.state_dict())
    return network.eval()


def _settings(layer: nn.Module) -> dict[str, Any]:
    _, names = LAYERS[_KINDS[type(layer)]]
    if isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros":
        raise UserError(_advice(f"padding mode {layer.padding_mode!r}"))
    found: dict[str, Any] = {}
    for name in names:
        value = getattr(layer, name)
        if name == "bias":
            value = value is not None
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def _same(module: nn.Module, network: nn.Module, shape: tuple[int, ...]) -> bool:
    x = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            ours, theirs = network(x), module(x)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    return (
        isinstance(theirs, Tensor)
        and ours.shape == theirs.shape
        and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    )


def run_adapter(path: str | Path) -> Agent:
    """The agent that `agent()` in a user's own Python file makes. This runs the file: the code is theirs."""
    target = Path(path)
    if target.suffix != ".py" or not target.is_file():
        raise UserError(
            f"{target}: `--from torch` takes a Python file of yours with a function agent() that returns "
            "smoothrl.agents.importers.from_torch(...); see docs/bring-your-agent.md"
        )
    made = runpy.run_path(str(target)).get("agent")
    found = made() if callable(made) else None
    if not isinstance(found, Agent):
        raise UserError(f"{target}: needs a function agent() that returns an Agent (from_torch makes one)")
    return found
