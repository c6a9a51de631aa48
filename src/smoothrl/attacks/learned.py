"""Attacks that carry a fitted network: a critic (Min-RS), a perturbing policy (Optimal), a director (PA-AD).

Here is what they do at test time; `smoothrl.learners.fit_attacks` fits the networks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smoothrl import networks
from smoothrl.agents import Agent
from smoothrl.attacks import objectives
from smoothrl.attacks.base import Attack
from smoothrl.attacks.budget import Budget
from smoothrl.attacks.gradient import GradientAttack, QAttack, tiled
from smoothrl.attacks.loop import Search
from smoothrl.attacks.objectives import Aim, Critic
from smoothrl.noise import Noise
from smoothrl.protocols import Protocol


def critic_of(network: nn.Module) -> Critic:
    """Q(clean observation, action) of an MLP on the two side by side."""
    frozen = networks.frozen(network)

    def critic(observations: Tensor, actions: Tensor) -> Tensor:
        values: Tensor = frozen(torch.cat([observations, actions], dim=-1))
        return values.squeeze(-1)

    return critic


def within_budget(clean: Tensor, delta: Tensor, budget: Budget) -> Tensor:
    """s + epsilon hardtanh(delta) (linf); s + epsilon delta, shortened to the unit ball (l2)."""
    if budget.norm == "linf":
        return clean + budget.epsilon * delta.clamp(-1.0, 1.0)
    length: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1).clamp_min(1.0)
    return clean + budget.epsilon * delta / length.reshape(-1, *([1] * (delta.dim() - 1)))


class OptimalAttack(Attack):
    """The mean of a trained adversary is the perturbation, in units of the budget."""

    name = "optimal"

    def __init__(self, agent: Agent, budget: Budget, adversary: nn.Module) -> None:
        super().__init__(agent, budget)
        self.adversary = networks.frozen(adversary).to(agent.device)

    @torch.no_grad()
    def search(self, observations: Tensor, index: Sequence[int], noise: Noise, step: int) -> Tensor:
        return within_budget(observations, padded(self.adversary, observations), self.budget)


class DirectedAttack(GradientAttack):
    """PA-AD on a policy: the director's mean is the change of action that the gradient steps provoke."""

    def __init__(
        self,
        agent: Agent,
        budget: Budget,
        director: nn.Module | None,
        plan: Search,
        protocol: Protocol,
        *,
        smoothed: bool,
    ) -> None:
        objective = objectives.directed(-1.0 if protocol.fgsm_sign_flipped else 1.0)
        super().__init__(agent, budget, objective, plan, name="pa-ad", smoothed=smoothed, start="uniform")
        self.director = None if director is None else networks.frozen(director).to(agent.device)
        self.directions: Tensor | None = None

    def _start_size(self) -> float:
        """The released attack starts within epsilon / 10 of the clean observation."""
        return self.budget.epsilon / 10.0

    def aim(self, observations: Tensor, index: Sequence[int], noise: Noise) -> Aim:
        if self.directions is not None:
            return tiled(Aim(observations, direction=self.directions), self.plan.restarts)
        assert self.director is not None
        with torch.no_grad():
            found = Aim(observations, direction=padded(self.director, observations))
        return tiled(found, self.plan.restarts)

    def along(
        self, observations: Tensor, directions: Tensor, index: Sequence[int], noise: Noise, step: int = 0
    ) -> Tensor:
        """The perturbation that follows given directions: what the director is trained with."""
        self.directions = directions
        try:
            return self.perturb(observations, index, noise, step)
        finally:
            self.directions = None


class DirectedQAttack(QAttack):
    """PA-AD on a Q-agent: the director names the action that targeted gradient steps provoke."""

    def __init__(
        self,
        agent: Agent,
        budget: Budget,
        director: nn.Module | None,
        plan: Search,
        protocol: Protocol,
        *,
        smoothed: bool,
    ) -> None:
        plain = protocol.pgd_cross_entropy
        objective = objectives.cross_entropy if plain else objectives.vote_margin(agent.smoothing.kind)
        super().__init__(agent, budget, objective, plan, name="pa-ad", smoothed=smoothed)
        self.director = None if director is None else networks.frozen(director).to(agent.device)
        self.sampled = protocol.director_samples
        self.targets_given: Tensor | None = None

    def aim(self, observations: Tensor, index: Sequence[int], noise: Noise) -> Aim:
        target = self.targets_given
        if target is None:
            assert self.director is not None
            with torch.no_grad():
                logits = padded(self.director, observations)
            target = self._chosen(logits, index, noise)
        return tiled(Aim(observations, action=target, target=target), self.plan.restarts)

    def _chosen(self, logits: Tensor, index: Sequence[int], noise: Noise) -> Tensor:
        if not self.sampled:
            return logits.argmax(-1)
        uniform = noise.uniform(index, logits.shape[1:]).to(logits.device).clamp_min(1e-12)
        return (logits - torch.log(-torch.log(uniform))).argmax(-1)

    def score(self, outputs: Tensor, aim: Aim) -> Tensor:
        return self.objective(outputs, aim)

    def towards(
        self, observations: Tensor, targets: Tensor, index: Sequence[int], noise: Noise, step: int = 0
    ) -> Tensor:
        """The perturbation that aims at given actions: what the director is trained with."""
        self.targets_given = targets
        try:
            return self.perturb(observations, index, noise, step)
        finally:
            self.targets_given = None


def padded(network: nn.Module, rows: Tensor, least: int = 8) -> Tensor:
    """The network on rows, padded so that a row's numbers do not depend on how many rows there are."""
    count = rows.shape[0]
    if count < least:
        rows = torch.cat([rows, rows[:1].expand(least - count, *rows.shape[1:])])
    return network(rows)[:count]  # type: ignore[no-any-return]
