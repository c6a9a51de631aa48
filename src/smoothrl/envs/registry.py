"""From an environment id to lanes: which backend serves it, with which settings."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import gymnasium
from gymnasium import spaces

from smoothrl.envs import atari, minatar_lanes, mujoco, toy
from smoothrl.envs.gym_lanes import Env, GymLanes, checked_spaces
from smoothrl.envs.lanes import Lanes
from smoothrl.envs.pool_lanes import PoolLanes
from smoothrl.envs.spec import EnvSpec, describe
from smoothrl.errors import UserError, unknown

Backend = Literal["auto", "envpool", "gymnasium"]

CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
POOL_PARITY = (
    *(f"{name}-v{v}" for name in ("Hopper", "Walker2d", "HalfCheetah") for v in (2, 4, 5)),
    "InvertedPendulum-v4",
    "InvertedPendulum-v5",
    *(name for name in CLASSIC if name != "Pendulum-v1"),
)
"""Ids EnvPool serves by default: from the same state it equals Gymnasium (tests/envs/test_mujoco.py)."""
POOL_ON_REQUEST = (
    *(f"{name}-v{v}" for name in ("Ant", "Humanoid") for v in (2, 4, 5)),
    "Pendulum-v1",
)
"""EnvPool has them but differs: Ant and Humanoid by 2e-8 and 3e-6 in one step and soon by all, Pendulum moves
before it limits the speed. Gymnasium serves them unless `backend="envpool"` asks otherwise."""
POOL_SETTINGS = frozenset(
    {
        "reset_noise_scale",
        "forward_reward_weight",
        "ctrl_cost_weight",
        "healthy_reward",
        "terminate_when_unhealthy",
        "exclude_current_positions_from_observation",
    }
)
"""Keyword arguments that mean the same in Gymnasium's and EnvPool's MuJoCo environments."""


@dataclass(frozen=True)
class Request:
    """The arguments of `make` that decide what is made."""

    env_id: str
    """As written by the user."""
    profile: str | None
    """Atari preprocessing profile."""
    training: bool
    """Atari: episodic life and clipped rewards."""
    threads: int | None
    """Worker threads; None: one a core."""
    backend: Backend
    """`auto` or a demand."""
    max_episode_steps: int | None
    """Time limit in agent steps instead of the environment's own."""
    settings: dict[str, Any]
    """Everything else."""


@dataclass(frozen=True)
class Plan:
    """A resolved request."""

    spec: EnvSpec
    """What will be made."""
    build: Callable[[Sequence[int]], Lanes]
    """Makes lanes, one a seed."""
    clip_rewards: bool = False
    """The learner sees signs of rewards."""


def resolve(request: Request) -> Plan:
    """Find the family of environments this id belongs to."""
    if request.backend not in ("auto", "envpool", "gymnasium"):
        raise unknown("backend", str(request.backend), ("auto", "envpool", "gymnasium"))
    if request.max_episode_steps is not None and request.max_episode_steps < 1:
        raise UserError(f"max_episode_steps {request.max_episode_steps} must be at least 1")
    toy.register_toys()
    if request.env_id.startswith("MinAtar/"):
        return _minatar(request)
    if request.env_id.startswith("ALE/") or request.env_id.endswith("NoFrameskip-v4"):
        return _atari(request)
    if request.profile is not None:
        raise UserError(
            f"profile {request.profile!r} is a preprocessing of Atari games; {request.env_id} has none"
        )
    return _gymnasium(request)


def _common(request: Request) -> dict[str, Any]:
    limit = {} if request.max_episode_steps is None else {"max_episode_steps": request.max_episode_steps}
    return {**limit, **request.settings}


def _need(module: str, env_id: str) -> None:
    if importlib.util.find_spec(module) is None:
        package = {"ale_py": "ale-py"}.get(module, module)
        raise UserError(f"{env_id} needs the package {package}: pip install {package}")


def _only_auto(request: Request, served_by: str) -> None:
    if request.backend != "auto":
        raise UserError(f"{request.env_id} is served by {served_by} only; leave backend at 'auto'")


def _atari(request: Request) -> Plan:
    _need("ale_py", request.env_id)
    ids = atari.atari_ids()
    if request.env_id not in ids:
        raise unknown("environment", request.env_id, _all_ids())
    _only_auto(request, "ale-py")
    rom = ids[request.env_id]
    profile = atari.atari_profile(rom, request.profile, request.settings)
    probe = _atari_spaces(rom, profile)
    spec = describe(
        request.env_id,
        *probe,
        horizon=request.max_episode_steps or atari.ATARI_HORIZON,
        backend="ale",
        settings={"profile": request.profile or "standard", **_common(request)},
        obs_scale=255.0,
    )

    def build(seeds: Sequence[int]) -> Lanes:
        return atari.AtariLanes(
            rom, len(seeds), profile, episodic_life=request.training, threads=request.threads
        )

    return Plan(spec, build, clip_rewards=request.training)


@cache
def _atari_spaces(rom: str, profile: atari.AtariProfile) -> tuple[spaces.Box, spaces.Discrete]:
    lanes = atari.AtariLanes(rom, 1, profile, episodic_life=False)
    found = lanes.observation_space, lanes.action_space
    lanes.close()
    return found


def _minatar(request: Request) -> Plan:
    _need("minatar", request.env_id)
    if request.env_id not in minatar_lanes.MINATAR_IDS:
        raise unknown("environment", request.env_id, _all_ids())
    if request.profile is not None:
        raise UserError(f"{request.env_id} is not an Atari game and has no preprocessing profile")
    if request.backend == "envpool":
        _only_auto(request, "NumPy or the minatar package")
    sticky = float(request.settings.get("sticky", 0.0))
    for key in request.settings:
        if key != "sticky":
            raise unknown("MinAtar setting", key, ("sticky",))
    game, minimal = minatar_lanes.MINATAR_IDS[request.env_id], request.env_id.endswith("-v1")
    fast = game in minatar_lanes.VECTORISED and sticky == 0.0 and request.backend == "auto"

    def build(seeds: Sequence[int]) -> Lanes:
        if fast:
            return minatar_lanes.NumpyMinAtarLanes(game, len(seeds), minimal=minimal)
        return minatar_lanes.PackageMinAtarLanes(game, len(seeds), minimal=minimal, sticky=sticky)

    probe = build([0])
    spec = describe(
        request.env_id,
        probe.observation_space,
        probe.action_space,
        horizon=request.max_episode_steps or minatar_lanes.MINATAR_HORIZON,
        backend=probe.backend,
        settings=_common(request),
    )
    return Plan(spec, build)


def _gymnasium(request: Request) -> Plan:
    base_id = mujoco.V2_IDS.get(request.env_id, request.env_id)

    def build_one() -> Env:
        env = _make_gymnasium(request.env_id, base_id, request.settings)
        return mujoco.patch_v2(env, base_id[:-3]) if request.env_id in mujoco.V2_IDS else env

    probe = build_one()
    observation, action = checked_spaces(request.env_id, probe)
    horizon = request.max_episode_steps or gymnasium.spec(base_id).max_episode_steps
    probe.close()
    pooled = _use_pool(request)
    spec = describe(
        request.env_id,
        observation,
        action,
        horizon=horizon,
        backend="envpool" if pooled else "gymnasium",
        settings=_common(request),
    )

    def build_gymnasium(seeds: Sequence[int]) -> Lanes:
        return GymLanes(request.env_id, len(seeds), build_one)

    def build_pool(seeds: Sequence[int]) -> Lanes:
        options = dict(request.settings)
        if request.env_id in mujoco.V2_IDS:
            base_path, options["xml_file"] = mujoco.v2_model_folder(base_id[:-3])
            options["base_path"] = str(base_path)
        return PoolLanes(base_id, seeds, options, request.threads, observation, action)

    return Plan(spec, build_pool if pooled else build_gymnasium)


def _use_pool(request: Request) -> bool:
    offered = request.env_id in POOL_PARITY + POOL_ON_REQUEST
    settable = POOL_SETTINGS if request.env_id in mujoco.MUJOCO_IDS else frozenset()
    strange = sorted(set(request.settings) - settable)
    installed = importlib.util.find_spec("envpool") is not None
    if request.backend == "envpool":
        if not offered:
            raise UserError(f"EnvPool does not serve {request.env_id} here; use backend 'auto'")
        if strange:
            raise UserError(
                f"EnvPool has no setting {strange[0]!r} for {request.env_id}; use backend 'gymnasium'"
            )
        _need("envpool", request.env_id)
        return True
    return request.backend == "auto" and request.env_id in POOL_PARITY and not strange and installed


def _make_gymnasium(env_id: str, base_id: str, settings: dict[str, Any]) -> Env:
    """One environment without a time limit, or one sentence that says why not."""
    if ":" not in base_id and base_id not in gymnasium.registry:
        raise unknown("environment", env_id, _all_ids())
    try:
        with mujoco.quietly():
            return gymnasium.make(base_id, max_episode_steps=-1, disable_env_checker=True, **settings)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        extra = _extra_of(base_id)
        hint = f"pip install 'gymnasium[{extra}]'" if extra else "install the package that provides it"
        raise UserError(f"{env_id} needs a package that is not installed ({error}): {hint}") from error
    except gymnasium.error.Error as error:
        raise UserError(f"Gymnasium cannot make {env_id}: {error}") from error
    except TypeError as error:
        raise UserError(f"{env_id} does not take the settings {settings}: {error}") from error


def _extra_of(base_id: str) -> str | None:
    entry = gymnasium.registry[base_id].entry_point if base_id in gymnasium.registry else None
    parts = entry.split(".") if isinstance(entry, str) else []
    known = {
        "box2d": "box2d",
        "mujoco": "mujoco",
        "toy_text": "toy-text",
        "classic_control": "classic-control",
    }
    return next((known[part] for part in parts if part in known), None)


@dataclass(frozen=True)
class CatalogueEntry:
    """One line of `smoothrl list environments`."""

    id: str
    """Environment id."""
    family: str
    """MuJoCo, Atari, MinAtar, classic control, toy or Gymnasium."""
    backend: str
    """What serves it by default."""
    note: str = ""
    """What is special about it."""


def catalogue() -> list[CatalogueEntry]:
    """Every environment that needs nothing beyond the core installation."""
    return list(_entries())


def _entries() -> Iterator[CatalogueEntry]:
    pool = "envpool" if importlib.util.find_spec("envpool") is not None else "gymnasium"
    for name in mujoco.MUJOCO_IDS:
        note = "v4 with the capsule inertia of mujoco-py, the paper's physics" if name.endswith("v2") else ""
        yield CatalogueEntry(name, "MuJoCo", pool if name in POOL_PARITY else "gymnasium", note)
    for name in CLASSIC:
        yield CatalogueEntry(name, "classic control", pool if name in POOL_PARITY else "gymnasium")
    for name, game in minatar_lanes.MINATAR_IDS.items():
        actions = "minimal actions" if name.endswith("v1") else "all six actions"
        backend = "numpy" if game in minatar_lanes.VECTORISED else "minatar"
        yield CatalogueEntry(name, "MinAtar", backend, actions)
    for name, rom in atari.atari_ids().items():
        if not name.startswith("ALE/"):
            note = "the paper's crop and actions in profile single-frame" if rom in atari.PAPER_GAMES else ""
            yield CatalogueEntry(name, "Atari", "ale", note)
    for name in toy.TOY_IDS:
        yield CatalogueEntry(name, "toy", "gymnasium", "returns known exactly")


def _all_ids() -> set[str]:
    toy.register_toys()
    own = {entry.id for entry in _entries()} | set(atari.atari_ids())
    return own | {name for name in gymnasium.registry if name not in own}
