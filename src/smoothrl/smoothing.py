"""From the sampled outputs of a network to the smoothed one. Pure functions on (batch, samples, outputs)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["none", "mean", "vote", "median"]


def vote_counts(outputs: Tensor) -> Tensor:
    """How many of the samples prefer each action: the m-sample estimate of m Q~(s, a), Eq. (11)."""
    actions = outputs.argmax(dim=-1)
    counts = torch.zeros(outputs.shape[0], outputs.shape[-1], dtype=torch.int64, device=outputs.device)
    return counts.scatter_add_(1, actions, torch.ones_like(actions))


def vote(outputs: Tensor) -> Tensor:
    """Hard randomized smoothing: the action most samples prefer (the first one at a tie)."""
    return vote_counts(outputs).argmax(dim=-1)


def mean(outputs: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """Mean smoothing (CROP); clipping each sample to [low, high] is what makes its certificate valid."""
    if low is not None or high is not None:
        outputs = outputs.clamp(low, high)
    return outputs.mean(dim=1)


def median_rank(samples: int) -> int:
    """The 1-based rank of the lower median."""
    return (samples + 1) // 2


def median(outputs: Tensor, rank: int | None = None) -> Tensor:
    """Median smoothing coordinate by coordinate, Eq. (13) at p = 1/2: the lower median, an order statistic.

    The gradient goes to the one selected sample of each coordinate.
    """
    k = median_rank(outputs.shape[1]) if rank is None else rank
    if outputs.shape[1] == 1:
        return outputs[:, 0]
    if outputs.requires_grad or outputs.device.type != "cpu":
        return torch.kthvalue(outputs, k, dim=1).values
    last = outputs.transpose(1, 2).contiguous().numpy()
    last.sort(axis=-1)
    return torch.from_numpy(last[..., k - 1].copy())
