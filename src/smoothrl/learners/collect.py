"""Collecting experience with a pool: P members, L environments each, everything stepped together.

Every array has the axes (time, member, lane). What a member sees depends on its own seed and the iteration
alone: environments start anew at each iteration, from seeds derived by counting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from smoothrl.agents import Moments, Normaliser
from smoothrl.envs import EnvSpec, episode_seed
from smoothrl.envs.lanes import Lanes
from smoothrl.errors import UserError

Float = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class PoolMoments:
    """Running mean and variance of each member (Welford), float64; one push takes a row of every lane."""

    def __init__(self, pool: int, size: int) -> None:
        self.count = np.zeros((pool, 1))
        self.mean = np.zeros((pool, size))
        self.m2 = np.zeros((pool, size))

    def push(self, rows: Double) -> None:
        """Take in (P, L, size)."""
        lanes = rows.shape[1]
        if lanes == 1:
            self.count += 1.0
            delta = rows[:, 0] - self.mean
            self.mean += delta / self.count
            self.m2 += delta * (rows[:, 0] - self.mean)
            return
        for member in range(rows.shape[0]):
            self.push_member(member, rows[member])

    def push_member(self, member: int, rows: Double) -> None:
        """Take in (rows, size) for one member."""
        for row in rows:
            self.count[member] += 1.0
            delta = row - self.mean[member]
            self.mean[member] += delta / self.count[member]
            self.m2[member] += delta * (row - self.mean[member])

    @property
    def std(self) -> Double:
        """(P, size); |mean| where a member has seen a single row, as the released code has it."""
        if self.count.min() >= 2.0:
            return np.sqrt(self.m2 / (self.count - 1.0))
        found = np.sqrt(self.m2 / np.maximum(self.count - 1.0, 1.0))
        return np.where(self.count < 2.0, np.abs(self.mean), found)

    def member(self, i: int) -> Moments:
        return Moments(float(self.count[i, 0]), self.mean[i].copy(), self.m2[i].copy())

    def set_member(self, i: int, moments: Moments) -> None:
        self.count[i], self.mean[i], self.m2[i] = moments.count, moments.mean, moments.m2

    def state(self) -> dict[str, Double]:
        return {"count": self.count.copy(), "mean": self.mean.copy(), "m2": self.m2.copy()}

    def load(self, state: dict[str, Any]) -> None:
        for name in ("count", "mean", "m2"):
            getattr(self, name)[...] = np.asarray(state[name])


@dataclass
class Scaler:
    """The observation and reward normalisers of a pool; `frozen` ones scale and learn nothing."""

    observations: PoolMoments
    rewards: PoolMoments
    discount: float
    observation_clip: float
    reward_clip: float
    frozen: bool = False
    fixed: Normaliser | None = None
    """A finished agent's own normaliser instead of the running one."""

    def observe(self, raw: Double) -> Float:
        """Push (P, L, n), then normalise."""
        if self.fixed is not None:
            return self.fixed(raw).numpy()
        if not self.frozen:
            self.observations.push(raw)
        return self._normalise(raw)

    def observe_lane(self, member: int, raw: Double) -> Float:
        """The same for one row (n,) of one member: a first observation."""
        if self.fixed is not None:
            return self.fixed(raw).numpy()
        if not self.frozen:
            self.observations.push_member(member, raw[None])
        m = self.observations
        std = m.std[member]
        x: Double = (raw - m.mean[member]) / (std + 1e-8)
        np.clip(x, -self.observation_clip, self.observation_clip, out=x)
        return x.astype(np.float32)

    def _normalise(self, raw: Double) -> Float:
        m = self.observations
        x = raw - m.mean[:, None]
        x /= (m.std + 1e-8)[:, None]
        np.clip(x, -self.observation_clip, self.observation_clip, out=x)
        return x.astype(np.float32)

    def reward(self, running: Double, raw: Double) -> Double:
        """Update the running discounted returns (P, L) in place and scale raw (P, L) by their deviation."""
        running *= self.discount
        running += raw
        if not self.frozen:
            self.rewards.push(running[..., None])
        scaled = raw / (self.rewards.std + 1e-8)
        np.clip(scaled, -self.reward_clip, self.reward_clip, out=scaled)
        return scaled


class Arena:
    """P x L lanes of one environment, restarted from seeds, with time limits counted here."""

    def __init__(self, spec: EnvSpec, build: Callable[[Sequence[int]], Lanes], pool: int, lanes: int) -> None:
        self.spec, self.pool, self.lanes_each = spec, pool, lanes
        self._build = build
        self._lanes: Lanes | None = None
        self._all = np.arange(pool * lanes)
        self._limit = spec.horizon or np.iinfo(np.int64).max
        self.stepping_time = 0.0

    def restart(self, seeds: Sequence[int], iteration: int) -> Double:
        """First observations (P, L, n) of the iteration; `seeds` are the members'."""
        lane_seeds = [episode_seed(s, lane, iteration) for s in seeds for lane in range(self.lanes_each)]
        start = time.perf_counter()
        if self._lanes is None or not self._lanes.per_episode_seeds:
            self.close()
            self._lanes = self._build(lane_seeds)
        self._seeds = lane_seeds
        self._episode = np.zeros(len(lane_seeds), dtype=np.int64)
        self._length = np.zeros(len(lane_seeds), dtype=np.int64)
        obs = self._begin(self._all)
        self.stepping_time += time.perf_counter() - start
        return obs.reshape(self.pool, self.lanes_each, -1)

    def begin(self, lanes: npt.NDArray[np.int64]) -> Double:
        """The first observations (k, n) of the next episodes of these lanes."""
        start = time.perf_counter()
        obs = self._begin(lanes)
        self.stepping_time += time.perf_counter() - start
        return obs

    def _begin(self, ids: npt.NDArray[np.int64]) -> Double:
        assert self._lanes is not None
        own = self._lanes.per_episode_seeds
        seeds = [episode_seed(self._seeds[i], 0, int(self._episode[i])) if own else 0 for i in ids]
        self._episode[ids] += 1
        self._length[ids] = 0
        obs: Double = self._lanes.reset(ids, seeds).astype(np.float64)
        return obs.reshape(len(ids), -1)

    def send(self, actions: npt.NDArray[Any]) -> None:
        """Let every lane step on its threads; `recv` must follow."""
        assert self._lanes is not None
        start = time.perf_counter()
        self._lanes.send(self._all, actions)
        self.stepping_time += time.perf_counter() - start

    def recv(self) -> tuple[Double, Double, Mask, Mask]:
        """(obs, reward, terminated, truncated) of every lane; ended episodes show their final observation."""
        assert self._lanes is not None
        start = time.perf_counter()
        answer = self._lanes.recv()
        self.stepping_time += time.perf_counter() - start
        self._length += 1
        truncated = answer.truncated | (self._length >= self._limit)
        shape = (self.pool, self.lanes_each)
        obs = answer.obs.astype(np.float64, copy=False).reshape(*shape, -1)
        return obs, answer.reward.reshape(shape), answer.terminated.reshape(shape), truncated.reshape(shape)

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None


@dataclass(frozen=True)
class Decision:
    """What one step of a player leaves for learning, and what the environment gets."""

    state: Float
    """(P, L, n) what the learning network saw."""
    mean: Float
    """(P, L, a) mean of the learning network's distribution."""
    action: Float
    """(P, L, a) what it drew."""
    played: Float
    """(P, L, A) the action for the environment."""


class Player(Protocol):
    """Who acts: the agent alone, the agent under an adversary, or an adversary through its victim."""

    def act(self, observation: Float, step: int) -> Decision: ...

    def perceive(self, observation: Float) -> Float:
        """What the learning network would see of this observation (for bootstrapping)."""
        ...


@dataclass
class Rollout:
    """One iteration's experience, (T, P, L, ...)."""

    states: Float
    means: Float
    actions: Float
    rewards: Double
    """Normalised rewards."""
    terminated: Mask
    truncated: Mask
    tail: Float
    """(P, L, n) the state after the last step."""
    finals: list[tuple[int, int, int, Float]] = field(default_factory=list)
    """(t, member, lane, state) where an episode was cut off by its time limit."""
    returns: list[list[float]] = field(default_factory=list)
    """Raw returns of the episodes that ended, member by member."""
    lengths: list[list[int]] = field(default_factory=list)

    @property
    def ends(self) -> Mask:
        return self.terminated | self.truncated


def collect(
    arena: Arena,
    player: Player,
    scaler: Scaler,
    seeds: Sequence[int],
    iteration: int,
    steps: int,
    sizes: tuple[int, int],
) -> Rollout:
    """Play `steps` steps in every lane; `sizes` are those of the learner's states and actions."""
    pool, lanes = arena.pool, arena.lanes_each
    shape = (steps, pool, lanes)
    out = Rollout(
        np.empty((*shape, sizes[0]), np.float32),
        np.empty((*shape, sizes[1]), np.float32),
        np.empty((*shape, sizes[1]), np.float32),
        np.empty(shape),
        np.empty(shape, np.bool_),
        np.empty(shape, np.bool_),
        np.empty((pool, lanes, sizes[0]), np.float32),
        returns=[[] for _ in range(pool)],
        lengths=[[] for _ in range(pool)],
    )
    running, total, length = (
        np.zeros((pool, lanes)),
        np.zeros((pool, lanes)),
        np.zeros((pool, lanes), np.int64),
    )
    observation = scaler.observe(arena.restart(seeds, iteration))
    for t in range(steps):
        decision = player.act(observation, t)
        arena.send(decision.played.reshape(pool * lanes, -1))
        out.states[t], out.means[t], out.actions[t] = decision.state, decision.mean, decision.action
        raw, reward, terminated, truncated = arena.recv()
        out.terminated[t], out.truncated[t] = terminated, truncated
        total += reward
        length += 1
        out.rewards[t] = scaler.reward(running, reward)
        observation = scaler.observe(raw)
        if terminated.any() or truncated.any():
            ended = np.argwhere(terminated | truncated)
            cut_off = truncated & ~terminated
            final = player.perceive(observation).copy() if cut_off.any() else observation
            firsts = arena.begin(ended[:, 0] * lanes + ended[:, 1])
            for (member, lane), first in zip(ended, firsts, strict=True):
                if cut_off[member, lane]:
                    out.finals.append((t, int(member), int(lane), final[member, lane].copy()))
                out.returns[member].append(float(total[member, lane]))
                out.lengths[member].append(int(length[member, lane]))
                total[member, lane], length[member, lane], running[member, lane] = 0.0, 0, 0.0
                observation[member, lane] = scaler.observe_lane(int(member), first)
    out.tail[...] = player.perceive(observation)
    _check(out)
    return out


def _check(rollout: Rollout) -> None:
    if not (np.isfinite(rollout.rewards).all() and np.isfinite(rollout.states).all()):
        bad = ~np.isfinite(rollout.states).all(axis=(0, 2, 3)) | ~np.isfinite(rollout.rewards).all(
            axis=(0, 2)
        )
        raise UserError(
            "the environment returned an observation or reward that is not finite "
            f"(pool member {int(bad.argmax())})"
        )
