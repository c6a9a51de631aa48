"""Gradient attacks on a given agent: the loop, an objective, and the noise through which to differentiate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from smoothrl.agents import Agent
from smoothrl.attacks.base import Attack
from smoothrl.attacks.budget import Budget
from smoothrl.attacks.loop import Jitter, Loss, Search, ascend
from smoothrl.attacks.objectives import Aim, Objective
from smoothrl.attacks.pullback import forward
from smoothrl.noise import Noise

Start = Literal["zero", "sign", "uniform"]
AT_ONCE = 1 << 15
"""A row's normal numbers of one `perturb` are drawn together while they are at most this many."""


class Supply:
    """Standard normal numbers (rows, count, *shape) from the episodes' streams, in as few draws as fit.

    Whether they are drawn together depends on one row's size alone, so a row's numbers do not depend on the
    company.
    """

    def __init__(self, noise: Noise, index: Sequence[int], observations: Tensor, total: int) -> None:
        self.noise, self.index, self.like = noise, index, observations
        self.stock = self._draw(total) if 0 < total * observations[0].numel() <= AT_ONCE else None
        self.used = 0

    def _draw(self, count: int) -> Tensor:
        return self.noise.normal(self.index, count, self.like.shape[1:]).to(self.like.device)

    def take(self, count: int) -> Tensor:
        if self.stock is None:
            return self._draw(count)
        self.used += count
        return self.stock[:, self.used - count : self.used]


class View:
    """The agent as the attack sees it: its outputs in iteration i, (rows, draws, outputs).

    Without smoothing that is the network itself. With smoothing each iteration has fresh noisy copies of its
    own, the same for all restarts; `reference` is the clean decision under the same noise.
    """

    def __init__(
        self, agent: Agent, observations: Tensor, supply: Supply, plan: Search, smoothed: bool
    ) -> None:
        self.agent, self.observations, self.supply, self.plan = agent, observations, supply, plan
        self.smoothed, self.calls = smoothed, plan.steps + 2
        self.stock: Tensor | None = None
        if smoothed and supply.stock is not None:
            z = supply.take(plan.draws * self.calls) * agent.smoothing.sigma
            self.stock = z.view(z.shape[0], self.calls, plan.draws, *z.shape[2:])
        self._references: Tensor | None = None

    def noise_of(self, i: int) -> Tensor | None:
        """The smoothing noise (b, draws, ...) of iteration i."""
        if not self.smoothed:
            return None
        if self.stock is not None:
            return self.stock[:, i]
        return self.supply.take(self.plan.draws).mul_(self.agent.smoothing.sigma)

    def outputs(self, x: Tensor, z: Tensor | None) -> Tensor:
        """Outputs at x (rows, ...), with the noise z of one observation shared by its restarts."""
        if z is None:
            return forward(self.agent, x).unsqueeze(1)
        noisy = (x.view(-1, *z.shape[:1], 1, *z.shape[2:]) + z).flatten(0, 2)
        return forward(self.agent, noisy).view(x.shape[0], z.shape[1], -1)

    @torch.no_grad()
    def reference(self, i: int, z: Tensor | None) -> Tensor:
        """The clean decision (restarts b, outputs) under the noise of iteration i."""
        if z is not None and self.stock is None:
            return tile(self.outputs(self.observations, z).mean(1), self.plan.restarts)
        if self._references is None:
            flat = None if self.stock is None else self.stock.flatten(1, 2)
            outputs = self.outputs(self.observations, flat)
            steps = 1 if self.stock is None else self.calls
            merged = outputs.view(outputs.shape[0], steps, -1, outputs.shape[-1]).mean(2)
            self._references = tile(merged, self.plan.restarts)
        return self._references[:, 0 if z is None else i]


class GradientAttack(Attack):
    """Ascends one objective of the agent's outputs, at each step of the episode anew."""

    def __init__(
        self,
        agent: Agent,
        budget: Budget,
        objective: Objective,
        search: Search,
        *,
        name: str,
        smoothed: bool = False,
        start: Start = "zero",
        injected: bool = False,
    ) -> None:
        """`smoothed`: differentiate through noisy copies; `injected`: MAD's noise on the gradient."""
        super().__init__(agent, budget)
        self.name, self.objective, self.plan = name, objective, search
        self.smoothed = smoothed and agent.smoothing.kind != "none"
        self.start, self.injected = start, injected

    def describe(self) -> dict[str, Any]:
        return super().describe() | asdict(self.plan) | {"through_smoothing": self.smoothed}

    def aim(self, observations: Tensor, index: Sequence[int], noise: Noise) -> Aim:
        """What the outputs are compared with, one row a restart; the loop fills in the reference."""
        return tiled(Aim(observations), self.plan.restarts)

    def score(self, outputs: Tensor, aim: Aim) -> Tensor:
        """By what the best restart is chosen, on draws of its own."""
        return self.objective(outputs, aim)

    def search(self, observations: Tensor, index: Sequence[int], noise: Noise, step: int) -> Tensor:
        plan = self.plan
        supply = Supply(noise, index, observations, self._needed())
        view = View(self.agent, observations, supply, plan, self.smoothed)
        aim = self.aim(observations, index, noise)

        def judged(x: Tensor, i: int, by: Objective) -> Tensor:
            z = view.noise_of(i)
            compared = replace(aim, reference=view.reference(i, z)) if self.needs_reference else aim
            return by(view.outputs(x, z), compared)

        loss: Loss = partial(judged, by=self.objective)
        starts = self._starts(observations, supply)
        jitter = self._jitter(supply) if self.injected else None
        found = ascend(loss, aim.clean, starts, self.budget, plan, jitter, self.health)
        if plan.restarts == 1:
            return found
        with torch.no_grad():
            best = first_of_the_best(
                judged(found, plan.steps + 1, self.score).view(plan.restarts, -1), plan.tie
            )
        return found.view(plan.restarts, *observations.shape)[
            best, torch.arange(len(best), device=best.device)
        ]

    @property
    def needs_reference(self) -> bool:
        """Whether the objective compares with the clean outputs (policies) or with a clean action (Q)."""
        return not self.agent.discrete

    @property
    def _random_starts(self) -> int:
        return self.plan.restarts - 1 if self.start == "zero" else self.plan.restarts

    def _needed(self) -> int:
        """Normal numbers of one observation's size that one search takes."""
        smoothing = self.plan.draws * (self.plan.steps + 2) if self.smoothed else 0
        return self._random_starts + (self.plan.steps if self.injected else 0) + smoothing

    def _start_size(self) -> float:
        """How far random starts lie from the clean observation."""
        return self.plan.size(self.budget.epsilon)

    def _starts(self, observations: Tensor, supply: Supply) -> Tensor:
        """Starting points of all restarts; the first of a `zero` start is the clean observation."""
        clean, random = tile(observations, self.plan.restarts), self._random_starts
        if random == 0:
            return clean
        normal = supply.take(random).transpose(0, 1).flatten(0, 1)
        size = self._start_size()
        if self.start == "uniform":
            offset = size * (2.0 * torch.special.ndtr(normal) - 1.0)
        else:
            offset = size * self.budget.direction(normal)
        fixed = clean[: clean.shape[0] - offset.shape[0]]
        return self.budget.project(clean, torch.cat([fixed, clean[fixed.shape[0] :] + offset]))

    def _jitter(self, supply: Supply) -> Jitter:
        """MAD's injected noise, sqrt(2 step) / (i + 2) N(0, 1), whatever the size of the gradient."""
        normal = supply.take(self.plan.steps)
        scale = math.sqrt(2.0 * self.plan.size(self.budget.epsilon))
        return lambda i: tile(normal[:, i], self.plan.restarts) * (scale / (i + 2))


def first_of_the_best(values: Tensor, tie: float) -> Tensor:
    """For each column the first row that is at most the share `tie` below the largest."""
    top = values.amax(0)
    return (values >= top - tie * top.abs()).int().argmax(0)


def tile(x: Tensor, restarts: int) -> Tensor:
    """The rows once for each restart, restarts outermost."""
    return x if restarts == 1 else x.repeat(restarts, *([1] * (x.dim() - 1)))


def tiled(aim: Aim, restarts: int) -> Aim:
    """The aim of all restarts."""
    parts = {f.name: getattr(aim, f.name) for f in fields(aim)}
    return replace(aim, **{k: tile(v, restarts) for k, v in parts.items() if v is not None})


class QAttack(GradientAttack):
    """Gradient attacks on Q-agents: away from the deployed agent's action, or towards a bad one.

    With `targets`, restart r >= 1 aims at the r-th worst action by clean value, and the restart is kept whose
    decision costs most of that value; with `targeted`, the one aim is the worst action.
    """

    targets = False
    targeted = False

    def aim(self, observations: Tensor, index: Sequence[int], noise: Noise) -> Aim:
        outputs = self.agent.outputs(observations, noise, index)
        action, values = self.agent.decide(outputs), outputs.mean(1)
        rows, restarts = observations.shape[0], self.plan.restarts
        aim = tiled(Aim(observations, action=action, values=values), restarts)
        if self.targeted:
            return replace(aim, target=tile(values.argmin(-1), restarts))
        if not self.targets or restarts == 1:
            return aim
        worst = values.argsort(-1)[:, : restarts - 1]
        worst = worst[:, torch.arange(restarts - 1, device=worst.device) % worst.shape[1]]
        target = torch.cat([torch.full((rows,), -1, device=worst.device), worst.T.flatten()])
        return replace(aim, target=target)

    def score(self, outputs: Tensor, aim: Aim) -> Tensor:
        """Minus the clean value of the action that the perturbed decision takes; ties by the objective."""
        assert aim.values is not None
        decision = self.agent.decide(outputs)
        lost = -aim.values.gather(-1, decision.unsqueeze(-1)).squeeze(-1)
        spread = (aim.values.amax(-1) - aim.values.amin(-1)).clamp_min(1e-12)
        return lost / spread + 1e-3 * torch.tanh(self.objective(outputs, aim))
