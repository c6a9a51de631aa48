"""Lanes over plain Gymnasium environments: any registered id, one Python object a lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from smoothrl.envs.lanes import Array, Ids, Lanes, Step, no_lives
from smoothrl.errors import UserError

Env = gymnasium.Env[Any, Any]


def checked_spaces(name: str, env: Env) -> tuple[spaces.Box, spaces.Discrete | spaces.Box]:
    """The environment's spaces, if agents can work with them."""
    observation, action = env.observation_space, env.action_space
    if not isinstance(observation, spaces.Box):
        raise UserError(
            f"{name} has observations of kind {type(observation).__name__}; smoothing needs real-valued "
            "arrays (Box): wrap the environment, for example with gymnasium.wrappers.FlattenObservation"
        )
    if not isinstance(action, spaces.Discrete | spaces.Box):
        raise UserError(f"{name} has actions of kind {type(action).__name__}; supported are Discrete and Box")
    return observation, action


class GymLanes(Lanes):
    """A list of Gymnasium environments, stepped one after the other at `recv`."""

    backend = "gymnasium"

    def __init__(self, name: str, num: int, build: Callable[[], Env]) -> None:
        """`build` makes one environment without a time limit."""
        self.num = num
        self._envs = [build() for _ in range(num)]
        self.observation_space, self.action_space = checked_spaces(name, self._envs[0])
        self._pending: tuple[Ids, Array] | None = None

    def reset(self, ids: Ids, seeds: Sequence[int]) -> Array:
        """Each lane restarts from its seed alone."""
        return self._stack([self._envs[i].reset(seed=int(s))[0] for i, s in zip(ids, seeds, strict=True)])

    def send(self, ids: Ids, actions: Array) -> None:
        """Remember the actions."""
        self._pending = (ids, actions)

    def recv(self) -> Step:
        """Step the lanes in order."""
        if self._pending is None:
            raise RuntimeError("recv() without a send()")
        (ids, actions), self._pending = self._pending, None
        answers = [self._envs[i].step(self._native(a)) for i, a in zip(ids, actions, strict=True)]
        return Step(
            obs=self._stack([a[0] for a in answers]),
            reward=np.array([a[1] for a in answers], dtype=np.float64),
            terminated=np.array([a[2] for a in answers], dtype=np.bool_),
            truncated=np.array([a[3] for a in answers], dtype=np.bool_),
            life_lost=no_lives(len(answers)),
        )

    def render(self, lane: int) -> NDArray[np.uint8] | None:
        """The environment's own picture, where it was made with render_mode="rgb_array"."""
        env = self._envs[lane]
        if env.render_mode != "rgb_array":
            return None
        frame = env.render()
        return np.asarray(frame, dtype=np.uint8) if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _stack(self, observations: list[Any]) -> Array:
        out = np.empty((len(observations), *self.observation_space.shape), dtype=self.observation_space.dtype)
        for row, observation in zip(out, observations, strict=True):
            row[...] = observation
        return out

    def _native(self, action: Any) -> Any:
        if isinstance(self.action_space, spaces.Discrete):
            return int(action) + int(self.action_space.start)
        return np.asarray(action)
