"""Lanes: several independent copies of one environment that know nothing of autoreset.

Every backend (EnvPool, Gymnasium, ale-py, the NumPy MinAtar games) is one subclass. All the rest, the
autoreset of `vector.py` and the single episodes of `episodes.py`, is written once on top of this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Step:
    """What the stepped lanes answered, in the order of the ids that were sent."""

    obs: Array
    """Observations after the step: of a finished episode the true final ones."""
    reward: NDArray[np.float64]
    """Raw rewards."""
    terminated: Mask
    """The episode reached a terminal state."""
    truncated: Mask
    """The backend itself cut the episode off (time limits are counted above the lanes)."""
    life_lost: Mask
    """A life was lost while the game goes on (Atari with episodic life; else all false)."""


class Lanes(ABC):
    """`num` copies of one environment, each stepped, reset and seeded on its own."""

    num: int
    observation_space: gymnasium.spaces.Box
    action_space: gymnasium.spaces.Discrete | gymnasium.spaces.Box
    backend: str
    per_episode_seeds: bool = True
    """False: `reset` ignores its seeds; a lane's generator starts at its construction seed and runs on."""

    @abstractmethod
    def reset(self, ids: Ids, seeds: Sequence[int]) -> Array:
        """Start a new episode in each of these lanes and return their first observations."""

    @abstractmethod
    def send(self, ids: Ids, actions: Array) -> None:
        """Hand one action to each of these lanes; returns at once where the backend can."""

    @abstractmethod
    def recv(self) -> Step:
        """Wait for the lanes of the last `send`."""

    def resume(self, ids: Ids) -> tuple[Array, Mask]:
        """After a lost life: first observations of the rest of the game, and where it ended meanwhile."""
        raise NotImplementedError(f"{self.backend} lanes have no lives")

    def render(self, lane: int) -> NDArray[np.uint8] | None:
        """What lane `lane` looks like now as (height, width, 3), or None where nothing can draw it."""
        return None

    def close(self) -> None:
        """Let go of threads and simulators; further use is undefined."""
        return None


def no_lives(count: int) -> Mask:
    """The `life_lost` of backends without lives."""
    return np.zeros(count, dtype=np.bool_)
