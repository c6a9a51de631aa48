"""CleanRL's `.cleanrl_model` files: state dicts of ppo_continuous_action, dqn and dqn_atari.

They hold no observation statistics; ppo_continuous_action learns them in a wrapper and does not save them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smoothrl.agents.agent import Agent, AgentInfo
from smoothrl.agents.importers.containers import TorchFile, state_dict
from smoothrl.agents.importers.released import Imported
from smoothrl.agents.importers.safe_pickle import Refusal
from smoothrl.agents.importers.weights import gaussian, mlp, nature, numbered
from smoothrl.agents.normaliser import Normaliser
from smoothrl.agents.parts import Part
from smoothrl.errors import UserError
from smoothrl.networks import Bounded


def import_cleanrl(
    path: str | Path,
    env_id: str,
    *,
    normaliser: Normaliser | None = None,
    action_box: tuple[Sequence[float], Sequence[float]] | None = None,
    method: str | None = None,
    env_settings: Mapping[str, Any] | None = None,
) -> Imported:
    """The agent of a CleanRL file; `action_box` is what its ClipAction wrapper clips to."""
    target = Path(path)
    if not target.is_file():
        raise UserError(f"{target}: no such file")
    try:
        file = TorchFile(target)
        state = state_dict(file, file.content, "the model")
        if "actor_logstd" in state:
            return _ppo(target, state, env_id, normaliser or Normaliser(), action_box, method or "ppo")
        return Imported(_dqn(target, state, env_id, normaliser, method or "dqn", env_settings or {}))
    except Refusal as error:
        raise UserError(
            f"{target}: {error}; `--from cleanrl` reads .cleanrl_model files of "
            "ppo_continuous_action, dqn and dqn_atari (the PyTorch ones)"
        ) from error


def _ppo(
    path: Path,
    state: Mapping[str, Tensor],
    env_id: str,
    normaliser: Normaliser,
    box: tuple[Sequence[float], Sequence[float]] | None,
    method: str,
) -> Imported:
    mean = mlp(state, numbered(state, "actor_mean"), "tanh", "the policy")
    policy: nn.Module = gaussian(mean, state["actor_logstd"], "the policy")
    observations, *_, actions = mean.sizes
    _check_statistics(normaliser, (observations,))
    low, high = box or ((), ())
    if box is not None:
        if len(low) != actions:
            raise Refusal(f"{env_id} takes {len(low)} continuous actions, its policy gives {actions}")
        policy = Bounded(policy, "clip", low, high)
    info = AgentInfo(
        method=method,
        env_id=env_id,
        action_kind="continuous",
        actions=actions,
        observation_shape=(observations,),
        action_low=tuple(low),
        action_high=tuple(high),
        notes={"origin": "cleanrl", "file": path.name},
    )
    agent = Agent(policy, normaliser, info)
    about = {"env_id": env_id, "victim": agent.digest, "origin": "cleanrl"}
    critic = mlp(state, numbered(state, "critic"), "tanh", "the critic")
    return Imported(agent, {"critic": Part("critic", critic, about)})


def _check_statistics(normaliser: Normaliser, shape: tuple[int, ...]) -> None:
    if normaliser.kind == "moments" and normaliser.mean.shape != shape:
        raise Refusal(f"the statistics are of shape {normaliser.mean.shape}, its observations of {shape}")


def _dqn(
    path: Path,
    state: Mapping[str, Tensor],
    env_id: str,
    normaliser: Normaliser | None,
    method: str,
    env_settings: Mapping[str, Any],
) -> Agent:
    first = state.get("network.0.weight")
    if first is None:
        raise Refusal("neither the actor of ppo_continuous_action nor the network of dqn is in it")
    shape: tuple[int, ...]
    if first.ndim == 4:
        places = {"cnn.0": 0, "cnn.2": 2, "cnn.4": 4, "advantage.0": 7, "advantage.2": 9}
        renamed = {
            f"{ours}.{part}": state[f"network.{theirs}.{part}"]
            for ours, theirs in places.items()
            for part in ("weight", "bias")
            if f"network.{theirs}.{part}" in state
        }
        network: nn.Module = nature(renamed, "the Q-network")
        shape, actions = (int(first.shape[1]), 84, 84), int(renamed["advantage.2.weight"].shape[0])
        normaliser = Normaliser("scale", 1.0 / 255.0)
    else:
        q = mlp(state, numbered(state, "network"), "relu", "the Q-network")
        network, shape, actions = q, (q.sizes[0],), q.sizes[-1]
        _check_statistics(normaliser or Normaliser(), shape)
    info = AgentInfo(
        method=method,
        env_id=env_id,
        action_kind="discrete",
        actions=actions,
        observation_shape=shape,
        env_settings=dict(env_settings),
        notes={"origin": "cleanrl", "file": path.name},
    )
    return Agent(network, normaliser or Normaliser(), info)
