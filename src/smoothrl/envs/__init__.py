"""What agents act in: vector environments for learners, side-by-side episodes for everything else.

Arrays are NumPy's; nothing here imports torch. Observations are raw: normalising is the agent's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smoothrl.envs.episodes import Episodes
from smoothrl.envs.registry import Backend, CatalogueEntry, Plan, Request, catalogue, resolve
from smoothrl.envs.seeding import episode_seed
from smoothrl.envs.spec import EnvSpec
from smoothrl.envs.toy import register_toys
from smoothrl.envs.vector import SmoothVectorEnv
from smoothrl.errors import UserError

__all__ = [
    "Backend",
    "CatalogueEntry",
    "EnvSpec",
    "Episodes",
    "SmoothVectorEnv",
    "catalogue",
    "episode_seed",
    "make",
    "make_episodes",
    "spec",
]

register_toys()


def _plan(
    env_id: str,
    profile: str | None,
    training: bool,
    threads: int | None,
    backend: Backend,
    max_episode_steps: int | None,
    settings: dict[str, Any],
) -> Plan:
    return resolve(Request(env_id, profile, training, threads, backend, max_episode_steps, settings))


def make(
    env_id: str,
    num_envs: int,
    seed: int,
    *,
    profile: str | None = None,
    training: bool = False,
    threads: int | None = None,
    backend: Backend = "auto",
    max_episode_steps: int | None = None,
    **settings: Any,
) -> SmoothVectorEnv:
    """A Gymnasium `VectorEnv` with same-step autoreset (see `smoothrl.envs.vector`).

    `training=True` gives Atari games episodic life and sign-clipped rewards; `settings` are the
    environment's own (Atari: crop_shift, actions, transpose, sticky; MinAtar: sticky; others: Gymnasium's
    keyword arguments).
    """
    if num_envs < 1:
        raise UserError(f"num_envs {num_envs} must be at least 1")
    plan = _plan(env_id, profile, training, threads, backend, max_episode_steps, settings)
    return SmoothVectorEnv(plan.spec, plan.build, num_envs, seed, clip_rewards=plan.clip_rewards)


def make_episodes(
    env_id: str,
    seeds: Sequence[int],
    *,
    profile: str | None = None,
    threads: int | None = None,
    backend: Backend = "auto",
    max_episode_steps: int | None = None,
    **settings: Any,
) -> Episodes:
    """One episode for each seed, side by side, never in training mode (see `smoothrl.envs.episodes`)."""
    if len(seeds) < 1:
        raise UserError("at least one seed is needed: each seed is one episode")
    plan = _plan(env_id, profile, False, threads, backend, max_episode_steps, settings)
    return Episodes(plan.spec, plan.build, seeds)


def spec(
    env_id: str,
    *,
    profile: str | None = None,
    backend: Backend = "auto",
    max_episode_steps: int | None = None,
    **settings: Any,
) -> EnvSpec:
    """What `make` with the same arguments would give, as plain data."""
    return _plan(env_id, profile, False, None, backend, max_episode_steps, settings).spec
