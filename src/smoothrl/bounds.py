"""Interval (IBP) and linear (CROWN) bounds of the project's networks over a box of observations.

A network is first read as a chain of dense layers, convolutions and activations. The two heads of a dueling
network become one dense layer, V + A - mean(A) included, so nothing is lost at that step; the same holds for
a linear `objective` of the outputs, for instance the margins Q(s, a*) - Q(s, a). Everything is differentiable
in the box and in the weights, and works on the pooled networks (leading pool axis) as it stands.

The bounds hold in real arithmetic; in float32 they hold up to rounding (about 1e-6 of the output's scale).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from smoothrl import networks
from smoothrl.errors import UserError, unknown

Method = Literal["ibp", "crown-ibp", "crown"]
Interval: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Dense:
    """y = x W + b with W (..., in, out) and b broadcastable to y; a leading axis is the pool."""

    weight: Tensor
    bias: Tensor

    def forward(self, lower: Tensor, upper: Tensor) -> Interval:
        centre, radius = (lower + upper) / 2, (upper - lower) / 2
        middle = centre @ self.weight + self.bias
        spread = radius @ self.weight.abs()
        return middle - spread, middle + spread

    def backward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (..., k, out) of the output to those of the input, and the constant (..., k)."""
        constant = (rows * self.bias.unsqueeze(-2)).sum(-1)
        back = rows.flatten(-3, -2) @ self.weight.transpose(-1, -2)
        return back.view(*rows.shape[:-1], -1), constant


@dataclass(frozen=True)
class Conv:
    """A convolution without dilation or groups."""

    module: nn.Conv2d
    shape: torch.Size
    """The input's shape (channels, height, width)."""

    def forward(self, lower: Tensor, upper: Tensor) -> Interval:
        m = self.module
        centre, radius = (lower + upper) / 2, (upper - lower) / 2
        middle = m(centre)
        spread = functional.conv2d(radius, m.weight.abs(), None, m.stride, _padding(m))
        return middle - spread, middle + spread

    def backward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        m, flat = self.module, rows.flatten(0, 1)
        extra = [
            self.shape[1 + i]
            - ((rows.shape[3 + i] - 1) * m.stride[i] - 2 * _padding(m)[i] + m.kernel_size[i])
            for i in (0, 1)
        ]
        back = functional.conv_transpose2d(flat, m.weight, None, m.stride, _padding(m), tuple(extra))
        constant = rows.new_zeros(rows.shape[:2]) if m.bias is None else rows.sum(dim=(-1, -2)) @ m.bias
        return back.view(*rows.shape[:2], *self.shape), constant


@dataclass(frozen=True)
class Activation:
    """relu or tanh, both increasing."""

    name: str

    def forward(self, lower: Tensor, upper: Tensor) -> Interval:
        f = networks.ACTIVATIONS[self.name]
        return f(lower), f(upper)


@dataclass(frozen=True)
class Flatten:
    """(channels, height, width) to one axis."""

    shape: torch.Size

    def forward(self, lower: Tensor, upper: Tensor) -> Interval:
        return lower.flatten(1), upper.flatten(1)


Layer: TypeAlias = Dense | Conv | Activation | Flatten


@dataclass(frozen=True)
class Lines:
    """Two lines around an activation on [lower, upper]: a_low x + b_low <= f(x) <= a_high x + b_high."""

    low_slope: Tensor
    low_offset: Tensor
    high_slope: Tensor
    high_offset: Tensor


# ------------------------------------------------------------------------------------- public functions


def box(observations: Tensor, epsilon: float | Tensor, valid: tuple[float, float] | None = None) -> Interval:
    """The linf ball around the observations, cut to the valid range where there is one."""
    lower, upper = observations - epsilon, observations + epsilon
    if valid is not None:
        lower, upper = lower.clamp(*valid), upper.clamp(*valid)
    return lower, upper


def ibp(network: nn.Module, lower: Tensor, upper: Tensor, objective: Tensor | None = None) -> Interval:
    """Interval bounds of the outputs (..., K), or of `objective` (..., k, K) times the outputs."""
    chain = layers(network, lower.shape)
    last = len(chain) - 1
    for i, layer in enumerate(chain):
        if i == last and objective is not None and isinstance(layer, Dense):
            return _objective_interval(layer, lower, upper, objective)
        lower, upper = layer.forward(lower, upper)
    if objective is None:
        return lower, upper
    raise UserError("an objective needs a network that ends in a dense layer")


def crown(
    network: nn.Module,
    lower: Tensor,
    upper: Tensor,
    objective: Tensor | None = None,
    *,
    intermediate: Literal["ibp", "crown"] = "ibp",
) -> Interval:
    """CROWN: linear bounds propagated backwards; the activations' own ranges come from IBP (CROWN-IBP) or
    from CROWN itself. Returns bounds of the outputs, or of `objective` (..., k, K) times the outputs.
    """
    return ibp_and_crown(network, lower, upper, objective, intermediate=intermediate)[1]


def ibp_and_crown(
    network: nn.Module,
    lower: Tensor,
    upper: Tensor,
    objective: Tensor | None = None,
    *,
    intermediate: Literal["ibp", "crown"] = "ibp",
) -> tuple[Interval, Interval]:
    """The interval of the outputs that the ranges of the activations lead to, and the one of `crown`."""
    chain = layers(network, lower.shape)
    ranges, reached = _activation_ranges(chain, lower, upper, intermediate)
    last = chain[-1]
    if objective is None:
        if not isinstance(last, Dense):
            raise UserError("CROWN bounds need a network that ends in a dense layer")
        size = last.weight.shape[-1]
        objective = torch.eye(size, device=lower.device, dtype=lower.dtype)
        objective = objective.expand(*_lead(chain, lower)[:-1], 1, size, size)
    return reached, _backward(chain, ranges, objective, lower, upper)


def bounds(
    network: nn.Module, lower: Tensor, upper: Tensor, method: Method, objective: Tensor | None = None
) -> Interval:
    """One of the three methods by name."""
    if method == "ibp":
        return ibp(network, lower, upper, objective)
    if method not in ("crown", "crown-ibp"):
        raise unknown("bound", method, ("ibp", "crown-ibp", "crown"))
    return crown(network, lower, upper, objective, intermediate="ibp" if method == "crown-ibp" else "crown")


def margin_objective(actions: Tensor, count: int) -> Tensor:
    """Rows e_{a*} - e_a for every action a: (b, count, count); the row of a* itself is zero."""
    eye = torch.eye(count, device=actions.device)
    return eye[actions].unsqueeze(1) - eye


def margins(
    network: nn.Module, lower: Tensor, upper: Tensor, actions: Tensor, method: Method = "crown-ibp"
) -> Interval:
    """Bounds of Q(s, a*) - Q(s, a) over the box for every action a: (b, actions), zero at a* itself."""
    count = layers(network, lower.shape)[-1]
    if not isinstance(count, Dense):
        raise UserError("margins need a network that ends in a dense layer")
    objective = margin_objective(actions, count.weight.shape[-1])
    return bounds(network, lower, upper, method, objective)


# --------------------------------------------------------------------------- reading a network as a chain


def layers(network: nn.Module, shape: Sequence[int]) -> list[Layer]:
    """The network as a chain of layers, for inputs of `shape` (batch axes included)."""
    if isinstance(network, networks.GaussianPolicy | networks.PoolGaussianPolicy):
        return layers(network.mean, shape)
    if isinstance(network, networks.MLP | networks.PoolMLP):
        return _mlp(network)
    if isinstance(network, networks.DuelingMLP):
        heads = _duel([_dense(network.advantage)], None if network.value is None else [_dense(network.value)])
        return [*_mlp(network.body), Activation("relu"), *heads]
    if isinstance(network, networks.SmallQ):
        heads = _duel([_dense(network.advantage)], None if network.value is None else [_dense(network.value)])
        return [*_sequential(network.cnn, shape), *heads]
    if isinstance(network, networks.NatureQ):
        value = None if network.value is None else _sequential(network.value, shape)
        return [*_sequential(network.cnn, shape), *_duel(_sequential(network.advantage, shape), value)]
    if isinstance(network, nn.Sequential):
        return _sequential(network, shape)
    if isinstance(network, networks.Chain):
        return _sequential(network.layers, shape)
    if isinstance(network, networks.Bounded):
        return [*layers(network.body, shape), *_bounded(network)]
    raise UserError(
        f"there are no bounds for {type(network).__name__}; known: chains of Linear, Conv2d, ReLU and Tanh "
        "(MLP, GaussianPolicy, DuelingMLP, NatureQ, SmallQ, nn.Sequential and the pools)"
    )


def _bounded(network: networks.Bounded) -> list[Layer]:
    """The action box: high - relu(high - low - relu(x - low)) is the clipping, layer by layer monotone."""
    low, high = torch.tensor(network.low), torch.tensor(network.high)
    eye = torch.eye(len(network.low))
    if network.how == "tanh":
        return [Activation("tanh"), Dense(torch.diag((high - low) / 2), (high + low) / 2)]
    relu = Activation("relu")
    return [Dense(eye, -low), relu, Dense(-eye, high - low), relu, Dense(-eye, high)]


def _dense(module: nn.Module) -> Dense:
    if isinstance(module, networks.PoolLinear):
        return Dense(module.weight, module.bias)
    assert isinstance(module, nn.Linear)
    bias = module.weight.new_zeros(module.out_features) if module.bias is None else module.bias
    return Dense(module.weight.transpose(0, 1), bias)


def _mlp(mlp: networks.MLP | networks.PoolMLP) -> list[Layer]:
    chain: list[Layer] = []
    for module in mlp.layers:
        chain += [_dense(module), Activation(mlp.activation)]
    return chain[:-1]


def _sequential(modules: nn.Sequential, shape: Sequence[int]) -> list[Layer]:
    chain: list[Layer] = []
    current = torch.Size(shape[1:])
    for module in modules:
        if isinstance(module, nn.Linear):
            chain.append(_dense(module))
        elif isinstance(module, nn.Conv2d):
            chain.append(_conv(module, current))
            current = _conv_shape(module, current)
        elif isinstance(module, nn.Flatten):
            chain.append(Flatten(current))
        elif isinstance(module, nn.ReLU | nn.Tanh):
            chain.append(Activation("relu" if isinstance(module, nn.ReLU) else "tanh"))
        else:
            raise UserError(f"there are no bounds for a {type(module).__name__} layer")
    return chain


def _conv(module: nn.Conv2d, shape: torch.Size) -> Conv:
    plain = module.groups == 1 and module.dilation == (1, 1) and not isinstance(module.padding, str)
    if not plain or module.padding_mode != "zeros":
        raise UserError("bounds know convolutions without groups and dilation, with zero padding in numbers")
    return Conv(module, shape)


def _padding(module: nn.Conv2d) -> tuple[int, ...]:
    assert not isinstance(module.padding, str)
    return module.padding


def _conv_shape(module: nn.Conv2d, shape: torch.Size) -> torch.Size:
    sides = [
        (shape[1 + i] + 2 * _padding(module)[i] - module.kernel_size[i]) // module.stride[i] + 1
        for i in (0, 1)
    ]
    return torch.Size((module.out_channels, *sides))


def _duel(advantage: Sequence[Layer], value: Sequence[Layer] | None) -> list[Layer]:
    """The two heads side by side as one chain that ends in Q = V + A - mean(A)."""
    if value is None:
        return list(advantage)
    chain: list[Layer] = []
    for i, (a, v) in enumerate(zip(advantage, value, strict=True)):
        if not (isinstance(a, Dense) and isinstance(v, Dense)):
            chain.append(a)
        elif i == len(advantage) - 1:
            weight = a.weight - a.weight.mean(-1, keepdim=True)
            bias = a.bias - a.bias.mean(-1, keepdim=True) + v.bias
            spread = v.weight.expand(-1, weight.shape[1])
            joined = weight + spread if i == 0 else torch.cat([weight, spread])
            chain.append(Dense(joined, bias))
        else:
            chain.append(Dense(torch.cat([a.weight, v.weight], dim=1), torch.cat([a.bias, v.bias])))
    return chain


# ------------------------------------------------------------------------------------------ propagation


def _lead(chain: Sequence[Layer], x: Tensor) -> torch.Size:
    """The batch axes of x: (b,) or (pool, b)."""
    first = chain[0]
    features = 3 if isinstance(first, Conv) else len(first.shape) if isinstance(first, Flatten) else 1
    return x.shape[: x.dim() - features]


def _objective_interval(layer: Dense, lower: Tensor, upper: Tensor, objective: Tensor) -> Interval:
    rows, constant = layer.backward(objective)
    return _concretise(rows, constant, lower, upper)


def _concretise(rows: Tensor, constant: Tensor, lower: Tensor, upper: Tensor) -> Interval:
    """Exact range of rows x + constant over a box; rows (..., k, n), box (..., n)."""
    centre, radius = ((lower + upper) / 2).unsqueeze(-1), ((upper - lower) / 2).unsqueeze(-1)
    middle = (rows @ centre).squeeze(-1) + constant
    spread = (rows.abs() @ radius).squeeze(-1)
    return middle - spread, middle + spread


def _activation_ranges(
    chain: Sequence[Layer], lower: Tensor, upper: Tensor, intermediate: str
) -> tuple[dict[int, Interval], Interval]:
    """The input range of every activation, by its place in the chain, and the range of the output."""
    ranges: dict[int, Interval] = {}
    low, high = lower, upper
    for i, layer in enumerate(chain):
        if isinstance(layer, Activation):
            if intermediate == "crown" and ranges:
                low, high = _tighter(chain[:i], ranges, low, high, lower, upper)
            ranges[i] = (low, high)
        low, high = layer.forward(low, high)
    return ranges, (low, high)


def _tighter(
    chain: Sequence[Layer], ranges: dict[int, Interval], low: Tensor, high: Tensor, *start: Tensor
) -> Interval:
    lead = _lead(chain, start[0])
    shape = low.shape[len(lead) :]
    size = shape.numel()
    identity = torch.eye(size, device=low.device, dtype=low.dtype).view(size, *shape)
    found = _backward(chain, ranges, identity.expand(*lead[:-1], 1, *identity.shape), *start)
    return torch.maximum(low, found[0].view(low.shape)), torch.minimum(high, found[1].view(low.shape))


def _backward(
    chain: Sequence[Layer], ranges: dict[int, Interval], objective: Tensor, lower: Tensor, upper: Tensor
) -> Interval:
    """Bounds of `objective` (lead, k, *shape) times the chain's output over the box [lower, upper].

    The last axis of `lead` may be 1: the same objective for all observations.
    """
    lead = len(_lead(chain, lower))
    k = objective.shape[lead]
    rows = torch.cat([objective, -objective], dim=lead)
    total: Tensor = rows.new_zeros(rows.shape[: lead + 1])
    for i in range(len(chain) - 1, -1, -1):
        layer = chain[i]
        if isinstance(layer, Activation):
            lines = relaxation(layer.name, *ranges[i])
            rows, constant = _through(rows, lines, lead)
        elif isinstance(layer, Flatten):
            rows, constant = rows.view(*rows.shape[: lead + 1], *layer.shape), torch.zeros_like(total)
        else:
            rows, constant = layer.backward(rows)
        total = total + constant
    flat = rows.flatten(lead + 1)
    low, _ = _concretise(flat, total, lower.flatten(lead), upper.flatten(lead))
    return low.narrow(lead, 0, k), -low.narrow(lead, k, k)


def _through(rows: Tensor, lines: Lines, lead: int) -> tuple[Tensor, Tensor]:
    """A lower bound of rows times f(x): positive coefficients take the low line, negative the high one."""
    up, down = rows.clamp(min=0.0), rows.clamp(max=0.0)
    back = up * lines.low_slope.unsqueeze(lead) + down * lines.high_slope.unsqueeze(lead)
    if rows.shape[lead - 1] == 1:
        return back, _shared(up, lines.low_offset, lead) + _shared(down, lines.high_offset, lead)
    constant = up * lines.low_offset.unsqueeze(lead) + down * lines.high_offset.unsqueeze(lead)
    return back, constant.flatten(lead + 1).sum(-1)


def _shared(rows: Tensor, x: Tensor, lead: int) -> Tensor:
    """The products (lead, k) of x (lead, *shape) with rows that all observations share."""
    return x.flatten(lead) @ rows.squeeze(lead - 1).flatten(lead).transpose(-1, -2)


# ------------------------------------------------------------------------------- relaxed activations


def relaxation(name: str, lower: Tensor, upper: Tensor) -> Lines:
    """The two lines around one activation on [lower, upper]."""
    return _relu_lines(lower, upper) if name == "relu" else _tanh_lines(lower, upper)


def _relu_lines(lower: Tensor, upper: Tensor) -> Lines:
    """The chord above; below, the identity or zero, whichever leaves the smaller area."""
    low, high = lower.clamp(max=0.0), upper.clamp(min=0.0)
    slope = high / (high - low).clamp(min=1e-12)
    slope = torch.where(
        upper <= 0, torch.zeros_like(slope), torch.where(lower >= 0, torch.ones_like(slope), slope)
    )
    below = ((upper > -lower) | (lower >= 0)).to(slope.dtype)
    below = torch.where(upper <= 0, torch.zeros_like(below), below)
    return Lines(below, torch.zeros_like(below), slope, -slope * low)


def _tanh_lines(lower: Tensor, upper: Tensor) -> Lines:
    """Chord on the side where tanh bends away from it, tangent on the other.

    tanh is odd: the line below on [l, u] is the line above on [-u, -l], turned around.
    """
    high_slope, high_offset = _tanh_above(lower, upper)
    low_slope, low_offset = _tanh_above(-upper, -lower)
    return Lines(low_slope, -low_offset, high_slope, high_offset)


def _tanh_above(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and offset of a line above tanh: the chord where tanh stays below it, else a tangent."""
    return _TanhAbove.apply(lower, upper)  # type: ignore[no-untyped-call,no-any-return]


class _TanhAbove(torch.autograd.Function):
    """As one node with the derivatives worked out, for the bounds are trained through."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        at_low, at_high = networks.fast_tanh(lower), networks.fast_tanh(upper)
        touch = _touching_point(lower)
        middle = (lower + upper) / 2
        chord = ((upper <= 0) | ((lower < 0) & (touch >= upper))).to(lower.dtype)
        touches = ((lower < 0) & (touch > middle)).to(lower.dtype)
        point = torch.lerp(middle, touch, touches)
        at_point = networks.fast_tanh(point)
        width = (upper - lower).clamp_(min=1e-6)
        across = (at_high - at_low).div_(width).clamp_(0.0, 1.0)
        slope = torch.lerp(1 - at_point.square(), across, chord)
        offset = torch.lerp(at_point - slope * point, at_high - across * upper, chord)
        if lower.requires_grad or upper.requires_grad:
            kept = (lower, upper, at_low, at_high, point, at_point, slope, chord, touches, width)
            ctx.save_for_backward(*kept)
        return slope, offset

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """With slope a and offset b. Chord: da/dl = (a - tanh' l) / w, da/du = (tanh' u - a) / w,

        b = tanh u - a u. Tangent at p: da/dp = -2 a tanh p, db/dp = -p da/dp; p is the middle, or d(l) with
        d' = (tanh' l - tanh' d) / (2 a tanh d (d - l)).
        """
        lower, upper, at_low, at_high, point, at_point, slope, chord, touches, width = ctx.saved_tensors
        g_slope, g_offset = grads
        fall_low, fall_high = slope + at_low.square() - 1, slope + at_high.square() - 1
        at_chord = (g_slope - upper * g_offset).div_(width)
        chord_low = at_chord * fall_low
        chord_high = (at_chord + g_offset).mul_(fall_high).neg_()
        bend = slope * at_point * -2
        at_tangent = (g_slope - point * g_offset).mul_(bend)
        moved = fall_low.neg_() / (bend * (lower - point)).clamp_(min=1e-6)
        half = torch.full_like(moved, 0.5)
        tangent_low = at_tangent * torch.lerp(half, moved, touches)
        tangent_high = at_tangent * torch.lerp(half, torch.zeros_like(half), touches)
        return torch.lerp(tangent_low, chord_low, chord), torch.lerp(tangent_high, chord_high, chord)


def _touching_point(lower: Tensor) -> Tensor:
    """d >= 0 where the tangent of tanh passes through (l, tanh l), rounded up; for l >= 0 unused.

    It solves F(d) = tanh d - tanh l - (1 - tanh^2 d)(d - l) = 0; looked up in a table over log(1 - l).
    """
    place = torch.log1p((-lower).clamp_(0.0, _TOUCH_REACH)).mul_(_TOUCH_CELLS / math.log1p(_TOUCH_REACH))
    index = place.ceil_().long().clamp_max_(_TOUCH_CELLS)
    return _touch_table(lower.device, lower.dtype)[index]


_TOUCH_REACH, _TOUCH_CELLS = 1e4, 8192


@cache
def _touch_table(device: torch.device, dtype: torch.dtype) -> Tensor:
    """d(l) at the table's places; it grows with -l, so the next place's d is never too small."""
    places = torch.linspace(0.0, math.log1p(_TOUCH_REACH), _TOUCH_CELLS + 1, dtype=torch.float64)
    lower = -torch.expm1(places)
    left, right = torch.zeros_like(lower), -lower
    for _ in range(60):
        middle = (left + right) / 2
        positive = _touch(middle, lower) >= 0
        left, right = torch.where(positive, left, middle), torch.where(positive, middle, right)
    return (right * (1 + 1e-6)).to(device, dtype)


def _touch(d: Tensor, lower: Tensor) -> Tensor:
    at = torch.tanh(d)
    return at - torch.tanh(lower) - (1 - at**2) * (d - lower)


def chain_ibp(chain: Sequence[Layer], lower: Tensor, upper: Tensor) -> Interval:
    """Interval bounds of a chain's output over a box."""
    for layer in chain:
        lower, upper = layer.forward(lower, upper)
    return lower, upper


def chain_crown(chain: Sequence[Layer], lower: Tensor, upper: Tensor) -> Interval:
    """CROWN-IBP bounds of the output of a chain that ends in a dense layer."""
    last = chain[-1]
    assert isinstance(last, Dense)
    ranges = _activation_ranges(chain, lower, upper, "ibp")[0]
    size = last.weight.shape[-1]
    identity = torch.eye(size, device=lower.device, dtype=lower.dtype)
    return _backward(chain, ranges, identity.expand(*_lead(chain, lower), size, size), lower, upper)
