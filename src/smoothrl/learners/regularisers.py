"""The policy loss of every method. Each defence reads as the diff of its loss to `ppo`.

Functions take the pool's policy, the means inside the ratio (smoothed for `s-` methods), a minibatch and the
moment of training, and give one number a member, (P,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol as HasProtocol

import torch
from torch import Tensor

from smoothrl import bounds
from smoothrl.learners import losses, schedules
from smoothrl.learners.actor_critic import Batch, Rates, draw, generators
from smoothrl.learners.methods import Method
from smoothrl.learners.pools import PoolNet, PoolPolicy
from smoothrl.learners.presets import PPOConfig
from smoothrl.protocols import Protocol

SGLD_HEAT = 1e-5
"""beta of the Langevin search: the inverse of how much noise it takes."""
LARGEST_LOG_RATIO = 20.0
"""Ratios beyond exp of this are held there: they carry no gradient and cannot overflow."""
RADIAL_MIX = 0.5
"""RADIAL: share of the worst-case surrogate."""
RADIAL_FIXED = (499, 1000)
"""RADIAL as released: the ramp's first iteration and length, in iterations."""


class HasRates(HasProtocol):
    """All that PPO's own loss reads of the moment."""

    @property
    def rates(self) -> Rates: ...


@dataclass(frozen=True)
class Moment:
    """What a loss may depend on besides policy and data."""

    config: PPOConfig
    switches: Protocol
    rates: Rates
    epsilon: float
    mix: float
    """Progress of the epsilon ramp in [0, 1] (convex: share of IBP in the bound)."""
    sources: Sequence[torch.Generator]
    worst: WorstCase | None = None


def ppo(policy: PoolPolicy, mean: Tensor, batch: Batch, now: HasRates) -> Tensor:
    """L = -E[min(r A, clip(r, 1 - c, 1 + c) A)] - entropy bonus, Eq. (14); A normalised in the minibatch.

    For S-PPO `mean` is the smoothed one of Eq. (13): r is then the ratio of smoothed policies.
    """
    return _surrogate_loss(policy, mean, batch, losses.normalise(batch.advantages), now.rates)


def sgld(policy: PoolPolicy, mean: Tensor, batch: Batch, now: Moment) -> Tensor:
    """SA-PPO: L_PPO + w E[|| (mu(s') - mu_0) / std ||^2], s' the worst state in the ball as SGLD finds it."""
    anchor = _anchor(policy, mean, batch, now)
    nearby = langevin(policy, anchor, batch.states, now)
    distance = losses.scaled_distance(policy.mean(nearby), anchor, policy.log_std)
    return ppo(policy, mean, batch, now) + now.config.robust_weight * distance.mean(1)


def convex(policy: PoolPolicy, mean: Tensor, batch: Batch, now: Moment) -> Tensor:
    """SA-PPO: L_PPO + w E[sum_j max(|ub - mu_0|, |lb - mu_0|)_j^2 / std_j^2] with bounds of mu on the ball.

    The bounds go from CROWN to IBP while epsilon grows.
    """
    anchor = _anchor(policy, mean, batch, now)
    chain, box = policy.mean.chain(), bounds.box(batch.states, now.epsilon)
    low, high = bounds.chain_ibp(chain, *box)
    if now.mix < 1.0:
        low_crown, high_crown = bounds.chain_crown(chain, *box)
        low, high = torch.lerp(low_crown, low, now.mix), torch.lerp(high_crown, high, now.mix)
    furthest = torch.maximum((high - anchor).abs(), (low - anchor).abs())
    distance = losses.scaled_distance(furthest, torch.zeros_like(furthest), policy.log_std)
    return ppo(policy, mean, batch, now) + now.config.robust_weight * distance.mean(1)


def radial(policy: PoolPolicy, mean: Tensor, batch: Batch, now: Moment) -> Tensor:
    """RADIAL: half the clean surrogate, half the worst of it and of those at the bounds of pi(a | s').

    log pi_ub takes each coordinate's nearest point of [lb, ub] to a, log pi_lb the furthest; both ratios are
    taken against the policy that collected. Bounds: IBP of mu on the ball around the state, without noise.
    """
    low, high = bounds.chain_ibp(policy.mean.chain(), *bounds.box(batch.states, now.epsilon))
    nearest = torch.maximum(batch.actions - high, low - batch.actions).clamp(min=0.0)
    furthest = torch.maximum((high - batch.actions).abs(), (low - batch.actions).abs())
    clip, normalised = now.rates.clip[:, None], losses.normalise(batch.advantages)
    bounded = batch.advantages if now.switches.radial_raw_advantages else normalised
    clean = losses.surrogate(_ratio(policy, mean, batch), normalised, clip)
    worst = clean
    for distance in (nearest, furthest):
        log_prob = losses.log_prob(distance, policy.log_std, torch.zeros_like(distance))
        ratio = torch.exp((log_prob - batch.log_probs).clamp(max=LARGEST_LOG_RATIO))
        worst = torch.minimum(worst, losses.surrogate(ratio, bounded, clip))
    mix = RADIAL_MIX if now.epsilon > 0.0 else 0.0
    gain = torch.lerp(clean, worst, mix).mean(1)
    return -gain - now.rates.entropy * losses.entropy(policy.log_std)


def wocar(policy: PoolPolicy, mean: Tensor, batch: Batch, now: Moment) -> Tensor:
    """WocaR: the advantage is norm(A) + w norm(Q_worst(s, a)), w growing in training; plus the SGLD term."""
    assert now.worst is not None
    with torch.no_grad():
        value = now.worst.target(torch.cat([batch.states, batch.actions], dim=-1))[..., 0]
    advantages = losses.normalise(batch.advantages) + now.worst.weight * losses.normalise(value)
    anchor = _anchor(policy, mean, batch, now)
    nearby = langevin(policy, anchor, batch.states, now)
    distance = losses.scaled_distance(policy.mean(nearby), anchor, policy.log_std)
    plain = _surrogate_loss(policy, mean, batch, advantages, now.rates)
    return plain + now.config.robust_weight * distance.mean(1)


# ---------------------------------------------------------------------------------------------- parts


def _ratio(policy: PoolPolicy, mean: Tensor, batch: Batch) -> Tensor:
    log_ratio = losses.log_prob(mean, policy.log_std, batch.actions) - batch.log_probs
    return torch.exp(log_ratio.clamp(max=LARGEST_LOG_RATIO))


def _surrogate_loss(
    policy: PoolPolicy, mean: Tensor, batch: Batch, advantages: Tensor, rates: Rates
) -> Tensor:
    gain = losses.surrogate(_ratio(policy, mean, batch), advantages, rates.clip[:, None]).mean(1)
    return -gain - rates.entropy * losses.entropy(policy.log_std)


def _anchor(policy: PoolPolicy, mean: Tensor, batch: Batch, now: Moment) -> Tensor:
    """mu_0, held fixed: the mean at the state itself, or whatever mean the ratio was made of."""
    if now.switches.sgld_anchor_smoothed:
        return mean.detach()
    return policy.detached().mean(batch.states)


def langevin(policy: PoolPolicy, anchor: Tensor, states: Tensor, now: Moment) -> Tensor:
    """SGLD search for the state in the linf ball whose mean lies furthest from the anchor.

    Signed steps of epsilon / K on J = E[|| (mu(s') - mu_0) / std ||^2] with Langevin noise
    sqrt(2 step beta) / (i + 2); the start is one signed step of pure noise.
    """
    steps = now.config.sgld_steps
    step = now.epsilon / steps
    variance = torch.exp(2.0 * policy.log_std.detach())
    frozen, rows, size = policy.mean.detached(), states.shape[1], states.shape[2]
    low, high = states - now.epsilon, states + now.epsilon

    def cotangent(mean: Tensor) -> Tensor:
        return 2.0 * (mean - anchor) / (variance * rows)

    nearby = states + step * draw(now.sources, rows, size).sign()
    for i in range(steps):
        heat = math.sqrt(2.0 * step * SGLD_HEAT) / (i + 2)
        gradient = frozen.input_gradient(nearby, cotangent)
        nearby = nearby + step * (gradient + heat * draw(now.sources, rows, size)).sign()
        nearby = torch.minimum(torch.maximum(nearby, low), high)
    return nearby


@dataclass
class WorstCase:
    """WocaR's worst-case Q and the weight of its advantage."""

    target: PoolNet
    weight: float


# ---------------------------------------------------------------------------------- choosing the loss


Loss = Callable[[PoolPolicy, Tensor, Batch, Moment], Tensor]
LOSSES: dict[str | None, Loss] = {
    None: ppo,
    "sgld": sgld,
    "convex": convex,
    "radial": radial,
    "wocar": wocar,
}


@dataclass
class PolicyLoss:
    """The method's loss at one iteration; epsilon moves with every minibatch."""

    loss: Loss
    regulariser: str | None
    config: PPOConfig
    switches: Protocol
    rates: Rates
    iteration: int
    sources: Sequence[torch.Generator]
    worst: WorstCase | None = None

    def __call__(self, policy: PoolPolicy, mean: Tensor, batch: Batch, number: int) -> Tensor:
        u = self.progress(number)
        now = Moment(
            self.config,
            self.switches,
            self.rates,
            self.epsilon_at(number),
            schedules.linear(u),
            self.sources,
            self.worst,
        )
        return self.loss(policy, mean, batch, now)

    def progress(self, number: int) -> float:
        """Where the ramp of epsilon is at this minibatch."""
        config = self.config
        moment = self.iteration + number / (config.epochs * config.minibatches)
        if self.regulariser != "radial":
            return schedules.ramp(moment, config.iterations, 0.0, 0.75)
        if self.switches.radial_fixed_schedule:
            start, length = RADIAL_FIXED
            return (moment - start) / length
        return schedules.ramp(moment, config.iterations, 0.25, 0.5)

    def epsilon_at(self, number: int) -> float:
        if self.regulariser is None:
            return 0.0
        return schedules.grown(self.config.growth, self.progress(number), self.config.epsilon)

    @property
    def epsilon(self) -> float:
        """At the end of the iteration."""
        return self.epsilon_at(self.config.epochs * self.config.minibatches - 1)


def policy_loss(
    method: Method,
    config: PPOConfig,
    switches: Protocol,
    rates: Rates,
    iteration: int,
    worst: WorstCase | None = None,
) -> PolicyLoss:
    sources = generators(config.seeds, iteration, "regulariser")
    loss = LOSSES[method.regulariser]
    return PolicyLoss(loss, method.regulariser, config, switches, rates, iteration, sources, worst)
