"""The formulas of PPO as pure functions on pools: batches are (P, B), losses (P,), one number a member."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Double = npt.NDArray[np.float64]
_LOG_2PI = math.log(2.0 * math.pi)


def log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """log N(actions; mean, exp(log_std)^2), summed over coordinates: (P, B)."""
    z = (actions - mean) * torch.exp(-log_std)
    constant = 0.5 * _LOG_2PI * actions.shape[-1]
    return (z * z).sum(-1).mul(-0.5) - (log_std.sum(-1) + constant)


def entropy(log_std: Tensor) -> Tensor:
    """Entropy of the Gaussian, (P,)."""
    return (log_std + 0.5 * (1.0 + _LOG_2PI)).sum((-1, -2))


def scaled_distance(a: Tensor, b: Tensor, log_std: Tensor) -> Tensor:
    """sum_j ((a - b)_j / std_j)^2, (P, B): twice the KL of Gaussians with these means and one covariance."""
    return ((a - b) * torch.exp(-log_std)).square().sum(-1)


def normalise(advantages: Tensor) -> Tensor:
    """Each member's minibatch to mean 0, standard deviation 1."""
    std, mean = torch.std_mean(advantages, dim=1, keepdim=True)
    return (advantages - mean) / (std + 1e-8)


def surrogate(ratio: Tensor, advantages: Tensor, clip: Tensor) -> Tensor:
    """min(r A, clip(r, 1 - c, 1 + c) A), Eq. (14): elementwise, to be maximised. clip (P, 1)."""
    return torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages)


def value_loss(
    values: Tensor, old: Tensor, targets: Tensor, keep: Tensor | None, clip: float | None
) -> Tensor:
    """Mean of (V - target)^2, the worse of clipped and unclipped where `clip` is given; over rows kept."""
    error = (values - targets).square()
    if clip is not None:
        error = torch.maximum(error, (old + (values - old).clamp(-clip, clip) - targets).square())
    if keep is None:
        return error.mean(1)
    return (error * keep).sum(1) / keep.sum(1).clamp(min=1.0)


def advantages(
    rewards: Double,
    values: Double,
    next_values: Double,
    ends: npt.NDArray[np.bool_],
    gamma: float,
    lam: float,
) -> Double:
    """Generalised advantage estimation along axis 0, all arrays (T, ...).

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t);  A_t = delta_t + gamma lambda A_{t+1}, cut at episode ends.
    `next_values` says what stands for V(s_{t+1}): zero where nothing follows.
    """
    delta = rewards + gamma * next_values - values
    decay = gamma * lam * ~ends
    out = np.empty_like(delta)
    carry = np.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        carry = delta[t] + decay[t] * carry
        out[t] = carry
    return out
