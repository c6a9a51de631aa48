"""Lanes over EnvPool: C++ threads step, Python only hands over arrays.

EnvPool resets a finished environment on the step after its end. Here that never happens: a finished lane is
reset by name before it is stepped again, so no action is swallowed. Its own time limit is put out of reach
because it hides terminations that fall on the last step.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from smoothrl.envs.lanes import Array, Ids, Lanes, Step, no_lives

NEVER = 2**30
LARGEST_SEED = 2**31 - 1


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class PoolLanes(Lanes):
    """One EnvPool, one lane an environment, lane `i` seeded with `seeds[i]` at construction."""

    backend = "envpool"
    per_episode_seeds = False

    def __init__(
        self,
        env_id: str,
        seeds: Sequence[int],
        options: Mapping[str, Any],
        threads: int | None,
        observation_space: spaces.Box,
        action_space: spaces.Discrete | spaces.Box,
    ) -> None:
        """`options` are EnvPool's configuration keys; the spaces are Gymnasium's for the same environment."""
        import envpool

        self.num = len(seeds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._pool: Any = envpool.make(
                env_id,
                env_type="gymnasium",
                num_envs=self.num,
                num_threads=threads or min(self.num, usable_cores()),
                seed=[int(s) % LARGEST_SEED for s in seeds],
                max_episode_steps=NEVER,
                **options,
            )
            self._pool.observation_space, self._pool.action_space  # noqa: B018  (built on first use, with warnings)
        self.observation_space, self.action_space = observation_space, action_space
        self._sent: Ids = np.zeros(0, dtype=np.int64)

    def reset(self, ids: Ids, seeds: Sequence[int]) -> Array:
        """Next episode of each lane's own generator; `seeds` were fixed at construction."""
        obs, _ = self._pool.reset(ids.astype(np.int32))
        return np.asarray(obs, dtype=self.observation_space.dtype)

    def send(self, ids: Ids, actions: Array) -> None:
        """Start the C++ threads on these lanes."""
        self._sent = ids
        self._pool.send(np.ascontiguousarray(actions), ids.astype(np.int32))

    def recv(self) -> Step:
        """Wait for them."""
        obs, reward, terminated, truncated, info = self._pool.recv()
        if not np.array_equal(info["env_id"], self._sent):
            raise RuntimeError("EnvPool answered for other environments than were stepped")
        return Step(
            obs=np.asarray(obs, dtype=self.observation_space.dtype),
            reward=np.asarray(reward, dtype=np.float64),
            terminated=np.asarray(terminated, dtype=np.bool_),
            truncated=np.asarray(truncated, dtype=np.bool_),
            life_lost=no_lives(len(self._sent)),
        )

    def close(self) -> None:
        """End EnvPool's threads."""
        self._pool.close()
