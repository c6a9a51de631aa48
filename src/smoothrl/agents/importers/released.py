"""The files the paper's authors released: S-PPO `.model` checkpoints and S-DQN `.pth` denoisers.

A checkpoint is a dictionary of state dicts beside a pickled environment; the observation statistics lie
inside that environment. All of it is read as inert records (`safe_pickle`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from smoothrl.agents.agent import Agent, AgentInfo, Smoothing
from smoothrl.agents.importers.containers import TorchFile, entries, state_dict
from smoothrl.agents.importers.safe_pickle import Node, Refusal, array, brief
from smoothrl.agents.importers.weights import gaussian, mlp
from smoothrl.agents.normaliser import Normaliser
from smoothrl.agents.parts import Part, Role
from smoothrl.errors import UserError
from smoothrl.networks import MLP, GaussianPolicy

NAMES = frozenset(
    {
        "gym.envs.mujoco.hopper.HopperEnv",
        "gym.envs.mujoco.walker2d.Walker2dEnv",
        "gym.envs.mujoco.half_cheetah.HalfCheetahEnv",
        "gym.envs.mujoco.ant.AntEnv",
        "gym.envs.mujoco.humanoid.HumanoidEnv",
        "gym.spaces.box.Box",
        "gym.wrappers.time_limit.TimeLimit",
        "policy_gradients.custom_env.Env",
        "policy_gradients.torch_utils.Identity",
        "policy_gradients.torch_utils.RewardFilter",
        "policy_gradients.torch_utils.RunningStat",
        "policy_gradients.torch_utils.ZFilter",
    }
)
"""What the checkpoints name beside NumPy's and torch's own."""

_ENVIRONMENTS = {
    "HopperEnv": "Hopper-v2",
    "Walker2dEnv": "Walker2d-v2",
    "HalfCheetahEnv": "HalfCheetah-v2",
    "AntEnv": "Ant-v2",
    "HumanoidEnv": "Humanoid-v2",
}
_SMOOTHED = Smoothing("median", 0.2, 100)
_TRAINING_SAMPLES = 20
_VARIANTS = {
    "": "",
    "vanilla": "",
    "sgld": "+sgld",
    "radial": "+radial",
    "wocar": "+wocar",
    "atla": "+atla",
    "pa_atla": "+pa-atla",
}


@dataclass(frozen=True)
class Imported:
    """An agent and the networks that came with it, by the name of the file each should get."""

    agent: Agent
    parts: Mapping[str, Part] = field(default_factory=dict)


def _affine_layers(state: Mapping[str, Tensor], head: str) -> list[str]:
    depth = len({k for k in state if k.startswith("affine_layers.") and k.endswith(".weight")})
    return [*(f"affine_layers.{i}" for i in range(depth)), head]


def _policy(state: Mapping[str, Tensor], what: str) -> GaussianPolicy:
    mean = mlp(state, _affine_layers(state, "final_mean"), "tanh", what)
    return gaussian(mean, state.get("log_stdev"), what)


def _value(state: Mapping[str, Tensor], what: str) -> MLP:
    return mlp(state, _affine_layers(state, "final"), "tanh", what)


# ---------------------------------------------------------------------------------- checkpoints


@dataclass(frozen=True)
class _Checkpoint:
    networks: dict[str, dict[str, Tensor]]
    env_id: str | None
    normaliser: Normaliser
    facts: dict[str, Any]


def import_released(path: str | Path, *, env_id: str | None = None, method: str | None = None) -> Imported:
    """The agent of a `.model` checkpoint with its critics and its adversary.

    The method is taken from the file's name where none is given: the content cannot tell all apart.
    """
    target = Path(path)
    try:
        found = _read_checkpoint(target)
        return _assembled(target, found, env_id, method)
    except Refusal as error:
        raise UserError(
            f"{target}: {error}; `--from released` reads the S-PPO .model files and the S-DQN .pth denoisers"
        ) from error


def _read_checkpoint(path: Path) -> _Checkpoint:
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    file = TorchFile(path, NAMES)
    content = entries(file.content, "the checkpoint")
    if "policy_model" not in content or "envs" not in content:
        raise Refusal("no released checkpoint: policy_model and envs are missing")
    states = {key: state_dict(file, value, key) for key, value in content.items() if key.endswith("_model")}
    envs = content["envs"]
    env = envs[0] if isinstance(envs, list) and envs else None
    if not isinstance(env, Node) or env.path != "policy_gradients.custom_env.Env":
        raise Refusal(f"the environment in the checkpoint is {brief(env)}")
    normaliser, facts = _statistics(env)
    return _Checkpoint(states, _environment(env), normaliser, facts)


def _environment(env: Node) -> str | None:
    inner: Any = env
    while isinstance(inner, Node):
        name = inner.path.rsplit(".", 1)[-1]
        if name in _ENVIRONMENTS:
            return _ENVIRONMENTS[name]
        inner = inner.attributes().get("env")
    return None


def _running(holder: Any, what: str) -> tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Count, mean and sum of squares of a running statistic."""
    stat = holder.attributes().get("rs") if isinstance(holder, Node) else None
    if not isinstance(stat, Node):
        raise Refusal(f"the checkpoint has no {what}")
    values = stat.attributes()
    count = array(values.get("_n"), f"count of the {what}")
    if count.size != 1 or not 1 < float(count.item()) < 2**53:
        raise Refusal(f"the count of the {what} makes no sense")
    mean = array(values.get("_M"), f"mean of the {what}").astype(np.float64)
    squares = array(values.get("_S"), f"variance of the {what}").astype(np.float64)
    if mean.shape != squares.shape or not np.isfinite([mean, squares]).all() or not (squares >= 0).all():
        raise Refusal(f"the {what} makes no sense")
    return int(count.item()), mean, squares


def _statistics(env: Node) -> tuple[Normaliser, dict[str, Any]]:
    held = env.attributes()
    count, mean, squares = _running(held.get("state_filter"), "observation filter")
    std = np.sqrt(squares / (count - 1))
    if mean.ndim != 1:
        raise Refusal("the observation filter makes no sense")
    observation_filter = held["state_filter"].attributes()
    clip = observation_filter.get("clip")
    if not isinstance(clip, (int, float)) or not 0 < clip < math.inf:
        raise Refusal("the observation filter has no clipping bound")
    facts: dict[str, Any] = {"observations_seen": count}
    if isinstance(held.get("reward_filter"), Node):
        steps, _, reward_squares = _running(held["reward_filter"], "reward filter")
        facts |= {"steps": steps, "return_std": float(np.sqrt(reward_squares.sum() / (steps - 1)))}
    return Normaliser("moments", clip=float(clip), mean=mean, std=std), facts


def method_from_name(path: Path) -> str | None:
    """`hopper_sppo_sgld_median.model` is `s-ppo+sgld`."""
    _, _, rest = path.stem.lower().removesuffix("_median").partition("_")
    smoothed = rest == "sppo" or rest.startswith("sppo_")
    variant = _VARIANTS.get(rest.removeprefix("sppo").removeprefix("_") if smoothed else rest or "?")
    return None if variant is None else ("s-ppo" if smoothed else "ppo") + variant


def _chosen_method(path: Path, found: _Checkpoint, method: str | None, observations: int) -> str:
    name = method or method_from_name(path)
    if name is None:
        raise UserError(
            f"{path}: the file's name does not say how the agent was trained; add --method, "
            "for instance --method s-ppo+sgld"
        )
    adversary = found.networks.get("adversary_policy_model")
    inside = None
    if adversary is not None:
        outputs = _policy(adversary, "the adversary").mean.sizes[-1]
        inside = "atla" if outputs == observations else "pa-atla"
    elif "q_model" in found.networks:
        inside = "wocar"
    said = {p for p in ("atla", "pa-atla", "wocar") if p in name.lower().split("+")}
    if said != ({inside} if inside else set()):
        raise UserError(
            f"{path}: method {name!r} does not fit the content, which is that of "
            f"{'an agent trained with ' + inside if inside else 'plain PPO, SGLD or Radial'}; "
            "name another one with --method"
        )
    return name


def _assembled(path: Path, found: _Checkpoint, env_id: str | None, method: str | None) -> Imported:
    policy = _policy(found.networks.get("policy_model", {}), "the policy")
    observations, *_, actions = policy.mean.sizes
    if found.normaliser.mean.shape != (observations,):
        raise Refusal("the observation filter does not fit the policy")
    where = env_id or found.env_id
    if where is None:
        raise UserError(f"{path}: the file does not name its environment; add --env")
    if env_id and found.env_id and env_id.split("-")[0] != found.env_id.split("-")[0]:
        raise UserError(f"{path}: an agent of {found.env_id}, not of {env_id}; drop --env or correct it")
    name = _chosen_method(path, found, method, observations)
    facts = dict(found.facts)
    smoothed = name.lower().startswith("s-")
    info = AgentInfo(
        method=name,
        env_id=where,
        action_kind="continuous",
        actions=actions,
        observation_shape=(observations,),
        steps=int(facts.pop("steps", 0)),
        trained_with=_SMOOTHED if smoothed else Smoothing(),
        notes={
            "origin": "released",
            "file": path.name,
            "method_from": "option" if method else "file name",
            **({"training_samples": _TRAINING_SAMPLES} if smoothed else {}),
            **facts,
        },
    )
    agent = Agent(policy, found.normaliser, info)
    return Imported(agent, _parts(found, agent))


def _parts(found: _Checkpoint, agent: Agent) -> dict[str, Part]:
    about = {"env_id": agent.info.env_id, "victim": agent.digest, "origin": "released"}
    observations = agent.info.observation_shape[0]
    parts: dict[str, Part] = {}

    def add(name: str, role: Role, network: nn.Module) -> None:
        parts[name] = Part(role, network, about)

    if "val_model" in found.networks:
        add("critic", "critic", _value(found.networks["val_model"], "the critic"))
    if "q_model" in found.networks:
        add("critic-q", "critic-q", _value(found.networks["q_model"], "the Q-critic"))
    if "adversary_policy_model" in found.networks:
        adversary = _policy(found.networks["adversary_policy_model"], "the adversary")
        if adversary.mean.sizes[0] != observations:
            raise Refusal("the adversary does not fit the observations")
        role: Role = "adversary" if adversary.mean.sizes[-1] == observations else "director"
        add(role, role, adversary)
    if "adversary_val_model" in found.networks:
        add("critic-adversary", "critic", _value(found.networks["adversary_val_model"], "its critic"))
    return parts


Kind = Literal["checkpoint", "denoiser", "q-network"]


def kind_of(path: str | Path) -> Kind:
    """Which of the released kinds a file is, by its first key."""
    target = Path(path)
    if not target.is_file():
        raise UserError(f"{target}: no such file")
    try:
        content = entries(TorchFile(target, NAMES).content, "the file")
    except Refusal as error:
        raise UserError(f"{target}: {error}; `--from released` reads .model and .pth files") from error
    if "policy_model" in content:
        return "checkpoint"
    return "denoiser" if any(k.startswith("dncnn.") for k in content) else "q-network"
