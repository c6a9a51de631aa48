"""Agents whose worst case is known in closed form: the attacks reach it within a few per cent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from smoothrl.agents import Smoothing
from smoothrl.attacks import Overrides, make_attack
from smoothrl.learners.attack_runs import Episodes, play
from smoothrl.noise import StreamNoise
from smoothrl.protocols import PAPER, SOUND

from .agents import linear_policy, linear_q, observations

W = [[1.0, -0.5, 0.3, 2.0], [0.2, 1.5, -1.0, 0.1]]
SMOOTHINGS = [None, Smoothing("median", 0.3, 40), Smoothing("mean", 0.3, 40)]


def largest_change(weight: torch.Tensor, norm: str) -> float:
    """max |W d| over |d| <= 1: the spectral norm (l2), the best corner (linf)."""
    if norm == "l2":
        return float(torch.linalg.matrix_norm(weight, 2))
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=weight.shape[1])))
    return float(torch.linalg.vector_norm(corners @ weight.T, dim=1).max())


@pytest.mark.parametrize("smooth", SMOOTHINGS, ids=["none", "median", "mean"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_mad_reaches_the_largest_action_change(norm, smooth, adaptive):
    agent = linear_policy(W, smooth)
    x = observations(agent, 20)
    steps = 20 if adaptive or norm == "l2" else None
    attack = make_attack("mad", agent, 0.3, norm, overrides=Overrides(adaptive=adaptive, steps=steps))
    moved = attack.perturb(x, list(range(20)), StreamNoise(range(20)), 0)
    change = torch.linalg.vector_norm(agent.forward(moved) - agent.forward(x), dim=1)
    best = 0.3 * largest_change(torch.tensor(W), norm)
    assert change.max() <= best * 1.0001
    assert change.mean() >= 0.97 * best


@pytest.mark.parametrize("protocol", [SOUND, PAPER], ids=lambda p: p.name)
def test_mad_return_on_the_toy_game(protocol):
    """a = x + 2 u under MAD is off by epsilon (1 + 2): every step costs what that shift costs."""
    agent, epsilon = linear_policy([[1.0, 2.0]]), 0.2
    shifts, rewards = [], []

    def watch(step):
        shifts.append((step.actions - agent.forward(step.observations).numpy())[:, 0])
        rewards.append(step.rewards)

    attack = make_attack("mad", agent, epsilon, protocol=protocol)
    found = play(agent, attack, Episodes(20, 3), watch=[watch])
    assert np.abs(np.concatenate(shifts)).max() <= 0.6 + 1e-5
    if protocol is SOUND:
        assert np.abs(np.concatenate(shifts)).min() >= 0.59
    assert found.mean < play(agent, None, Episodes(20, 3)).mean + 0.5


def test_only_changes_that_are_executed_count():
    """a = x + 2 u = 0.9 in the box [-1, 1]: up only 0.1 is left, down the whole 3 epsilon = 0.6."""
    agent = linear_policy([[1.0, 2.0]])
    x = torch.tensor([[0.9, 0.0]]).repeat(40, 1)
    index = list(range(40))

    def executed(protocol):
        moved = make_attack("mad", agent, 0.2, protocol=protocol).perturb(x, index, StreamNoise(index), 0)
        return (agent.forward(moved).clamp(-1, 1) - agent.forward(x)).abs()[:, 0]

    assert executed(SOUND).numpy() == pytest.approx(0.6, abs=1e-5)
    assert executed(PAPER).min() == pytest.approx(0.1, abs=1e-5)


def test_equally_large_changes_are_taken_at_random():
    """a = x at 0: +epsilon and -epsilon change the action alike, and each is taken about half of the time."""
    agent = linear_policy([[1.0, 0.0]])
    x, index = torch.zeros(400, 2), list(range(400))
    moved = make_attack("mad", agent, 0.2).perturb(x, index, StreamNoise(index), 0)
    assert 0.4 < float((moved[:, 0] > 0).float().mean()) < 0.6


def test_identity_policy_loses_epsilon_squared_a_step():
    """a = x earns 1 a step; any shift by epsilon earns 1 - epsilon^2: the return is L (1 - epsilon^2)."""
    agent, epsilon = linear_policy([[1.0, 0.0]]), 0.3
    clean = play(agent, None, Episodes(30, 1)).results
    assert clean.returns == pytest.approx(clean.lengths, rel=1e-5)
    attacked = play(agent, make_attack("mad", agent, epsilon), Episodes(30, 1)).results
    assert attacked.returns == pytest.approx(clean.lengths * (1 - epsilon**2), rel=0.02)


@pytest.mark.parametrize("attack", ["fgsm", "pgd", "targeted"])
@pytest.mark.parametrize("smooth", [None, Smoothing("mean", 0.05, 20), Smoothing("vote", 0.05, 20)])
def test_q_attacks_flip_exactly_what_can_be_flipped(attack, smooth):
    """Q(1) - Q(0) = 2 w s with w = (1, 0.5): the decision flips iff epsilon |w|_1 > |w s|."""
    agent = linear_q([[-1.0, -0.5], [1.0, 0.5]], smooth)
    w = torch.tensor([1.0, 0.5])
    x, epsilon = observations(agent, 200), 0.2
    margin = (x @ w).abs()
    near = (margin - epsilon * w.sum()).abs() < 0.06
    made = make_attack(attack, agent, epsilon)
    moved = made.perturb(x, list(range(200)), StreamNoise(range(200)), 0)
    plain = agent.with_smoothing(Smoothing())
    flipped = plain.act(moved) != plain.act(x)
    can = margin < epsilon * w.sum()
    near |= margin < 0.06
    assert (flipped == can)[~near].all()


def test_the_toy_game_is_lost_beyond_one_and_kept_below():
    """The target is +-1 and only its sign counts: epsilon 0.9 changes nothing, 1.2 loses every step."""
    agent = linear_q([[-1.0, 0.0], [1.0, 0.0]])
    clean = play(agent, None, Episodes(20, 0)).results
    assert clean.returns.tolist() == clean.lengths.tolist()
    kept = play(agent, make_attack("pgd", agent, 0.9), Episodes(20, 0)).results
    assert kept.returns.tolist() == clean.returns.tolist()
    lost = play(agent, make_attack("pgd", agent, 1.2), Episodes(20, 0)).results
    assert lost.returns.tolist() == [0.0] * 20


@pytest.mark.parametrize("seed", [0, 1])
def test_sound_mad_is_at_least_as_strong_as_the_released_one(seed):
    from .agents import policy

    agent = policy(Smoothing("median", 0.2, 50), seed)
    x = observations(agent, 64, seed)
    z = 0.2 * torch.randn(64, 500, 2, generator=torch.Generator().manual_seed(9))

    def decision(s):
        return agent.forward((s[:, None] + z).flatten(0, 1)).view(64, 500, -1).median(1).values

    change = {}
    for protocol in (PAPER, SOUND):
        moved = make_attack("mad", agent, 0.2, protocol=protocol).perturb(
            x, list(range(64)), StreamNoise(range(64)), 0
        )
        change[protocol.name] = (decision(moved) - decision(x)).abs().mean().item()
    assert change["sound"] >= change["paper"]


def test_learned_attacks_follow_their_network():
    """Optimal adds epsilon hardtanh(delta); Min-RS follows its critic; PA-AD its director's direction."""
    from torch import nn

    from smoothrl import networks
    from smoothrl.attacks import Adversary, AdversaryInfo

    agent = linear_policy([[1.0, 2.0], [0.0, 1.0]])
    x, index = observations(agent, 12), list(range(12))

    def attack(kind, network, weights, bias):
        layer = network.layers[0] if isinstance(network, networks.MLP) else network.mean.layers[0]
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(weights))
            layer.bias.copy_(torch.tensor(bias))
        info = AdversaryInfo(kind, agent.digest, "test", agent.info.env_id, 0.1)
        made = make_attack(kind, agent, 0.1, adversary=Adversary(network, info))
        return (made.perturb(x, index, StreamNoise(index), 0) - x) / 0.1

    optimal = attack("optimal", networks.GaussianPolicy(2, 2, ()), [[0.0, 0.0], [0.0, 0.0]], [5.0, -0.5])
    assert torch.allclose(optimal, torch.tensor([1.0, -0.5]).expand(12, 2), atol=1e-4)
    critic = attack("min-rs", networks.MLP(4, 1, ()), [[9.0, 9.0, -1.0, 0.0]], [0.0])
    assert torch.allclose(critic, torch.tensor([1.0, 1.0]).expand(12, 2), atol=1e-4)
    director = attack("pa-ad", networks.GaussianPolicy(2, 2, ()), [[0.0, 0.0], [0.0, 0.0]], [0.0, -1.0])
    change = agent.forward(director)
    assert torch.nn.functional.cosine_similarity(change, torch.tensor([[0.0, -1.0]])).min() > 0.95
