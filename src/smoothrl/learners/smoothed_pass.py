"""The median of a pool's outputs over noisy inputs, as one autograd node: Eq. (13) at p = 1/2.

All noisy copies are ranked by a forward pass; the gradient reaches only the copy selected for a coordinate,
so only the selected ones go backward, which is exact. Each member goes through one set of buffers that stay
in the core's cache, a column for each copy: a bias is the last row of its weights, the buffers end in a row
of ones, and no pass is spent on transposing or on adding biases.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smoothrl.smoothing import median_rank

Float = npt.NDArray[np.float32]
Sizes: TypeAlias = tuple[int, ...]


class SmoothedPass(torch.autograd.Function):
    """(theta (P, parameters), x (P, B, n), noise (P, B, m, n)) -> medians (P, B, A)."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, x: Tensor, noise: Tensor, sizes: Sizes) -> Tensor:
        ctx.theta, ctx.sizes = theta.detach().numpy(), sizes
        median, ctx.saved = rank(ctx.theta, sizes, x.detach().numpy(), noise.numpy())
        return torch.from_numpy(median)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        want_theta, want_x = ctx.needs_input_grad[:2]
        to_theta = np.empty_like(ctx.theta) if want_theta else None
        to_x = back(ctx.theta, ctx.sizes, ctx.saved, grads[0].numpy(), to_theta, want_x)
        return (
            None if to_theta is None else torch.from_numpy(to_theta),
            None if to_x is None else torch.from_numpy(to_x),
            None,
            None,
        )


def with_biases(theta: Float, sizes: Sizes) -> list[Float]:
    """One member's weights (in + 1, out), the bias as the last row: views of its flat parameters."""
    found, start = [], 0
    for a, b in itertools.pairwise(sizes):
        found.append(theta[start : start + (a + 1) * b].reshape(a + 1, b))
        start += (a + 1) * b
    return found


def rank(theta: Float, sizes: Sizes, x: Float, noise: Float) -> tuple[Float, list[Float]]:
    """Lower medians (P, B, A), and the inputs (P, width + 1, A B) of every layer at the selected copies."""
    pool, batch, samples, size = noise.shape
    actions, copies, k = sizes[-1], batch * samples, median_rank(samples)
    inputs = [_ended_by_ones(width, copies) for width in sizes[:-1]]
    sums = [np.empty((width, copies), np.float32) for width in sizes[1:]]
    median = np.empty((pool, batch, actions), np.float32)
    saved = [np.empty((pool, width + 1, actions * batch), np.float32) for width in sizes[:-1]]
    first = np.arange(batch) * samples
    noisy, outputs = inputs[0][:-1].reshape(size, batch, samples), sums[-1].reshape(actions, batch, samples)
    for i in range(pool):
        np.add(x[i].T[:, :, None], noise[i].transpose(2, 0, 1), out=noisy)
        for j, weight in enumerate(with_biases(theta[i], sizes)):
            np.matmul(weight.T, inputs[j], out=sums[j])
            if j + 1 < len(inputs):
                np.tanh(sums[j], out=inputs[j + 1][:-1])
        found = np.sort(outputs, axis=-1)[:, :, k - 1]
        chosen = (outputs == found[:, :, None]).argmax(axis=-1) + first
        median[i] = found.T
        for kept, values in zip(saved, inputs, strict=True):
            np.take(values, chosen.reshape(-1), axis=1, out=kept[i], mode="clip")
    return median, saved


def back(
    theta: Float, sizes: Sizes, saved: Sequence[Float], grad: Float, to_theta: Float | None, want_x: bool
) -> Float | None:
    """The gradients of theta, into `to_theta`, and of x. A selected copy feels one coordinate's gradient."""
    pool, batch, actions = grad.shape
    to_x = np.empty((pool, batch, sizes[0]), np.float32) if want_x else None
    for i in range(pool):
        weights = with_biases(theta[i], sizes)
        wanted = None if to_theta is None else with_biases(to_theta[i], sizes)
        apart = np.zeros((actions, actions, batch), np.float32)
        apart[np.arange(actions), np.arange(actions)] = grad[i].T
        flow: Float = apart.reshape(actions, -1)
        for j in range(len(weights) - 1, -1, -1):
            if wanted is not None:
                np.matmul(saved[j][i], flow.T, out=wanted[j])
            if j == 0 and to_x is None:
                break
            flow = weights[j][:-1] @ flow
            if j > 0:
                slope = saved[j][i, :-1] ** 2
                slope *= flow
                flow -= slope
        if to_x is not None:
            to_x[i] = flow.reshape(-1, actions, batch).sum(axis=1).T
    return to_x


def _ended_by_ones(width: int, columns: int) -> Float:
    found = np.empty((width + 1, columns), np.float32)
    found[-1] = 1.0
    return found
