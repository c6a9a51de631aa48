"""The base network as attacks call it: rows in, outputs out, gradients to the rows alone.

Small tanh or relu MLPs are passed through by hand, without one autograd node a layer: at a few hundred rows
the bookkeeping would cost more than the arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from smoothrl import networks
from smoothrl.agents import Agent
from smoothrl.agents.agent import ROW_TILE

PART_FLOATS = 1 << 17
"""Larger networks take at most this many input numbers at once (18 frames of 84 x 84)."""


class _Chain(torch.autograd.Function):
    """An MLP with one activation as a single node; backward gives the gradient of the input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, *parameters: Tensor) -> Tensor:
        act = networks.ACTIVATIONS[activation]
        kept = []
        for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
            x = act(torch.addmm(bias, x, weight.T))
            kept.append(x)
        ctx.activation, ctx.weights = activation, parameters[::2]
        ctx.save_for_backward(*kept)
        return torch.addmm(parameters[-1], x, parameters[-2].T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g = grads[0]
        for weight, y in zip(reversed(ctx.weights[1:]), reversed(ctx.saved_tensors), strict=True):
            g = g @ weight
            if ctx.activation == "tanh":
                g = torch.ops.aten.tanh_backward(g, y)
            else:
                g = g.mul_(y > 0)
        return g @ ctx.weights[0], None, *([None] * (2 * len(ctx.weights)))


class _Parts(torch.autograd.Function):
    """The network part by part; each part is passed forward again when its gradient is wanted."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, agent: Agent, size: int) -> Tensor:
        ctx.agent, ctx.size = agent, size
        ctx.save_for_backward(rows)
        return torch.cat([forward(agent, part) for part in torch.split(rows, size)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        found = []
        parts = zip(torch.split(rows, ctx.size), torch.split(grads[0], ctx.size), strict=True)
        for part, grad in parts:
            with torch.enable_grad():
                leaf = part.detach().requires_grad_(True)
                out = forward(ctx.agent, leaf)
            found.append(torch.autograd.grad(out, leaf, grad)[0])
        return torch.cat(found), None, None


def forward(agent: Agent, rows: Tensor) -> Tensor:
    """The base network's outputs on rows (n, ...), differentiable in them.

    Whole tiles of rows, as when the agent acts: a row's numbers do not depend on the number of rows.
    """
    count = rows.shape[0]
    padded = max(2 * ROW_TILE, -(-count // ROW_TILE) * ROW_TILE)
    if count < padded and not agent.batch_statistics:
        rows = torch.cat([rows, rows[:1].detach().expand(padded - count, *rows.shape[1:])])
    mlp = plain_mlp(agent.network)
    if mlp is None or rows.dtype != torch.float32:
        return _in_parts(agent, rows)[:count]
    parameters = [p for layer in mlp.layers for p in (layer.weight, layer.bias)]
    return _Chain.apply(rows, mlp.activation, *parameters)[:count]  # type: ignore[no-untyped-call,no-any-return]


def _in_parts(agent: Agent, rows: Tensor) -> Tensor:
    """Large batches in parts that are computed again on the way back: memory does not grow with the batch."""
    size = max(2, PART_FLOATS // max(1, rows[0].numel()) // ROW_TILE) * ROW_TILE
    if rows.shape[0] <= size or agent.batch_statistics:
        return agent.forward(rows)
    return _Parts.apply(rows, agent, size)  # type: ignore[no-untyped-call,no-any-return]


def plain_mlp(network: nn.Module) -> networks.MLP | None:
    """The MLP that the network is, if it is no more than that."""
    if type(network) is networks.GaussianPolicy:
        network = network.mean
    return network if type(network) is networks.MLP and len(network.layers) > 1 else None
