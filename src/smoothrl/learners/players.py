"""Who acts while a pool collects, and the means inside its ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smoothrl.learners.actor_critic import Batch, draw, generators
from smoothrl.learners.collect import Decision, Float
from smoothrl.learners.pools import PoolPolicy, select_median

NOISE_BLOCK = 1 << 16
"""A member's collection noise is drawn for as many steps at a time as fit into this many numbers."""


@dataclass(frozen=True)
class Smooth:
    """Median smoothing in training."""

    sigma: float
    samples: int


class PolicyPlayer:
    """A policy draws actions for what it observes, around its mean or its smoothed mean."""

    def __init__(
        self,
        policy: PoolPolicy,
        shape: tuple[int, int],
        seeds: Sequence[int],
        iteration: int,
        purpose: str,
        smoothing: Smooth | None,
        keep_noise: bool = False,
    ) -> None:
        """`shape`: steps and lanes of the iteration."""
        self.policy, self.smoothing = policy, smoothing
        self.steps, lanes = shape
        self._noise_source = generators(seeds, iteration, f"{purpose}/smoothing")
        self._std = torch.exp(policy.log_std).detach().numpy()
        sources = generators(seeds, iteration, f"{purpose}/action")
        self._wobble = draw(sources, self.steps, lanes, policy.mean.sizes[-1]).numpy()
        self._block: Any = None
        self.kept: list[Any] | None = [] if keep_noise and smoothing is not None else None

    def perceive(self, observation: Float) -> Float:
        return observation

    def act(self, observation: Float, step: int) -> Decision:
        mean = self.mean(observation, step)
        action = mean + self._std * self._wobble[:, step]
        return Decision(observation, mean, action, action)

    def mean(self, states: Float, step: int) -> Float:
        """The policy's mean; smoothed: the median of the means at noisy copies of each state, Eq. (13)."""
        if self.smoothing is None:
            return self.policy.mean.quick(states)  # type: ignore[no-any-return]
        pool, lanes, size = states.shape
        samples = self.smoothing.samples
        noisy = states[:, :, None] + self.noise_at(step, lanes, size, self.smoothing)
        means = self.policy.mean.quick(noisy.reshape(pool, lanes * samples, size))
        return select_median(means.reshape(pool, lanes, samples, -1))[0]  # type: ignore[no-any-return]

    def noise_at(self, step: int, lanes: int, size: int, smoothing: Smooth) -> Float:
        """This step's noise (P, L, m, n), from blocks of several steps."""
        rows = max(1, NOISE_BLOCK // (lanes * smoothing.samples * size))
        if step % rows == 0:
            block = draw(self._noise_source, min(rows, self.steps - step), lanes, smoothing.samples, size)
            self._block = block.mul_(smoothing.sigma).numpy()
            if self.kept is not None:
                self.kept.append(self._block)
        return self._block[:, step % rows]  # type: ignore[no-any-return]

    def noise(self) -> Tensor | None:
        """The noise of the whole iteration (P, T * L, m, n), where it was kept."""
        if self.kept is None:
            return None
        return torch.from_numpy(np.concatenate(self.kept, axis=1)).flatten(1, 2)


@dataclass
class Means:
    """The means inside the ratio: smoothed with fresh noise (or the collection's), or plain."""

    sources: list[torch.Generator]
    smoothing: Smooth | None

    def __call__(self, policy: PoolPolicy, batch: Batch) -> Tensor:
        if self.smoothing is None:
            return policy.mean(batch.states)
        noise = batch.noise
        if noise is None:
            rows, size = batch.states.shape[1:]
            drawn = draw(self.sources, size, rows, self.smoothing.samples).mul_(self.smoothing.sigma)
            noise = drawn.permute(0, 2, 3, 1)
        return policy.smoothed_mean(batch.states, noise)
