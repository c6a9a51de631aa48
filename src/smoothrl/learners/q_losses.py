"""The losses of the Q-learners: pure functions on tensors, each under its equation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss


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


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """mean_i w_i l_i: importance weights over the whole batch size, not over their sum."""
    return torch.dot(losses, weights) / losses.shape[0]
