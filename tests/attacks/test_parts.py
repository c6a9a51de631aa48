"""The loop, the objectives and the budget, against numbers worked out by hand and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smoothrl import networks
from smoothrl.attacks import Budget, make_budget
from smoothrl.attacks import objectives as obj
from smoothrl.attacks.gradient import first_of_the_best
from smoothrl.attacks.loop import GradientHealth, Search, ascend, value_and_gradient
from smoothrl.attacks.pullback import forward
from smoothrl.errors import UserError

from .agents import AGENTS, image_agent, normalised_policy, observations, policy, q_agent

D = torch.float64


def numeric(loss, x, step=1e-5):
    grad = torch.zeros_like(x)
    for i in np.ndindex(*x.shape):
        up, down = x.clone(), x.clone()
        up[i] += step
        down[i] -= step
        grad[i] = (loss(up, 0).sum() - loss(down, 0).sum()) / (2 * step)
    return grad


def critic(clean, actions):
    return (clean.sum(-1) * actions[:, 0]).sin() + actions.square().sum(-1)


POLICY_OBJECTIVES = {
    "mad": obj.maximal_action_difference,
    "mad executed": obj.executed_difference(torch.tensor([-0.1, -0.2]), torch.tensor([0.2, 0.1])),
    "min-rs": obj.lowest_value(critic),
    "pa-ad": obj.directed(),
    "pa-ad flipped": obj.directed(-1.0),
}


@pytest.mark.parametrize("name", POLICY_OBJECTIVES)
def test_policy_gradients_by_finite_differences(name):
    torch.manual_seed(0)
    network = networks.MLP(3, 2, (8, 8)).double()
    x, z = torch.randn(4, 3, dtype=D), 0.2 * torch.randn(4, 5, 3, dtype=D)
    reference = torch.randn(4, 2, dtype=D)
    aim = obj.Aim(torch.randn(4, 3, dtype=D), reference, direction=torch.randn(4, 2, dtype=D))

    def loss(y, i):
        return POLICY_OBJECTIVES[name](network((y[:, None] + z).flatten(0, 1)).view(4, 5, 2), aim)

    _, found = value_and_gradient(loss, x, 0)
    assert torch.allclose(found, numeric(loss, x), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("target", [None, [2, -1, 0, 1]])
@pytest.mark.parametrize("name", ["cross entropy", "mean margin"])
def test_q_gradients_by_finite_differences(name, target):
    torch.manual_seed(0)
    network = networks.MLP(3, 3, (8, 8)).double()
    x, z = torch.randn(4, 3, dtype=D), 0.2 * torch.randn(4, 5, 3, dtype=D)
    objective = obj.cross_entropy if name == "cross entropy" else obj.vote_margin("mean")
    wanted = None if target is None else torch.tensor(target)
    aim = obj.Aim(x, action=torch.tensor([0, 1, 2, 0]), target=wanted)

    def loss(y, i):
        return objective(network((y[:, None] + z).flatten(0, 1)).view(4, 5, 3), aim)

    _, found = value_and_gradient(loss, x, 0)
    assert torch.allclose(found, numeric(loss, x), rtol=1e-4, atol=1e-7)


def test_objectives_by_hand():
    outputs = torch.tensor([[[1.0, 0.0], [3.0, 2.0]]])
    aim = obj.Aim(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]), torch.tensor([0]))
    assert obj.maximal_action_difference(outputs, aim).item() == pytest.approx(1.0 + 4.0)
    executed = obj.executed_difference(torch.tensor([-1.0, 2.0]), torch.tensor([1.5, 4.0]))
    assert executed(outputs, aim).item() == pytest.approx(0.25 + 1.0 + 0.01 * 5.0)
    entropy = np.log(1 + np.exp(-1.0))
    assert obj.cross_entropy(outputs, aim).item() == pytest.approx(entropy)
    assert obj.vote_margin("mean")(outputs, aim).item() == pytest.approx(-1.0)
    towards = obj.Aim(torch.zeros(1, 2), None, torch.tensor([0]), target=torch.tensor([1]))
    assert obj.cross_entropy(outputs, towards).item() == pytest.approx(-1.0 - entropy)


def test_soft_votes_are_a_distribution_that_follows_the_votes():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 200, 3, generator=generator) + torch.tensor([0.0, 0.5, -0.5])
    soft = obj.soft_votes(outputs).exp()
    assert torch.allclose(soft.sum(-1), torch.ones(6), atol=1e-5)
    assert (soft.argmax(-1) == outputs.argmax(-1).mode().values).all()
    assert torch.allclose(obj.soft_votes(1e-3 * outputs), obj.soft_votes(outputs), atol=1e-3)


@pytest.mark.parametrize("name", [n for n in AGENTS if "image" not in n])
def test_the_fast_pass_equals_autograd(name):
    agent = AGENTS[name]()
    x = observations(agent, 30).requires_grad_(True)
    fast, plain = forward(agent, x), agent.network(x)
    assert torch.allclose(fast, plain, atol=1e-5)
    weight = torch.randn(fast.shape, generator=torch.Generator().manual_seed(0))
    a, b = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (fast, plain))
    assert torch.allclose(a, b, atol=1e-5)


def test_large_batches_go_in_parts_with_the_same_gradient(monkeypatch):
    from smoothrl.attacks import pullback

    agent = image_agent()
    x = observations(agent, 40).requires_grad_(True)
    whole = torch.autograd.grad(agent.forward(x).square().sum(), x)[0]
    monkeypatch.setattr(pullback, "PART_FLOATS", 72 * 12)
    parts = torch.autograd.grad(forward(agent, x).square().sum(), x)[0]
    assert torch.allclose(whole, parts, atol=1e-6)


@pytest.mark.parametrize("rule", ["fixed", "decay", "adaptive"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_every_rule_climbs_a_concave_hill(rule, norm):
    """The top of -|x - top|^2 lies inside the ball of some rows and outside of others."""
    clean = torch.zeros(6, 4)
    top = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 0.4
    budget = Budget(0.5, norm)
    search = Search(60, rule, 0.2 if rule != "adaptive" else None, keep_best=True)
    found = ascend(lambda x, i: -(x - top).square().sum(-1), clean, clean, budget, search)
    nearest = budget.project(clean, top.clone())
    assert torch.linalg.vector_norm(found - nearest, dim=1).max() < (0.11 if rule == "fixed" else 0.05)


def test_keep_best_never_returns_less_than_the_start():
    clean = torch.zeros(5, 3)

    def loss(x, i):
        return -x.square().sum(-1)

    search = Search(5, "fixed", 1.0, keep_best=True)
    found = ascend(loss, clean, clean, Budget(0.3), search)
    assert torch.equal(found, clean)


def test_the_first_of_nearly_equal_restarts_is_kept():
    values = torch.tensor([[0.8, 0.7, -1.2], [1.0, 1.0, -1.0], [0.9, 0.1, -9.0]])
    assert first_of_the_best(values, 0.25).tolist() == [0, 1, 0]
    assert first_of_the_best(values, 0.0).tolist() == [1, 1, 1]


def test_health_counts_zero_and_broken_gradients():
    health = GradientHealth()
    clean = torch.zeros(4, 2)
    scale = torch.tensor([1.0, 0.0, float("nan"), 2.0])
    found = ascend(lambda x, i: x.sum(-1) * scale, clean, clean, Budget(0.1), Search(3), health=health)
    assert (health.rows, health.zero, health.broken) == (12, 3, 3)
    assert torch.isfinite(found).all()


def test_the_budget_holds_in_float64_far_from_zero():
    """At 1000 a float32 step is 6e-5: rounding must go towards the clean observation."""
    clean = 1000.0 + torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    for norm in ("linf", "l2"):
        budget = Budget(0.01, norm)
        moved = budget.settle(clean, clean + torch.randn(50, 3, generator=torch.Generator().manual_seed(1)))
        assert budget.size(moved.double() - clean.double()).max() <= 0.01 + 1e-9
        assert budget.excess(clean, moved) <= 1e-9


def test_images_stay_in_their_range():
    agent = image_agent()
    budget = make_budget(agent, 0.3)
    assert budget.valid == (0.0, 1.0)
    clean = observations(agent, 5)
    moved = budget.settle(clean, clean + 0.3 * torch.sign(torch.randn(clean.shape)))
    assert moved.min() >= 0.0
    assert moved.max() <= 1.0
    assert budget.excess(clean, clean - 1.0) >= 0.7


@pytest.mark.parametrize("epsilon", [-0.1, float("nan"), float("inf")])
def test_impossible_budgets_name_the_scale(epsilon):
    with pytest.raises(UserError, match="images in \\[0, 1\\] units"):
        make_budget(image_agent(), epsilon)
    with pytest.raises(UserError, match="standard deviation 1"):
        make_budget(normalised_policy(), epsilon)
    with pytest.raises(UserError, match="raw observations"):
        make_budget(policy(), epsilon)


def test_absurd_budgets_and_unknown_norms_are_refused():
    with pytest.raises(UserError, match=r"every observation.*images"):
        make_budget(image_agent(), 8.0)
    with pytest.raises(UserError, match="clipped to"):
        make_budget(normalised_policy(), 75.0)
    with pytest.raises(UserError, match="l2"):
        make_budget(q_agent(), 0.1, "l1")
