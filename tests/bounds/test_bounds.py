"""Bounds contain all that an optimiser finds, are exact where theory says so, and can be trained through."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from smoothrl import bounds, networks
from smoothrl.errors import UserError

METHODS: tuple[bounds.Method, ...] = ("ibp", "crown-ibp", "crown")


def seeded(make, seed=0, scale=1.0):
    torch.manual_seed(seed)
    network = make()
    with torch.no_grad():
        for p in network.parameters():
            if p.dim() == 3:
                p.normal_(0.0, 0.4)
            p.mul_(scale)
    return network


NETWORKS = {
    "tanh-mlp": (lambda: networks.MLP(5, 3, (16, 16)), (6, 5)),
    "relu-mlp": (lambda: networks.MLP(5, 3, (16, 16), "relu"), (6, 5)),
    "policy": (lambda: networks.GaussianPolicy(5, 2, (16, 16)), (6, 5)),
    "dueling-mlp": (lambda: networks.DuelingMLP(5, 4, (16, 16)), (6, 5)),
    "plain-q": (lambda: networks.DuelingMLP(5, 4, (16, 16), dueling=False), (6, 5)),
    "small-q": (lambda: networks.SmallQ(2, 3, size=6, filters=4, hidden=16), (3, 2, 6, 6)),
    "nature-q": (lambda: networks.NatureQ(1, 3, hidden=16, width=0.125), (2, 1, 84, 84)),
    "pool-mlp": (lambda: networks.PoolMLP(3, 5, 2, (16, 16)), (3, 6, 5)),
    "pool-policy": (lambda: networks.PoolGaussianPolicy(3, 5, 2, (16, 16)), (3, 6, 5)),
}


def extremes(network, x: Tensor, epsilon: float, objective: Tensor | None, steps=12) -> tuple[Tensor, Tensor]:
    """The smallest and largest output that sign-gradient search and corners find in the box."""

    def value(z: Tensor) -> Tensor:
        y = network(z)
        return y if objective is None else (objective @ y.unsqueeze(-1)).squeeze(-1)

    low = high = value(x).detach()
    for column in range(low.shape[-1]):
        for sign in (-1.0, 1.0):
            z = (x + epsilon * torch.sign(torch.randn(x.shape))).requires_grad_(True)
            for _ in range(steps):
                (g,) = torch.autograd.grad(sign * value(z)[..., column].sum(), z)
                z = x + (z.detach() + epsilon / 4 * g.sign() - x).clamp(-epsilon, epsilon)
                z.requires_grad_(True)
                y = value(z).detach()
                low, high = torch.minimum(low, y), torch.maximum(high, y)
    return low, high


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_contain_what_a_search_finds(name, method):
    make, shape = NETWORKS[name]
    if name == "nature-q" and method == "crown":
        pytest.skip("full CROWN on an 84 x 84 image takes an identity of 13k rows")
    network = seeded(make)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(shape, generator=generator)
    for epsilon in (0.01, 0.2):
        if name == "nature-q":
            epsilon /= 10
        low, high = bounds.bounds(network, *bounds.box(x, epsilon), method)
        found_low, found_high = extremes(network, x, epsilon, None)
        slack = 1e-5 * (1 + high.abs())
        assert (low <= found_low + slack).all()
        assert (high >= found_high - slack).all()
        assert (high - low < 100 * (found_high - found_low) + 10).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.floats(0.1, 4.0),
    epsilon=st.floats(0.0, 3.0),
    activation=st.sampled_from(["tanh", "relu"]),
    shift=st.floats(-3.0, 3.0),
)
def test_soundness_over_random_networks_and_boxes(seed, scale, epsilon, activation, shift):
    network = seeded(lambda: networks.MLP(3, 2, (8, 8), activation), seed, scale)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 3, generator=generator) + shift
    z = x + epsilon * (2 * torch.rand(200, 4, 3, generator=generator) - 1)
    values = network(z.view(-1, 3)).view(200, 4, 2)
    for method in METHODS:
        low, high = bounds.bounds(network, *bounds.box(x, epsilon), method)
        slack = 1e-4 * (1 + values.abs().amax(0))
        assert (low <= values.amin(0) + slack).all()
        assert (high >= values.amax(0) - slack).all()


@settings(max_examples=60, deadline=None)
@given(low=st.floats(-6, 6), width=st.floats(0, 8), name=st.sampled_from(["tanh", "relu"]))
def test_lines_enclose_the_activation(low, width, name):
    lower, upper = torch.tensor([low]), torch.tensor([low + width])
    lines = bounds.relaxation(name, lower, upper)
    x = torch.linspace(low, low + width, 101)
    y = networks.ACTIVATIONS[name](x)
    assert (lines.low_slope * x + lines.low_offset <= y + 2e-6 * (1 + abs(low) + width)).all()
    assert (lines.high_slope * x + lines.high_offset >= y - 2e-6 * (1 + abs(low) + width)).all()


def hand_network() -> nn.Sequential:
    """y = relu(x1 + x2) - relu(x1 - x2)."""
    first, last = nn.Linear(2, 2), nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
        last.weight.copy_(torch.tensor([[1.0, -1.0]]))
        first.bias.zero_()
        last.bias.zero_()
    return nn.Sequential(first, nn.ReLU(), last)


def test_hand_worked_relu():
    """x in [0, 1] x [0, 1]: pre-activations [0, 2] and [-1, 1]; IBP [-1, 2].

    CROWN below: relu(x1 - x2) <= (x1 - x2 + 1)/2, so y >= x1/2 + 3 x2/2 - 1/2 >= -1/2; above: the lower line
    of relu(x1 - x2) is 0 (area tie, upper = -lower), so y <= x1 + x2 <= 2. The truth is [0, 2].
    """
    network = hand_network()
    lower, upper = torch.zeros(1, 2), torch.ones(1, 2)
    low, high = bounds.ibp(network, lower, upper)
    assert (low.item(), high.item()) == (-1.0, 2.0)
    low, high = bounds.crown(network, lower, upper)
    assert low.item() == pytest.approx(-0.5)
    assert high.item() == pytest.approx(2.0)


def test_one_tanh_unit_is_exact_at_the_chord():
    """tanh on [-2, -1] is convex: the upper line is the chord, so the upper bound is tanh(-1)."""
    network = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))
    with torch.no_grad():
        for layer in (network[0], network[2]):
            layer.weight.fill_(1.0)
            layer.bias.zero_()
    low, high = bounds.crown(network, torch.tensor([[-2.0]]), torch.tensor([[-1.0]]))
    assert high.item() == pytest.approx(torch.tanh(torch.tensor(-1.0)).item(), abs=1e-6)
    slope = 1 - torch.tanh(torch.tensor(-1.5)) ** 2
    assert low.item() == pytest.approx((torch.tanh(torch.tensor(-1.5)) - 0.5 * slope).item(), abs=1e-6)


def test_linear_networks_are_exact():
    network = networks.MLP(4, 3, ())
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    for method in METHODS:
        low, high = bounds.bounds(network, *bounds.box(x, 0.3), method)
        spread = 0.3 * network.layers[0].weight.abs().sum(1)
        assert torch.allclose(low, network(x) - spread, atol=1e-5)
        assert torch.allclose(high, network(x) + spread, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_epsilon_zero_gives_the_output(name):
    make, shape = NETWORKS[name]
    network = seeded(make)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(2))
    for method in METHODS[: 2 if name == "nature-q" else 3]:
        low, high = bounds.bounds(network, *bounds.box(x, 0.0), method)
        assert torch.allclose(low, network(x), atol=2e-5)
        assert torch.allclose(high, network(x), atol=2e-5)


def test_crown_is_tighter_on_average():
    network = seeded(lambda: networks.MLP(6, 2, (32, 32)))
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
    widths = [
        (high - low).mean().item()
        for low, high in (bounds.bounds(network, *bounds.box(x, 0.1), m) for m in METHODS)
    ]
    assert widths[0] > 2 * widths[1] > 2 * widths[2]


@pytest.mark.parametrize("name", ["dueling-mlp", "small-q", "nature-q"])
@pytest.mark.parametrize("method", ["ibp", "crown-ibp"])
def test_margins_contain_the_found_ones_and_the_value_head_cancels(name, method):
    make, shape = NETWORKS[name]
    network = seeded(make)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(3))
    actions = network(x).argmax(-1)
    count = network(x).shape[-1]
    lower, upper = bounds.box(x, 0.005, (0.0, 1.0))
    low, high = bounds.margins(network, lower, upper, actions, method)
    objective = bounds.margin_objective(actions, count)
    found_low, found_high = extremes(lambda z: network(z.clamp(0, 1)), x, 0.005, objective)
    assert (low <= found_low + 1e-4).all()
    assert (high >= found_high - 1e-4).all()
    assert low.gather(1, actions[:, None]).abs().max() == 0
    q_low, q_high = bounds.bounds(network, lower, upper, method)
    naive = q_low.gather(1, actions[:, None]) - q_high
    others = torch.arange(count) != actions[:, None]
    assert (low > naive - 1e-4)[others].all()
    head = network.value if isinstance(network.value, nn.Linear) else network.value[-1]
    with torch.no_grad():
        head.weight.mul_(100.0)
    again, _ = bounds.margins(network, lower, upper, actions, method)
    assert torch.allclose(low, again, atol=1e-3)


def test_pools_equal_their_members():
    pool = seeded(lambda: networks.PoolMLP(3, 5, 2, (16, 16)))
    x = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    for method in METHODS:
        low, high = bounds.bounds(pool, *bounds.box(x, 0.2), method)
        for i in range(3):
            one = bounds.bounds(pool.member(i), *bounds.box(x[i], 0.2), method)
            assert torch.allclose(low[i], one[0], atol=1e-5)
            assert torch.allclose(high[i], one[1], atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_gradients_by_finite_differences(method, activation):
    network = seeded(lambda: networks.MLP(3, 2, (6, 6), activation)).double()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    parameter = network.layers[0].weight

    def width(radius: Tensor) -> Tensor:
        low, high = bounds.bounds(network, x - radius, x + radius, method)
        return (high - low).sum() + 0.3 * low.sum()

    radius = torch.tensor(0.15, dtype=torch.float64, requires_grad=True)
    slope, weight_slope = torch.autograd.grad(width(radius), [radius, parameter])
    step = 1e-5
    with torch.no_grad():
        numeric = (width(radius + step) - width(radius - step)) / (2 * step)
        assert slope.item() == pytest.approx(numeric.item(), rel=2e-2)
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)).double()
        parameter.add_(step * direction)
        up = width(radius)
        parameter.sub_(2 * step * direction)
        down = width(radius)
        parameter.add_(step * direction)
    assert (weight_slope * direction).sum().item() == pytest.approx(
        ((up - down) / (2 * step)).item(), rel=2e-2
    )


def test_the_valid_range_cuts_the_box():
    lower, upper = bounds.box(torch.tensor([[0.05, 0.98]]), 0.1, (0.0, 1.0))
    assert torch.allclose(lower, torch.tensor([[0.0, 0.88]]))
    assert torch.allclose(upper, torch.tensor([[0.15, 1.0]]))


def test_unknown_networks_and_methods_are_refused():
    x = torch.zeros(1, 3)
    with pytest.raises(UserError, match="no bounds for LSTM"):
        bounds.ibp(nn.LSTM(3, 3), x, x)
    with pytest.raises(UserError, match="Sigmoid"):
        bounds.ibp(nn.Sequential(nn.Linear(3, 3), nn.Sigmoid()), x, x)
    with pytest.raises(UserError, match="crown"):
        bounds.bounds(networks.MLP(3, 2), x, x, "crwon")  # type: ignore[arg-type]
