"""A toy family whose returns can be written down: `smoothrl/Toy-v0` and `smoothrl/ToyContinuous-v0`.

An episode lasts L steps, L drawn from min_length..max_length by the episode's seed, and shows a target x_t
in every observation (x_t, t / max_length). Discrete: x_t is -1 or +1, action 1 (for +1) or 0 (for -1) earns
1, the other 0. Continuous: x_t is uniform in [-1, 1] and action a earns 1 - (a - x_t)^2. So the best return
is exactly L, and a perturbation of x_t by less than 1 in the discrete game cannot change what a sign policy
does.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

TOY_IDS = ("smoothrl/Toy-v0", "smoothrl/ToyContinuous-v0")
Observation = NDArray[np.float32]


class Toy(gymnasium.Env[Observation, Any]):
    """The toy game; the last observation after the end shows target 0."""

    def __init__(self, continuous: bool = False, min_length: int = 4, max_length: int = 8) -> None:
        """Lengths are inclusive bounds."""
        self.continuous = continuous
        self.lengths = (min_length, max_length)
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(2)
        self.targets: NDArray[np.float64] = np.zeros(0)
        self.time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw length and targets."""
        super().reset(seed=seed, options=options)
        self.targets = toy_targets(self.np_random, self.continuous, *self.lengths)
        self.time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Compare the action with the target shown."""
        target = self.targets[self.time]
        if self.continuous:
            reward = 1.0 - (float(np.asarray(action).reshape(())) - target) ** 2
        else:
            reward = float((int(action) == 1) == (target > 0))
        self.time += 1
        return self._observe(), reward, self.time == len(self.targets), False, {}

    def _observe(self) -> Observation:
        target = self.targets[self.time] if self.time < len(self.targets) else 0.0
        return np.array([target, self.time / self.lengths[1]], dtype=np.float32)


def toy_targets(
    rng: np.random.Generator, continuous: bool, min_length: int = 4, max_length: int = 8
) -> NDArray[np.float64]:
    """The targets x_0 .. x_{L-1} of one episode."""
    length = int(rng.integers(min_length, max_length + 1))
    if continuous:
        return rng.uniform(-1.0, 1.0, length)
    return rng.choice(np.array([-1.0, 1.0]), length)


def register_toys() -> None:
    """Make the toys known to Gymnasium (once)."""
    for name, continuous in zip(TOY_IDS, (False, True), strict=True):
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point="smoothrl.envs.toy:Toy",
                kwargs={"continuous": continuous},
                max_episode_steps=100,
            )
