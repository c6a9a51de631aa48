"""The budget of an attack: a norm, its size, and the range of valid observations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from smoothrl.agents import Agent
from smoothrl.errors import UserError, unknown

Norm = Literal["linf", "l2"]
NORMS: tuple[str, ...] = get_args(Norm)
TOLERANCE = 1e-6
"""How far a perturbation may exceed the budget before it counts as outside."""


@dataclass(frozen=True)
class Budget:
    """What one observation may be moved by."""

    epsilon: float
    """Size, in units of the normalised observation (images: of [0, 1])."""
    norm: Norm = "linf"
    """linf: every coordinate; l2: the Euclidean length of one observation's perturbation."""
    valid: tuple[float, float] | None = None
    """Range that perturbed observations must keep, where there is one."""

    def size(self, delta: Tensor) -> Tensor:
        """The norm of each row, in float64."""
        flat = delta.double().flatten(1)
        return flat.abs().amax(1) if self.norm == "linf" else torch.linalg.vector_norm(flat, dim=1)

    def project(self, clean: Tensor, perturbed: Tensor) -> Tensor:
        """The nearest observation within the ball, then within the valid range."""
        delta = perturbed - clean
        if self.norm == "linf":
            kept = clean + delta.clamp_(-self.epsilon, self.epsilon)
        else:
            length = _length(delta)
            kept = clean + delta * (self.epsilon / length.clamp_min(1e-30)).clamp_max(1.0)
        return kept if self.valid is None else kept.clamp_(*self.valid)

    def direction(self, gradient: Tensor) -> Tensor:
        """The steepest direction of unit size: the sign (linf) or the normalised gradient (l2)."""
        if self.norm == "linf":
            return gradient.sign()
        return gradient / _length(gradient).clamp_min(1e-30)

    def settle(self, clean: Tensor, perturbed: Tensor) -> Tensor:
        """Projected, and rounded towards the clean observation where float32 would step over the budget."""
        kept = self.project(clean, perturbed.clone())
        exact = kept.double() - clean.double()
        if self.norm == "linf":
            over = exact.abs() > self.epsilon
        else:
            over = (self.size(exact) > self.epsilon).view(-1, *([1] * (clean.dim() - 1)))
        return torch.where(over, torch.nextafter(kept, clean), kept)

    def excess(self, clean: Tensor, perturbed: Tensor) -> float:
        """How far the worst row lies outside the budget or the valid range (0: inside)."""
        beyond = float((self.size(perturbed.double() - clean.double()) - self.epsilon).max())
        if self.valid is not None:
            low, high = self.valid
            beyond = max(beyond, float(low - perturbed.min()), float(perturbed.max() - high))
        return max(beyond, 0.0) if math.isfinite(beyond) else math.inf

    def random(self, clean: Tensor, normal: Tensor) -> Tensor:
        """A random point on the budget's edge: a corner of the box, or a direction of the sphere."""
        return clean + self.epsilon * self.direction(normal)


def _length(x: Tensor) -> Tensor:
    """The Euclidean length of each row, shaped to multiply x."""
    norm: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return norm.view(-1, *([1] * (x.dim() - 1)))


def scale_of(agent: Agent) -> str:
    """The observation's scale in words, for messages about epsilon."""
    if agent.normaliser.bounds is not None:
        low, high = agent.normaliser.bounds
        return f"this agent's observations are images in [{low:g}, {high:g}] units"
    if agent.normaliser.kind == "moments":
        clip = agent.normaliser.clip
        within = "" if clip is None else f", clipped to [-{clip:g}, {clip:g}]"
        return f"this agent's observations are normalised to standard deviation 1{within}"
    return "this agent sees raw observations, unnormalised"


def make_budget(agent: Agent, epsilon: float, norm: str = "linf", *, clamp: bool = True) -> Budget:
    """A budget that makes sense for the agent; nonsense is refused with the scale in the message."""
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    if not math.isfinite(epsilon) or epsilon < 0.0:
        raise UserError(
            f"epsilon must be a finite number of at least 0, got {epsilon}; {scale_of(agent)}, "
            "and epsilon is in the same units (the paper takes 0.075 for MuJoCo, 0.01 to 0.05 for Atari)"
        )
    limit = _absurd(agent, norm)
    if limit is not None and epsilon > limit:
        raise UserError(
            f"epsilon {epsilon:g} ({norm}) would reach every observation there is: {scale_of(agent)}; "
            f"take one below {limit:g} (the paper takes 0.075 for MuJoCo, 0.01 to 0.05 for Atari)"
        )
    return Budget(
        float(epsilon), "l2" if norm == "l2" else "linf", agent.normaliser.bounds if clamp else None
    )


def _absurd(agent: Agent, norm: str) -> float | None:
    """The budget at which any observation can be turned into any other, or as good as any."""
    if agent.normaliser.bounds is not None:
        low, high = agent.normaliser.bounds
        reach = high - low
    elif agent.normaliser.kind == "moments" and agent.normaliser.clip is not None:
        reach = agent.normaliser.clip
    else:
        return None
    return reach * math.sqrt(math.prod(agent.info.observation_shape)) if norm == "l2" else reach
