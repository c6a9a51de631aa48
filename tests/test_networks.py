"""Networks: shapes, batching, pools, and the layers that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from smoothrl import networks
from smoothrl.errors import UserError

EXAMPLES = {
    "mlp": ({"kind": "mlp", "inputs": 5, "outputs": 2, "hidden": [8]}, (5,)),
    "policy": ({"kind": "gaussian-policy", "observations": 11, "actions": 3}, (11,)),
    "q-mlp": ({"kind": "q-mlp", "observations": 4, "actions": 2, "hidden": [16, 16]}, (4,)),
    "nature": ({"kind": "q-nature", "channels": 1, "actions": 4, "hidden": 32}, (1, 84, 84)),
    "small": ({"kind": "q-small", "channels": 4, "actions": 3}, (4, 10, 10)),
    "dncnn": ({"kind": "dncnn", "channels": 1, "width": 8, "depth": 4}, (1, 84, 84)),
    "dncnn-image": ({"kind": "dncnn", "width": 8, "depth": 4, "statistics": "image"}, (1, 20, 20)),
    "fast": ({"kind": "fast-denoiser", "channels": 4, "width": 8, "depth": 3}, (4, 84, 84)),
    "board": ({"kind": "fast-denoiser", "channels": 4, "width": 8, "depth": 3, "factor": 1}, (4, 10, 10)),
    "vector": ({"kind": "mlp-denoiser", "observations": 6}, (6,)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_description_round_trip_and_row_independence(name: str) -> None:
    """Batches of whole tiles, as agents forward them: a row's result does not depend on the others."""
    description, shape = EXAMPLES[name]
    torch.manual_seed(0)
    network = networks.frozen(networks.build(description))
    again = networks.build(networks.describe(network))
    again.load_state_dict(network.state_dict())
    networks.frozen(again)
    x = torch.rand(40, *shape)
    whole = network(x)
    assert torch.equal(whole, again(x))
    assert torch.equal(whole[:16], network(x[:16]))
    assert torch.equal(whole[13:37], network(x[13:37]))
    assert networks.batch_dependent(network) == []


@pytest.mark.parametrize("name", ["dncnn", "dncnn-image", "fast", "board", "vector"])
def test_denoisers_start_as_the_identity(name: str) -> None:
    description, shape = EXAMPLES[name]
    x = torch.rand(8, *shape)
    assert torch.equal(networks.frozen(networks.build(description))(x), x)


def test_dueling_heads_in_bfloat16_keep_gaps_beside_a_large_value() -> None:
    q = networks.DuelingMLP(2, 2, (4,)).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in q.parameters():
            parameter.zero_()
        assert q.value is not None
        q.value.bias.fill_(100.0)
        q.advantage.bias.copy_(torch.tensor([0.01, 0.0]))
    out = q(torch.zeros(1, 2, dtype=torch.bfloat16))
    assert out.dtype == torch.float32
    assert (out[0, 0] - out[0, 1]).item() == pytest.approx(0.01, rel=0.02)


def test_dueling_heads_by_hand() -> None:
    q = networks.DuelingMLP(2, 3, (4,))
    with torch.no_grad():
        for parameter in q.parameters():
            parameter.zero_()
        q.advantage.bias.copy_(torch.tensor([1.0, 2.0, 6.0]))
        assert q.value is not None
        q.value.bias.fill_(10.0)
    assert q(torch.zeros(1, 2)).tolist() == [[8.0, 9.0, 13.0]]


def test_fast_tanh_equals_tanh_with_its_gradient() -> None:
    x = torch.linspace(-9, 9, 4001, requires_grad=True)
    y = networks.fast_tanh(x)
    assert torch.allclose(y, torch.tanh(x), rtol=0, atol=2e-7)
    y.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, 1 - torch.tanh(x.detach()) ** 2, atol=1e-6)


def test_fast_tanh_twice_differentiable_matches_finite_differences() -> None:
    x = torch.tensor([0.3, -1.2], requires_grad=True)
    (g,) = torch.autograd.grad(networks.fast_tanh(x).pow(2).sum(), x)
    expected = 2 * torch.tanh(x) * (1 - torch.tanh(x) ** 2)
    assert torch.allclose(g, expected, atol=1e-6)


@pytest.mark.parametrize("pool", [1, 3])
def test_pool_members_equal_single_networks(pool: int) -> None:
    generator = torch.Generator().manual_seed(3)
    pooled = networks.PoolGaussianPolicy(pool, 11, 3)
    singles = []
    for i in range(pool):
        policy = networks.GaussianPolicy(11, 3)
        networks.orthogonal(policy.mean, generator, head=0.5)
        policy.log_std.data.fill_(float(i))
        pooled.set_member(i, policy)
        singles.append(policy)
    x = torch.randn(pool, 16, 11, generator=generator)
    out = pooled(x)
    for i, policy in enumerate(singles):
        assert torch.allclose(out[i], policy(x[i]), atol=1e-6)
        back = pooled.member(i)
        for a, b in zip(back.parameters(), policy.parameters(), strict=True):
            assert torch.equal(a, b)


def test_orthogonal_gains() -> None:
    mlp = networks.MLP(8, 4, (8, 8))
    networks.orthogonal(mlp, torch.Generator().manual_seed(0), head=0.01)
    first, last = mlp.layers[0], mlp.layers[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    assert torch.allclose(first.weight @ first.weight.T, 2 * torch.eye(8), atol=1e-5)
    assert torch.allclose(last.weight @ last.weight.T, 1e-4 * torch.eye(4), atol=1e-7)


def test_batch_layers_are_found_only_where_they_mix() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    assert networks.batch_dependent(network) == ["1", "2"]
    assert networks.batch_dependent(network.eval()) == []
    live = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)).eval()
    assert networks.batch_dependent(live) == ["0"]
    assert networks.batch_dependent(networks.DnCNN(1, 4, 3, "batch").eval()) != []
    assert networks.batch_dependent(networks.DnCNN(1, 4, 3, "image").train()) == []


def test_batch_statistics_of_one_image_are_image_statistics() -> None:
    torch.manual_seed(0)
    batch, image = networks.DnCNN(1, 8, 4, "batch"), networks.DnCNN(1, 8, 4, "image")
    nn.init.normal_(batch.net[-1].weight)
    image.load_state_dict(batch.state_dict())
    x = torch.rand(1, 1, 16, 16)
    assert torch.allclose(batch(x), image(x), atol=1e-5)


def test_multiply_adds_of_the_papers_networks() -> None:
    image = torch.zeros(1, 1, 84, 84)
    dncnn = networks.multiply_adds(networks.DnCNN().eval(), image)
    assert dncnn == 84 * 84 * 9 * (64 + 15 * 64 * 64 + 64)
    fast = networks.multiply_adds(networks.FastDenoiser().eval(), image)
    assert fast == 84 * 84 * 9 * (16 + 2 * 16 * 16 + 16)
    assert dncnn >= 100 * fast
    assert networks.parameter_count([networks.DnCNN()]) == 556_096


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"kind": "gausian-policy"}, "did you mean 'gaussian-policy'"),
        ({}, "unknown network kind 'None'"),
        ({"kind": "mlp", "inputs": 3}, "does not fit"),
        ({"kind": "mlp", "inputs": -3, "outputs": 2}, "does not fit"),
        ({"kind": "mlp", "inputs": 3, "outputs": 2, "colour": "red"}, "does not fit"),
        ({"kind": "mlp", "inputs": 3, "outputs": 2, "activation": "tahn"}, "did you mean 'tanh'"),
    ],
)
def test_bad_descriptions(description: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        networks.build(description)


def test_undescribed_network_is_refused() -> None:
    with pytest.raises(UserError, match="register"):
        networks.describe(nn.Linear(2, 2))


def test_numpy_tanh_leaves_its_input_alone() -> None:
    x = torch.randn(5)
    before = x.clone()
    networks.fast_tanh(x)
    assert np.array_equal(x.numpy(), before.numpy())
