"""Stable-Baselines3 zips, read without Stable-Baselines3 and without unpickling.

`policy.pth` holds the weights, `data` is JSON whose odd fields are pickles in base64; of those only the two
spaces are read, as inert records.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from smoothrl.agents.agent import Agent, AgentInfo
from smoothrl.agents.importers.containers import Archive, TorchFile, entries, state_dict
from smoothrl.agents.importers.released import Imported
from smoothrl.agents.importers.safe_pickle import MAX_STREAM, Node, Refusal, array, brief, read_pickle
from smoothrl.agents.importers.statistics import SPACE_NAMES, number
from smoothrl.agents.importers.weights import chain_of, check_fits, gaussian, mlp, nature, numbered
from smoothrl.agents.normaliser import Normaliser
from smoothrl.agents.parts import Part
from smoothrl.errors import UserError
from smoothrl.networks import MLP, Bounded, Description

Algorithm = Literal["ppo", "a2c", "dqn", "sac", "td3"]
_ACTIVATION = re.compile(r"torch\.nn\.modules\.activation\.(\w+)")
_KNOWN_ACTIVATIONS = {
    "Tanh": "tanh",
    "ReLU": "relu",
    "ELU": "elu",
    "LeakyReLU": "leaky-relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
}


_EXTRACTORS = frozenset(
    f"<class 'stable_baselines3.common.torch_layers.{name}'>" for name in ("FlattenExtractor", "NatureCNN")
)


@dataclass(frozen=True)
class _Space:
    kind: Literal["box", "discrete"]
    shape: tuple[int, ...] = ()
    low: npt.NDArray[Any] | None = None
    high: npt.NDArray[Any] | None = None
    count: int = 0
    image: bool = False


@dataclass(frozen=True)
class _Model:
    state: dict[str, Tensor]
    data: dict[str, Any]
    observation: _Space
    action: _Space


def import_sb3(
    path: str | Path,
    env_id: str,
    *,
    normaliser: Normaliser | None = None,
    method: str | None = None,
    env_settings: Mapping[str, Any] | None = None,
) -> Imported:
    """The agent of a PPO, A2C, DQN, SAC, TD3 or DDPG zip; `normaliser` is that of its VecNormalize."""
    target = Path(path)
    if not target.is_file():
        raise UserError(f"{target}: no such file")
    try:
        model = _read(target)
        origin = {"origin": "stable-baselines3", "file": target.name}
        return _assembled(model, env_id, normaliser, method, env_settings or {}, origin)
    except Refusal as error:
        raise UserError(
            f"{target}: {error}; `--from sb3` reads what model.save of Stable-Baselines3 PPO, A2C, DQN, SAC "
            "and TD3 wrote"
        ) from error


def _read(path: Path) -> _Model:
    archive = Archive(path)
    text = archive.read("data", MAX_STREAM)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal("its `data` is not JSON") from error
    if not isinstance(data, dict):
        raise Refusal("its `data` is not an object")
    _refuse_own_code(data)
    weights = TorchFile(io.BytesIO(archive.read("policy.pth")))
    wanted = {
        k: v
        for k, v in entries(weights.content, "policy.pth").items()
        if not k.startswith(("critic", "actor_target", "q_net_target"))
    }
    return _Model(
        state_dict(weights, wanted, "policy.pth"),
        data,
        _space(data.get("observation_space"), "observation"),
        _space(data.get("action_space"), "action"),
    )


def _refuse_own_code(data: Mapping[str, Any]) -> None:
    """A policy or feature extractor from outside the library computes what only its own code knows."""
    policy = data.get("policy_class")
    module = policy.get("__module__") if isinstance(policy, dict) else None
    if isinstance(module, str) and not module.startswith("stable_baselines3."):
        raise Refusal(
            f"a policy class of its own (of {brief(module)}), which only its authors' code can build"
        )
    extractor = _policy_settings(data).get("features_extractor_class")
    if extractor is not None and extractor not in _EXTRACTORS:
        raise Refusal(f"a feature extractor of its own ({brief(extractor)}), which only its code can build")


def _space(entry: Any, what: str) -> _Space:
    packed = entry.get(":serialized:") if isinstance(entry, dict) else None
    if not isinstance(packed, str):
        raise Refusal(f"its {what} space is missing")
    try:
        raw = base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(f"its {what} space is damaged") from error
    found = read_pickle(raw, SPACE_NAMES)
    if not isinstance(found, Node):
        raise Refusal(f"its {what} space is {brief(found)}")
    values = found.attributes()
    kind = found.path.rsplit(".", 1)[-1]
    if kind == "Discrete":
        if number(values.get("start", 0), "start") != 0:
            raise Refusal("its actions do not start at 0, which is not supported")
        return _Space("discrete", count=int(number(values.get("n"), "number of actions")))
    if kind != "Box":
        raise Refusal(f"its {what} space is a {kind}; only Box and Discrete ones are supported")
    low, high = array(values.get("low"), "low"), array(values.get("high"), "high")
    if low.shape != high.shape:
        raise Refusal(f"its {what} space is damaged")
    image = low.ndim == 3 and low.dtype == np.uint8 and bool((low == 0).all() and (high == 255).all())
    return _Space("box", tuple(low.shape), low, high, image=image)


# ------------------------------------------------------------------------------------- networks


def algorithm(state: Mapping[str, Tensor], data: Mapping[str, Any]) -> Algorithm:
    """Which algorithm wrote the file, by the names of its layers."""
    if any(k.startswith("q_net.q_net.") for k in state):
        return "dqn"
    if any(k in state for k in ("actor.latent_pi.0.weight", "actor.log_std", "actor.log_std.weight")):
        return "sac"
    if any(re.fullmatch(r"actor\.mu\.\d+\.weight", k) for k in state):
        return "td3"
    if "action_net.weight" in state:
        return "ppo" if "clip_range" in data else "a2c"
    raise Refusal("an algorithm whose policy is not known here")


def _policy_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    settings = data.get("policy_kwargs")
    return settings if isinstance(settings, dict) else {}


def _activation(data: Mapping[str, Any], default: str) -> str:
    said = _policy_settings(data).get("activation_fn")
    if said is None:
        return default
    match = _ACTIVATION.search(said) if isinstance(said, str) else None
    if match is None or match[1] not in _KNOWN_ACTIVATIONS:
        raise Refusal(f"activation {brief(said)} is not supported")
    return _KNOWN_ACTIVATIONS[match[1]]


_BODIES: Mapping[Algorithm, tuple[tuple[str, ...], tuple[str, ...], str, str]] = {
    "ppo": (("mlp_extractor.shared_net", "mlp_extractor.policy_net"), ("action_net",), "tanh", ""),
    "a2c": (("mlp_extractor.shared_net", "mlp_extractor.policy_net"), ("action_net",), "tanh", ""),
    "dqn": (("q_net.q_net",), (), "relu", "q_net."),
    "sac": (("actor.latent_pi",), ("actor.mu",), "relu", "actor."),
    "td3": (("actor.mu",), (), "relu", "actor."),
}
"""Of each algorithm: hidden layers, head, default activation, where its feature extractor lies. Before
version 1.8 PPO and A2C could share their first layers."""


def _network(model: _Model, kind: Algorithm) -> nn.Module:
    prefixes, head, default, place = _BODIES[kind]
    act = _activation(model.data, default)
    last: list[Description] = []
    if kind == "sac" and "actor.mu.0.weight" in model.state:
        clip = number(_policy_settings(model.data).get("clip_mean", 2.0), "clip_mean")
        head, last = ("actor.mu.0",), [{"layer": "hardtanh", "min_val": -clip, "max_val": clip}]
    layers = [name for prefix in prefixes for name in numbered(model.state, prefix)] + list(head)
    features = _features(model.state, place)
    if features is not None:
        return _image_network(model, features, layers, act, last)
    if any(".features_extractor." in f".{k}" for k in model.state):
        raise Refusal("a feature extractor of its own, which only its authors' code can build")
    if len(model.observation.shape) != 1:
        raise Refusal(f"observations of shape {model.observation.shape} without a CNN are not supported")
    if act in ("tanh", "relu") and not last:
        return mlp(model.state, layers, act, "the policy")
    return chain_of(model.state, [], layers, act, "the policy", last)


def _features(state: Mapping[str, Tensor], place: str) -> str | None:
    for name in ("pi_features_extractor", "features_extractor"):
        if f"{place}{name}.cnn.0.weight" in state and f"{place}{name}.linear.0.weight" in state:
            return place + name
    return None


def _image_network(
    model: _Model, features: str, layers: list[str], act: str, last: list[Description]
) -> nn.Module:
    """SB3's NatureCNN; where nothing stands between it and the head it is our own, without the duel."""
    convolutions = [f"{features}.cnn.{i}" for i in (0, 2, 4)]
    if len(layers) == 1 and not last and model.observation.shape[1:] == (84, 84):
        renamed = {f"cnn.{i}": f"{features}.cnn.{i}" for i in (0, 2, 4)}
        renamed |= {"advantage.0": f"{features}.linear.0", "advantage.2": layers[0]}
        found = {
            f"{ours}.{name}": model.state[f"{theirs}.{name}"]
            for ours, theirs in renamed.items()
            for name in ("weight", "bias")
            if f"{theirs}.{name}" in model.state
        }
        return nature(found, "the policy")
    return chain_of(model.state, convolutions, [f"{features}.linear.0", *layers], act, "the policy", last)


# ------------------------------------------------------------------------------------- the agent


def _bounded(network: nn.Module, action: _Space, how: Literal["clip", "tanh"]) -> nn.Module:
    assert action.low is not None
    assert action.high is not None
    low, high = action.low.astype(np.float64), action.high.astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        if how == "clip" and not (np.isfinite(low).any() or np.isfinite(high).any()):
            return network
        raise Refusal("an action box with an open side")
    return Bounded(network, how, low.tolist(), high.tolist())


def _normaliser(model: _Model, given: Normaliser | None) -> Normaliser:
    if model.observation.image:
        if given is not None and given.kind != "none":
            raise Refusal("images and VecNormalize statistics together")
        plain = str(_policy_settings(model.data).get("normalize_images", "True")) == "False"
        return Normaliser("scale", 1.0 if plain else 1.0 / 255.0)
    if given is None:
        return Normaliser()
    if given.kind == "moments" and given.mean.shape != model.observation.shape:
        raise Refusal(
            f"the statistics are of shape {given.mean.shape}, its observations of {model.observation.shape}"
        )
    return given


def _assembled(
    model: _Model,
    env_id: str,
    normaliser: Normaliser | None,
    method: str | None,
    env_settings: Mapping[str, Any],
    origin: Mapping[str, Any],
) -> Imported:
    kind = algorithm(model.state, model.data)
    continuous = model.action.kind == "box"
    if continuous != (kind in ("sac", "td3")) and kind not in ("ppo", "a2c"):
        raise Refusal(f"actions of a kind that {kind} does not have")
    if continuous and len(model.action.shape) != 1:
        raise Refusal(f"actions of shape {model.action.shape} are not supported")
    actions = model.action.shape[0] if continuous else model.action.count
    network = _network(model, kind)
    check_fits(network, model.observation.shape, actions, "the policy")
    if continuous:
        if (
            isinstance(network, MLP)
            and model.state.get("log_std") is not None
            and model.state["log_std"].ndim == 1
        ):
            network = gaussian(network, model.state["log_std"], "the policy")
        squashed = kind in ("sac", "td3") or _policy_settings(model.data).get("squash_output") is True
        network = _bounded(network, model.action, "tanh" if squashed else "clip")
    steps = model.data.get("num_timesteps")
    info = AgentInfo(
        method=method or kind,
        env_id=env_id,
        action_kind="continuous" if continuous else "discrete",
        actions=actions,
        observation_shape=model.observation.shape,
        action_low=_box_side(model.action.low) if continuous else (),
        action_high=_box_side(model.action.high) if continuous else (),
        steps=steps if type(steps) is int else 0,
        env_settings=dict(env_settings),
        notes={**origin, "algorithm": kind},
    )
    agent = Agent(network, _normaliser(model, normaliser), info)
    return Imported(agent, _critic(model, kind, agent))


def _box_side(values: npt.NDArray[Any] | None) -> tuple[float, ...]:
    assert values is not None
    return tuple(float(v) for v in values) if np.isfinite(values).all() else ()


def _critic(model: _Model, kind: Algorithm, agent: Agent) -> dict[str, Part]:
    """The value network of PPO and A2C, where it is a plain MLP."""
    act = _activation(model.data, "tanh")
    if kind not in ("ppo", "a2c") or act not in ("tanh", "relu") or len(model.observation.shape) != 1:
        return {}
    hidden = ("mlp_extractor.shared_net", "mlp_extractor.value_net")
    layers = [*(name for prefix in hidden for name in numbered(model.state, prefix)), "value_net"]
    about = {"env_id": agent.info.env_id, "victim": agent.digest, "origin": "stable-baselines3"}
    return {"critic": Part("critic", mlp(model.state, layers, act, "the critic"), about)}


def looks_normalised(path: str | Path) -> bool:
    """Whether the zip of a PPO or A2C agent says that it saw observations normalised by VecNormalize."""
    try:
        data = json.loads(Archive(path).read("data", MAX_STREAM))
    except (Refusal, ValueError, RecursionError):
        return False
    on_policy = isinstance(data, dict) and "gae_lambda" in data
    return on_policy and data.get("_last_original_obs") is not None
