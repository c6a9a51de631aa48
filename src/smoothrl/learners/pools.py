"""A pool of small MLPs whose parameters are one flat row a member, so that one pass and one optimiser step
serve all seeds.

Passes are one autograd node each: at 64 x 64 units the cost of a training step is dispatch, not arithmetic.
Matrix products run member by member inside NumPy, so a member's numbers do not depend on the pool's size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from smoothrl.bounds import Activation, Dense, Layer
from smoothrl.learners.smoothed_pass import SmoothedPass
from smoothrl.networks import MLP, GaussianPolicy, orthogonal
from smoothrl.smoothing import median_rank

Sizes: TypeAlias = tuple[int, ...]
Numbers: TypeAlias = Any
"""A NumPy array on the CPU, a tensor elsewhere: the passes below are written for both."""


def parameter_total(sizes: Sizes) -> int:
    return sum((a + 1) * b for a, b in itertools.pairwise(sizes))


def layers(theta: Numbers, sizes: Sizes) -> list[tuple[Numbers, Numbers]]:
    """(weight (P, in, out), bias (P, 1, out)) of each layer, views of the flat parameters."""
    pool, start, found = theta.shape[0], 0, []
    for a, b in itertools.pairwise(sizes):
        weight = theta[:, start : start + a * b].reshape(pool, a, b)
        bias = theta[:, None, start + a * b : start + (a + 1) * b]
        found.append((weight, bias))
        start += (a + 1) * b
    return found


def split_layers(theta: Tensor, sizes: Sizes) -> list[tuple[Tensor, Tensor]]:
    """The same, differentiable in theta at the price of one node (for bounds, which need the weights)."""
    counts = [n for a, b in itertools.pairwise(sizes) for n in (a * b, b)]
    pool, parts = theta.shape[0], iter(torch.split(theta, counts, dim=1))
    return [
        (next(parts).reshape(pool, a, b), next(parts).reshape(pool, 1, b))
        for a, b in itertools.pairwise(sizes)
    ]


# --------------------------------------------------------------------------------------------- passes


def activations(theta: Numbers, sizes: Sizes, x: Numbers) -> list[Numbers]:
    """Input, hidden activations and output of the pool on x (P, rows, in)."""
    found = [x]
    stack = layers(theta, sizes)
    for i, (weight, bias) in enumerate(stack):
        x = x @ weight
        x += bias
        if i < len(stack) - 1:
            x = np.tanh(x, out=x) if isinstance(x, np.ndarray) else x.tanh_()
        found.append(x)
    return found


def forward(theta: Numbers, sizes: Sizes, x: Numbers) -> Numbers:
    return activations(theta, sizes, x)[-1]


def _backward(
    theta: Numbers, sizes: Sizes, saved: Sequence[Numbers], grad: Numbers, want_x: bool, out: Numbers | None
) -> Numbers | None:
    """Writes the gradient of the flat parameters into `out`, returns that of the input where wanted."""
    views = layers(out, sizes) if out is not None else None
    stack = layers(theta, sizes)
    for i in range(len(stack) - 1, -1, -1):
        if views is not None:
            _write(views[i][0], saved[i].swapaxes(1, 2) @ grad)
            _write(views[i][1], _column_sums(grad))
        if i == 0 and not want_x:
            return None
        grad = grad @ _transposed(stack[i][0])
        if i > 0:
            slope = saved[i] * saved[i]
            slope *= grad
            grad -= slope
    return grad


def _column_sums(x: Numbers) -> Numbers:
    """Sums over the rows, (P, 1, n). A product with ones takes a fifth of the time of NumPy's sum."""
    return np.ones((1, x.shape[1]), x.dtype) @ x if isinstance(x, np.ndarray) else x.sum(1, keepdim=True)


def _transposed(weight: Numbers) -> Numbers:
    """(P, out, in), copied in NumPy: its products with transposed right sides take twice as long."""
    turned = weight.swapaxes(1, 2)
    return np.ascontiguousarray(turned) if isinstance(turned, np.ndarray) else turned


def _empty_like(theta: Numbers) -> Numbers:
    return np.empty_like(theta) if isinstance(theta, np.ndarray) else torch.empty_like(theta)


def _write(view: Numbers, value: Numbers) -> None:
    view[...] = value


def _plain(x: Tensor) -> Numbers:
    return x.detach().numpy() if x.device.type == "cpu" else x.detach()


def _tensor(x: Numbers) -> Tensor:
    return torch.from_numpy(x) if isinstance(x, np.ndarray) else x


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, x: Tensor, sizes: Sizes) -> Tensor:
        ctx.theta, ctx.sizes = _plain(theta), sizes
        ctx.saved = activations(ctx.theta, sizes, _plain(x))
        return _tensor(ctx.saved[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        want_theta, want_x = ctx.needs_input_grad[:2]
        out = _empty_like(ctx.theta) if want_theta else None
        back = _backward(ctx.theta, ctx.sizes, ctx.saved, _plain(grads[0]), want_x, out)
        return (None if out is None else _tensor(out), None if back is None else _tensor(back), None)


def select_median(outputs: Numbers) -> tuple[Numbers, Numbers]:
    """The lower median over axis 2 of (P, batch, samples, actions), and which sample it was."""
    k = median_rank(outputs.shape[2])
    if isinstance(outputs, np.ndarray):
        last = np.ascontiguousarray(outputs.swapaxes(2, 3))
        value = np.sort(last, axis=-1)[..., k - 1]
        return value, (last == value[..., None]).argmax(axis=-1)
    found = torch.kthvalue(outputs, k, dim=2)
    return found.values, found.indices


# --------------------------------------------------------------------------------------------- networks


@dataclass
class PoolNet:
    """`pool` MLPs of one shape: `theta` is (P, parameters), tanh between the layers."""

    theta: Tensor
    sizes: Sizes

    def __call__(self, x: Tensor) -> Tensor:
        """(P, rows, in) -> (P, rows, out), differentiable in theta and x."""
        return _Pass.apply(self.theta, x, self.sizes)  # type: ignore[no-any-return,no-untyped-call]

    def quick(self, x: Numbers) -> Numbers:
        """The same for NumPy rows, without gradients."""
        return forward(_plain(self.theta), self.sizes, x)

    def detached(self) -> PoolNet:
        """Differentiable in the input only."""
        return PoolNet(self.theta.detach(), self.sizes)

    def input_gradient(self, x: Tensor, cotangent: Callable[[Tensor], Tensor]) -> Tensor:
        """Gradient in x of a function of the output; its gradient in the output is `cotangent(output)`."""
        theta = _plain(self.theta)
        saved = activations(theta, self.sizes, _plain(x))
        return _tensor(_backward(theta, self.sizes, saved, _plain(cotangent(_tensor(saved[-1]))), True, None))

    def chain(self) -> list[Layer]:
        """The layers as `smoothrl.bounds` reads them, differentiable in theta."""
        found: list[Layer] = []
        for weight, bias in split_layers(self.theta, self.sizes):
            found += [Dense(weight, bias), Activation("tanh")]
        return found[:-1]

    def member(self, i: int) -> MLP:
        inputs, *hidden, outputs = self.sizes
        mlp = MLP(inputs, outputs, hidden, "tanh")
        with torch.no_grad():
            for mine, (weight, bias) in zip(mlp.layers, layers(self.theta.detach(), self.sizes), strict=True):
                mine.weight.copy_(weight[i].T)  # type: ignore[operator]
                mine.bias.copy_(bias[i, 0])  # type: ignore[operator]
        return mlp

    def set_member(self, i: int, mlp: MLP) -> None:
        with torch.no_grad():
            for theirs, (weight, bias) in zip(
                mlp.layers, layers(self.theta.detach(), self.sizes), strict=True
            ):
                weight[i] = theirs.weight.T
                bias[i, 0] = theirs.bias

    @classmethod
    def orthogonal(cls, sizes: Sizes, head: float, generators: Sequence[torch.Generator]) -> PoolNet:
        """Every member orthogonal from its own generator (hidden gain sqrt 2, last layer `head`)."""
        net = cls(torch.zeros(len(generators), parameter_total(sizes)), sizes)
        for i, generator in enumerate(generators):
            inputs, *hidden, outputs = sizes
            mlp = MLP(inputs, outputs, hidden, "tanh")
            orthogonal(mlp, generator, head=head)
            net.set_member(i, mlp)
        net.theta.requires_grad_(True)
        return net


@dataclass
class PoolPolicy:
    """`pool` Gaussian policies N(mean(s), exp(log_std)^2), log_std (P, 1, A) independent of the state."""

    mean: PoolNet
    log_std: Tensor

    def smoothed_mean(self, states: Tensor, noise: Tensor) -> Tensor:
        """Median over the samples of mean(s + noise), coordinate by coordinate: Eq. (13) at p = 1/2.

        states (P, B, n), noise (P, B, m, n). The gradient reaches the one selected sample of a coordinate.
        """
        found = SmoothedPass.apply(self.mean.theta, states, noise, self.mean.sizes)  # type: ignore[no-untyped-call]
        return found  # type: ignore[no-any-return]

    def detached(self) -> PoolPolicy:
        return PoolPolicy(self.mean.detached(), self.log_std.detach())

    @property
    def parameters(self) -> list[Tensor]:
        return [self.mean.theta, self.log_std]

    def member(self, i: int) -> GaussianPolicy:
        inputs, *hidden, actions = self.mean.sizes
        policy = GaussianPolicy(inputs, actions, hidden, "tanh")
        policy.mean = self.mean.member(i)
        with torch.no_grad():
            policy.log_std.copy_(self.log_std[i, 0])
        return policy

    def set_member(self, i: int, policy: GaussianPolicy) -> None:
        self.mean.set_member(i, policy.mean)
        with torch.no_grad():
            self.log_std[i, 0] = policy.log_std


class PoolAdam:
    """Adam on pooled tensors (P, ...), with a learning rate a member. Step counts are common to the pool."""

    def __init__(self, parameters: Sequence[Tensor], eps: float = 1e-5) -> None:
        self.parameters, self.eps = list(parameters), eps
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def step(
        self, gradients: Sequence[Tensor], rates: Tensor, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        """theta -= rate * m_hat / (sqrt(v_hat) + eps); rates (P,).

        With root = sqrt(1 - b2^t) this is rate root / (1 - b1^t) * m / (sqrt(v) + eps root): fewer passes.
        """
        self.steps += 1
        b1, b2 = betas
        root = math.sqrt(1 - b2**self.steps)
        scale = rates * (root / (1 - b1**self.steps))
        common = float(scale[0]) if bool((scale == scale[0]).all()) else None
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            m.lerp_(g, 1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            slow = v.sqrt().add_(self.eps * root)
            if common is not None:
                p.addcdiv_(m, slow, value=-common)
            else:
                p.sub_(torch.div(m, slow, out=slow).mul_(scale.view(-1, *[1] * (p.dim() - 1))))

    def state(self) -> dict[str, Tensor]:
        pairs = [("first", self.first), ("second", self.second)]
        return {f"{name}.{i}": t for name, ts in pairs for i, t in enumerate(ts)}

    def load(self, tensors: dict[str, Tensor], steps: int) -> None:
        for name, target in self.state().items():
            target.copy_(tensors[name])
        self.steps = steps
