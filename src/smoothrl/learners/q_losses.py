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
