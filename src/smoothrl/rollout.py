"""One loop that plays many episodes side by side, with or without an attack on what the agent sees.

An episode's result depends on its own seed alone: its environment, its smoothing noise and its attacker's
noise have streams of their own, whatever number of episodes is played beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smoothrl import envs
from smoothrl.agents import Agent
from smoothrl.errors import UserError
from smoothrl.noise import Noise, StreamNoise, episode_seeds
from smoothrl.results import NORMALISED, PIXELS, ResultRow
from smoothrl.statistics import mean_estimate

Progress = Callable[[float, int], None]

VECTOR_LANES = 256
IMAGE_LANES = 32
BATCH_NOTE = "acts with batch statistics, which certifies nothing"
OUTPUT_FLOATS = 1 << 25
"""Fewer episodes side by side where their sampled outputs would be more numbers than this (128 MiB)."""


class Perturbs(Protocol):
    """What the loop needs of an attack: observations in, perturbed observations out."""

    def reset(self, count: int) -> None: ...

    def perturb(self, observations: Tensor, index: Sequence[int], noise: Noise, step: int) -> Tensor: ...


@dataclass(frozen=True)
class Step:
    """One step of the episodes still running, for whoever looks on."""

    step: int
    index: npt.NDArray[np.int64]
    """Numbers of the episodes, counted over the whole evaluation."""
    observations: Tensor
    """What was there, normalised."""
    perturbed: Tensor
    """What the agent saw (before its own noise)."""
    outputs: Tensor
    """Sampled outputs (b, m, outputs) behind the decision."""
    actions: npt.NDArray[Any]
    rewards: npt.NDArray[np.float64]
    done: npt.NDArray[np.bool_]
    episodes: Any
    """The running `envs.Episodes`, for rendering."""
    local: npt.NDArray[np.int64]
    """The same episodes, counted within `episodes`."""


@dataclass(frozen=True)
class EpisodeResults:
    """One entry an episode; `complete` is False where an interruption or a step limit cut it short."""

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    terminated: npt.NDArray[np.bool_]
    complete: npt.NDArray[np.bool_]
    seeds: npt.NDArray[np.int64]
    wall_time: float
    interrupted: bool = False
    extras: dict[str, Any] = field(default_factory=dict)

    def finished(self) -> npt.NDArray[np.float64]:
        """Returns of the episodes that were played to their end."""
        return self.returns[self.complete]


def default_lanes(agent: Agent, episodes: int) -> int:
    """How many episodes are played side by side: memory does not grow with the samples of a decision."""
    most = IMAGE_LANES if len(agent.info.observation_shape) == 3 else VECTOR_LANES
    outputs = agent.info.actions * (agent.smoothing.samples if agent.smoothing.kind != "none" else 1)
    return max(1, min(episodes, most, OUTPUT_FLOATS // outputs))


def check_environment(agent: Agent, env_id: str) -> None:
    """Refuse an environment whose observations or actions the agent cannot take."""
    spec = envs.spec(env_id, **agent.info.env_settings)
    if tuple(spec.obs_shape) != tuple(agent.info.observation_shape):
        raise UserError(
            f"{env_id} shows observations of shape {tuple(spec.obs_shape)}; the agent was trained on "
            f"{agent.info.env_id} with shape {agent.info.observation_shape}"
        )
    if spec.action != agent.info.action_kind or spec.action_size != agent.info.actions:
        raise UserError(
            f"{env_id} takes {spec.action_size} {spec.action} actions; this agent gives "
            f"{agent.info.actions} {agent.info.action_kind} ones"
        )


def evaluate(
    agent: Agent,
    env_id: str | None = None,
    episodes: int = 50,
    seed: int = 0,
    *,
    lanes: int | None = None,
    attack: Perturbs | None = None,
    on_step: Callable[[Step], None] | None = None,
    progress: Progress | None = None,
    max_steps: int | None = None,
    env_settings: Mapping[str, Any] | None = None,
    first: int = 0,
) -> EpisodeResults:
    """Play episodes first .. first + episodes - 1 of `seed`; Ctrl-C keeps what is finished.

    `progress(done, step)` is called after every step; `done` counts a running episode by the share of its
    horizon that is played.
    """
    if episodes < 1:
        raise UserError(f"at least one episode is needed, got {episodes}")
    if lanes is not None and lanes < 1:
        raise UserError(f"at least one episode is played at a time, got {lanes} lanes")
    if max_steps is not None and max_steps < 1:
        raise UserError(f"an episode is at least one step long, got max_steps {max_steps}")
    if seed < 0:
        raise UserError(f"a seed is a whole number from 0 on, got {seed}")
    where = agent.info.env_id if env_id is None else env_id
    settings = agent.info.env_settings if env_settings is None else dict(env_settings)
    check_environment(agent, where)
    side_by_side = default_lanes(agent, episodes) if lanes is None else min(lanes, episodes)
    seeds = {p: episode_seeds(seed, episodes, p, first) for p in ("env", "noise", "attack")}
    table = _Table(episodes, seeds["env"])
    started = time.perf_counter()
    interrupted = False
    try:
        for start in range(0, episodes, side_by_side):
            group = slice(start, min(start + side_by_side, episodes))
            running = envs.make_episodes(where, seeds["env"][group], **settings)
            try:
                _play(
                    agent,
                    running,
                    table,
                    start,
                    StreamNoise(seeds["noise"][group]),
                    StreamNoise(seeds["attack"][group]),
                    attack,
                    on_step,
                    progress,
                    max_steps,
                )
            finally:
                running.close()
    except KeyboardInterrupt:
        interrupted = True
    return EpisodeResults(
        table.returns,
        table.lengths,
        table.terminated,
        table.complete,
        np.asarray(table.seeds, np.int64),
        time.perf_counter() - started,
        interrupted,
    )


class _Table:
    """The growing results of one evaluation."""

    def __init__(self, episodes: int, seeds: Sequence[int]) -> None:
        self.returns = np.zeros(episodes)
        self.lengths = np.zeros(episodes, np.int64)
        self.terminated = np.zeros(episodes, np.bool_)
        self.complete = np.zeros(episodes, np.bool_)
        self.seeds = seeds


def _play(
    agent: Agent,
    running: Any,
    table: _Table,
    start: int,
    act_noise: Noise,
    attack_noise: Noise,
    attack: Perturbs | None,
    on_step: Callable[[Step], None] | None,
    progress: Progress | None,
    max_steps: int | None,
) -> None:
    raw = running.reset()
    ids = np.arange(len(raw), dtype=np.int64)
    if attack is not None:
        attack.reset(len(ids))
    step, horizon = 0, max_steps or running.description.horizon
    while ids.size and (max_steps is None or step < max_steps):
        observations = agent.observe(raw)
        seen = observations
        index = ids.tolist()
        if attack is not None:
            seen = attack.perturb(observations, index, attack_noise, step)
        outputs = agent.outputs(seen, act_noise, index)
        actions = agent.decide(outputs).cpu().numpy()
        if not agent.discrete and not np.isfinite(actions).all():
            raise UserError(
                "the agent gave an action that is not finite; its weights or its normaliser are damaged"
            )
        raw, rewards, terminated, truncated = running.step(ids, actions)
        done = terminated | truncated
        table.returns[start + ids] += rewards
        table.lengths[start + ids] += 1
        table.terminated[start + ids] = terminated
        table.complete[start + ids] = done
        if on_step is not None:
            on_step(
                Step(step, start + ids, observations, seen, outputs, actions, rewards, done, running, ids)
            )
        ids, raw = ids[~done], raw[~done]
        step += 1
        if progress is not None:
            share = step / horizon if horizon else 0.0
            progress(float(table.complete.sum()) + ids.size * min(share, 1.0), step)


def perturbation_norm(step: Step, norm: str) -> Tensor:
    """Size of the perturbation of each row, in the norm of the budget."""
    delta = (step.perturbed - step.observations).flatten(1)
    return delta.abs().amax(dim=1) if norm == "linf" else torch.linalg.vector_norm(delta, dim=1)


def result_row(
    agent: Agent,
    results: EpisodeResults,
    metric: str,
    seed: int,
    *,
    environment: str | None = None,
    epsilon: float | None = None,
    norm: str = "",
    protocol: str = "sound",
    note: str = "",
    command: str = "",
) -> ResultRow:
    """The row of the results table for the finished episodes of one evaluation."""
    returns = results.finished()
    if not returns.size:
        raise UserError("no episode was finished, so there is no result; let it run longer")
    smooth = agent.smoothing
    noisy = smooth.kind != "none"
    several = returns.size > 1
    interval = mean_estimate([returns], np.random.default_rng(seed)) if several else None
    return ResultRow(
        environment=environment or agent.info.env_id,
        agent=agent.name,
        metric=metric,
        mean=float(returns.mean()),
        epsilon=epsilon,
        sigma=smooth.sigma if noisy else None,
        samples=smooth.samples if noisy else None,
        std=float(returns.std(ddof=1)) if several else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        level=interval.level if interval else None,
        norm=norm,
        seed=seed,
        agent_seed=agent.info.seed,
        episodes=int(returns.size),
        protocol=protocol,
        smoothing=smooth.kind,
        agent_hash=agent.digest,
        units=PIXELS if agent.normaliser.kind == "scale" else NORMALISED,
        wall_time=results.wall_time,
        steps=agent.info.steps or None,
        note="; ".join(filter(None, (note, BATCH_NOTE if agent.batch_statistics else ""))),
        command=command,
        returns=tuple(float(r) for r in returns),
    )
