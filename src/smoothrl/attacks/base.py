"""What an attack is: a batch of observations in, perturbed observations within the budget out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from smoothrl.agents import Agent
from smoothrl.attacks.budget import Budget
from smoothrl.attacks.loop import GradientHealth
from smoothrl.noise import Noise


class Attack(ABC):
    """Holds its agent and its budget; `perturb` works on many episodes at once.

    Row i belongs to the episode index[i] and draws from that episode's stream of `noise` alone, so what
    happens to an episode does not depend on the company. With epsilon 0 nothing is touched and nothing drawn.
    """

    name = "attack"

    def __init__(self, agent: Agent, budget: Budget) -> None:
        self.agent, self.budget = agent, budget
        self.health = GradientHealth()

    def reset(self, count: int) -> None:  # noqa: B027
        """A new group of `count` episodes begins; memoryless attacks have nothing to do."""

    def perturb(self, observations: Tensor, index: Sequence[int], noise: Noise, step: int) -> Tensor:
        """The perturbed observations, within the budget whatever the search returns."""
        if self.budget.epsilon == 0.0:
            return observations
        return self.budget.settle(observations, self.search(observations, index, noise, step))

    @abstractmethod
    def search(self, observations: Tensor, index: Sequence[int], noise: Noise, step: int) -> Tensor:
        """Perturbed observations; the base class projects them onto the budget."""

    def describe(self) -> dict[str, Any]:
        """What a result row says about the attack."""
        return {"attack": self.name, "epsilon": self.budget.epsilon, "norm": self.budget.norm}


class Nothing(Attack):
    """Stands for a learned attack without budget, which needs no fitting."""

    name = "nothing"

    def search(self, observations: Tensor, index: Sequence[int], noise: Noise, step: int) -> Tensor:
        return observations


class RandomAttack(Attack):
    """A random corner of the box (linf) or a random direction at full length (l2): the control experiment."""

    name = "random"

    def search(self, observations: Tensor, index: Sequence[int], noise: Noise, step: int) -> Tensor:
        normal = noise.normal(index, 1, observations.shape[1:])[:, 0].to(observations.device)
        return self.budget.random(observations, normal)
