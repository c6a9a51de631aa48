"""The losses of the Q-learners: pure functions on tensors, each under its equation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, smooth_l1_loss


def chosen(q: Tensor, actions: Tensor) -> Tensor:
    """Q(s, a) of the actions taken: (b, A), (b,) -> (b,)."""
    return q.gather(1, actions.unsqueeze(1)).squeeze(1)


def td_target(returns: Tensor, discounts: Tensor, target_q: Tensor, online_q: Tensor | None = None) -> Tensor:
    """y = R + gamma^n Q_target(s', a'), a' = argmax of the online (Double DQN) or the target network."""
    greedy = (target_q if online_q is None else online_q).argmax(dim=1)
    return returns + discounts * chosen(target_q, greedy)


def huber_td(q: Tensor, actions: Tensor, target: Tensor) -> Tensor:
    """SmoothL1(Q(s, a) - y) of each row (beta = 1)."""
    return smooth_l1_loss(chosen(q, actions), target, reduction="none")


def advantages_apart(q: Tensor, where: Tensor) -> Tensor:
    """E_a (A - A_0)^2 of each row, A = Q - E_a Q: how far `q` is from the advantages of the constant `where`.

    The greedy action depends on the advantages alone, and they are small beside the value.
    """
    difference = q - where.detach()
    return (difference - difference.mean(dim=1, keepdim=True)).square().mean(dim=1)


def min_square_abs(difference: Tensor) -> Tensor:
    """min(d^2, |d|), RADIAL's loss of a difference."""
    size = difference.abs()
    return torch.minimum(size.square(), size)


def sa_hinge(lower_margins: Tensor, actions: Tensor, c: float = 1.0) -> Tensor:
    """SA-DQN: -min(min_{a != a*} LB[Q(s', a*) - Q(s', a)], c) of each row, a* = `actions`, s' in the ball."""
    own = torch.nn.functional.one_hot(actions, lower_margins.shape[1]).bool()
    worst = lower_margins.masked_fill(own, float("inf")).amin(dim=1)
    return -worst.clamp(max=c)


def radial_overlap(q: Tensor, actions: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """RADIAL's second approach: sum_y D_y max(0, ub_y - lb_a + D_y / 2), D_y = max(0, Q(s, a) - Q(s, y)).

    The gaps D are constants: the loss narrows the bounds, the TD loss moves the values.
    """
    gaps = (chosen(q, actions).unsqueeze(1) - q).clamp(min=0.0).detach()
    overlap = (upper - chosen(lower, actions).unsqueeze(1) + gaps / 2.0).clamp(min=0.0)
    return (gaps * overlap).sum(dim=1)


def radial_bounds_to_target(q: Tensor, actions: Tensor, y: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """RADIAL's first approach: sum_y min(d^2, d), d the distance of the farther bound from its target.

    The target is the TD target for the action taken and Q(s, y) for the others.
    """
    target = q.detach().scatter(1, actions.unsqueeze(1), y.unsqueeze(1))
    farther = torch.maximum((upper - target).abs(), (lower - target).abs())
    return min_square_abs(farther).sum(dim=1)


def worst_target(returns: Tensor, discounts: Tensor, worst_q: Tensor, possible: Tensor) -> Tensor:
    """WocaR: y = R + gamma^n min over a' in A_adv(s') of W(s', a'), A_adv what an attack can bring about."""
    reachable = worst_q.masked_fill(~possible, float("inf")).amin(dim=1)
    return returns + discounts * reachable


def reachable_actions(lower: Tensor, upper: Tensor) -> Tensor:
    """A_adv: actions whose upper bound reaches above every lower bound: (b, A) truth values."""
    return upper >= lower.amax(dim=1, keepdim=True)


def smoothed_ramp(progress: float, start: float, end: float, height: float, bend: float = 0.25) -> float:
    """0 before `start`, a quartic over the first `bend` of the ramp, then a line, `height` from `end` on."""
    if progress <= start:
        return 0.0
    t = min(1.0, (progress - start) / (end - start))
    scale = height / (bend**4 + 4.0 * bend**3 * (1.0 - bend))
    return scale * (t**4 if t < bend else bend**4 + 4.0 * bend**3 * (t - bend))


def s_dqn(
    td: Tensor,
    weights: Tensor,
    denoised: Tensor,
    clean: Tensor,
    lambda_r: float,
    lambda_td: float,
    summed: bool,
) -> tuple[Tensor, Tensor]:
    """L = lambda_1 MSE(D(s + z), s) + lambda_2 mean_i w_i Huber(r + gamma max Q(s') - Q(D(s + z), a)).

    `summed`: the released code's sum over batch and pixels in place of the mean. Also returns the plain MSE.
    """
    squares = (denoised - clean).square()
    mse = squares.mean()
    reconstruction = squares.sum() if summed else mse
    return lambda_r * reconstruction + lambda_td * weighted_mean(td, weights), mse.detach()


def s_pgd_objective(q: Tensor, actions: Tensor) -> Tensor:
    """S-PGD's objective at one noise draw: cross-entropy of softmax Q(D(s + z)) against the clean action."""
    return cross_entropy(q, actions)


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """mean_i w_i l_i: importance weights over the whole batch size, not over their sum."""
    return torch.dot(losses, weights) / losses.shape[0]
