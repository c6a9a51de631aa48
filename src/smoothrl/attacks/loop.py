"""The one projected-gradient loop of the project: loss x norm x step rule x noise draws x restarts.

Rows are independent: each is one observation (of one restart), and `loss(x, i)` gives one number a row to be
maximised. A stochastic loss draws its own noise for iteration i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from smoothrl.attacks.budget import Budget

Rule = Literal["fixed", "decay", "adaptive"]
Loss = Callable[[Tensor, int], Tensor]
Jitter = Callable[[int], Tensor]


@dataclass(frozen=True)
class Search:
    """How the loop searches."""

    steps: int = 10
    """Gradient steps."""
    rule: Rule = "fixed"
    """fixed: the same step always; decay: linearly to zero; adaptive: halved where progress stops (APGD)."""
    first_step: float | None = None
    """Size of the first step as a part of epsilon; 1/steps where not given."""
    draws: int = 1
    """Noise draws averaged in each gradient (EOT); only for a smoothed decision."""
    restarts: int = 1
    """Starting points; the best result of each row is kept."""
    tie: float = 0.0
    """Restarts within this share of the best count as equal, and the first, a random one, is kept."""
    keep_best: bool = False
    """Return the best iterate instead of the last one."""

    def size(self, epsilon: float) -> float:
        return epsilon * (1.0 / self.steps if self.first_step is None else self.first_step)


@dataclass
class GradientHealth:
    """What the gradients looked like: evidence for or against masked gradients."""

    rows: int = 0
    """Gradient rows seen."""
    zero: int = 0
    """Rows whose gradient was exactly zero."""
    broken: int = 0
    """Rows with a gradient that is not finite."""

    def see(self, gradient: Tensor) -> Tensor:
        """Count, and replace what is not finite by zero."""
        largest = torch.linalg.vector_norm(gradient.flatten(1), torch.inf, dim=1).cpu().numpy()
        self.rows += len(largest)
        self.zero += int(np.count_nonzero(largest == 0.0))
        bad = int(np.count_nonzero(~np.isfinite(largest)))
        self.broken += bad
        return torch.nan_to_num(gradient, 0.0, 0.0, 0.0) if bad else gradient


@dataclass
class _Best:
    """The best point of each row so far, and the gradient there."""

    x: Tensor
    value: Tensor
    gradient: Tensor

    @classmethod
    def at(cls, x: Tensor) -> _Best:
        return cls(x, torch.full((x.shape[0],), -torch.inf, device=x.device), torch.zeros_like(x))

    def offer(self, x: Tensor, value: Tensor, gradient: Tensor | None = None) -> None:
        improved = value > self.value
        wide = _wide(improved, x)
        self.value = torch.where(improved, value, self.value)
        self.x = torch.where(wide, x, self.x)
        if gradient is not None:
            self.gradient = torch.where(wide, gradient, self.gradient)


def ascend(
    loss: Loss,
    clean: Tensor,
    start: Tensor,
    budget: Budget,
    search: Search,
    jitter: Jitter | None = None,
    health: GradientHealth | None = None,
) -> Tensor:
    """The last iterate, or the best one, of projected gradient ascent on every row."""
    if search.rule == "adaptive":
        return _adaptive(loss, clean, start, budget, search, health)
    x = start
    best = _Best.at(x) if search.keep_best else None
    size = search.size(budget.epsilon)
    for i in range(search.steps):
        value, gradient = value_and_gradient(loss, x, i, health)
        if best is not None:
            best.offer(x, value)
        if jitter is not None:
            gradient = gradient + jitter(i)
        step = size * (1.0 - i / search.steps) if search.rule == "decay" else size
        x = budget.project(clean, x + step * budget.direction(gradient))
    if best is None:
        return x
    with torch.no_grad():
        best.offer(x, loss(x, search.steps))
    return best.x


def value_and_gradient(
    loss: Loss, x: Tensor, i: int, health: GradientHealth | None = None
) -> tuple[Tensor, Tensor]:
    """The loss of every row and its gradient."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_(True)
        value = loss(leaf, i)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient if health is None else health.see(gradient)


def _adaptive(
    loss: Loss,
    clean: Tensor,
    start: Tensor,
    budget: Budget,
    search: Search,
    health: GradientHealth | None,
    momentum: float = 0.75,
) -> Tensor:
    """APGD: momentum, and a step that is halved (back at the best point) where a row stops improving."""
    rows = start.shape[0]
    size = torch.full(
        (rows,), 2.0 * budget.epsilon if search.first_step is None else search.size(budget.epsilon)
    )
    size = size.to(start.device)
    best = _Best.at(start)
    x, previous = start, start
    gains = torch.zeros(rows, device=start.device)
    last_value = best.value
    value_then, size_then = best.value, size
    window, marks = 0, _checkpoints(search.steps)
    for i in range(search.steps):
        value, gradient = value_and_gradient(loss, x, i, health)
        best.offer(x, value, gradient)
        gains += value > last_value
        last_value = value
        window += 1
        if i in marks:
            stuck = gains < 0.75 * window
            stuck |= (size == size_then) & (best.value <= value_then)
            size_then, value_then = size, best.value
            size = torch.where(stuck, size / 2, size)
            back = _wide(stuck, x)
            x, gradient = torch.where(back, best.x, x), torch.where(back, best.gradient, gradient)
            gains.zero_()
            window = 0
        ahead = budget.project(clean, x + _wide(size, x) * budget.direction(gradient))
        if i > 0:
            ahead = budget.project(clean, x + momentum * (ahead - x) + (1 - momentum) * (x - previous))
        x, previous = ahead, x
    with torch.no_grad():
        best.offer(x, loss(x, search.steps))
    return best.x if search.keep_best else x


def _checkpoints(steps: int) -> set[int]:
    """Where progress is judged: gaps of 22 % of the steps, 3 % shorter each time, at least 6 %."""
    marks, at, gap = set(), 0.0, 0.22
    while at + gap < 1.0:
        at += gap
        marks.add(int(at * steps))
        gap = max(gap - 0.03, 0.06)
    return marks - {0}


def _wide(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *([1] * (like.dim() - 1)))
