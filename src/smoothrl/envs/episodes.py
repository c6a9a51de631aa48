"""Single episodes side by side, one a seed: what evaluations, attacks and certificates play."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from smoothrl.envs.drawing import painter
from smoothrl.envs.lanes import Array, Ids, Lanes, Mask
from smoothrl.envs.seeding import check_seed
from smoothrl.envs.spec import EnvSpec

EpisodeStep = tuple[Array, NDArray[np.float64], Mask, Mask]


class Episodes:
    """One episode a seed. An episode depends on its seed and actions only, never on its neighbours."""

    def __init__(
        self, description: EnvSpec, factory: Callable[[Sequence[int]], Lanes], seeds: Sequence[int]
    ) -> None:
        """`factory` makes lanes from their seeds."""
        self.description = description
        self.seeds = tuple(check_seed(s) for s in seeds)
        self.num = len(self.seeds)
        self._factory = factory
        self._lanes = factory(self.seeds)
        self._horizon = description.horizon or np.iinfo(np.int64).max
        self._used = False
        self._painter = painter(description.id)
        self._seen: Array = np.zeros(0)
        self._clear()

    def _clear(self) -> None:
        self.returns = np.zeros(self.num)
        """Raw return of each episode so far."""
        self.lengths = np.zeros(self.num, dtype=np.int64)
        """Agent steps of each episode so far."""
        self.running = np.ones(self.num, dtype=np.bool_)
        """Which episodes have not ended."""
        self._sent: Ids | None = None

    def reset(self) -> Array:
        """First observations (n, ...); again: the same episodes from the start."""
        if self._used:
            self._lanes.close()
            self._lanes = self._factory(self.seeds)
        self._used = True
        self._clear()
        obs = self._lanes.reset(np.arange(self.num), self.seeds)
        self._seen = obs.copy() if self._painter else obs[:0]
        return obs

    def send(self, ids: NDArray[np.integer], actions: Array) -> None:
        """Begin a step of exactly these still running, distinct episodes."""
        if not self._used or self._sent is not None:
            raise RuntimeError("send() needs a reset() first and a recv() after each send()")
        lanes: Ids = np.asarray(ids, dtype=np.int64)
        if not self.running[lanes].all():
            raise ValueError(
                f"episodes {lanes[~self.running[lanes]].tolist()} have ended and cannot be stepped"
            )
        if len(np.unique(lanes)) != len(lanes) or len(lanes) != len(actions):
            raise ValueError("each id once, and one action for each id")
        self._sent = lanes
        self._lanes.send(lanes, np.asarray(actions))

    def recv(self) -> EpisodeStep:
        """End the step: (obs, reward, terminated, truncated), rows in the order of the ids."""
        if self._sent is None:
            raise RuntimeError("recv() without a send()")
        ids, self._sent = self._sent, None
        step = self._lanes.recv()
        self.returns[ids] += step.reward
        self.lengths[ids] += 1
        truncated = step.truncated | (self.lengths[ids] >= self._horizon)
        if self._painter:
            self._seen[ids] = step.obs
        self.running[ids] = ~(step.terminated | truncated)
        return step.obs, step.reward, step.terminated, truncated

    def step(self, ids: NDArray[np.integer], actions: Array) -> EpisodeStep:
        """One step of exactly these episodes."""
        self.send(ids, actions)
        return self.recv()

    def render_frame(self, episode: int) -> NDArray[np.uint8] | None:
        """A picture (height, width, 3) of one episode, or None where the backend cannot draw."""
        frame = self._lanes.render(episode)
        if frame is None and self._painter and len(self._seen):
            return self._painter(self._seen[episode])
        return frame

    def close(self) -> None:
        """Let go of the simulators, now: EnvPool's are in reference cycles and large."""
        self._lanes.close()
        del self._lanes
        gc.collect()
