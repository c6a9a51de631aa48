"""Regularisers, schedules, adversaries and the switches of the two protocols."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smoothrl import rollout
from smoothrl.agents import load_agent
from smoothrl.errors import UserError
from smoothrl.learners import losses, methods, ppo, presets, regularisers, schedules, worst_case
from smoothrl.learners.actor_critic import ActorCritic, Batch, Rates, generators
from smoothrl.learners.adversaries import (
    AdversaryConfig,
    FitSettings,
    along_tanh,
    directed_objective,
    directed_step,
    fit_adversaries,
)
from smoothrl.learners.collect import Rollout
from smoothrl.learners.pools import PoolNet, PoolPolicy
from smoothrl.learners.regularisers import Moment
from smoothrl.protocols import PAPER, SOUND

QUICK = {"horizon": 128, "minibatches": 4, "epochs": 2, "value_epochs": 2, "hidden": (16, 16)}
SIZES = (5, 16, 16, 3)


def config(name, seeds=(0,), iterations=2, env="InvertedPendulum-v4", **changes):
    return presets.configure(methods.parse(name), env, seeds, {**QUICK, "steps": 128 * iterations, **changes})


def rates(count, **changes):
    ones = torch.ones(count)
    base = Rates(3e-4 * ones, 3e-4 * ones, 0.2 * ones, 0.0 * ones, ones, None, 2, 2, 4)
    return dataclasses.replace(base, **changes)


@pytest.fixture
def scene():
    """Two policies with real slopes, a batch, and the moment of training."""
    torch.manual_seed(0)
    count, rows = 2, 32
    net = PoolNet.orthogonal(SIZES, 1.0, generators(range(count), 0, "t"))
    policy = PoolPolicy(net, torch.full((count, 1, 3), -0.5, requires_grad=True))
    states, actions = torch.randn(count, rows, 5), torch.randn(count, rows, 3)
    with torch.no_grad():
        old = losses.log_prob(policy.mean(states), policy.log_std, actions)
    zero = torch.zeros(count, rows)
    batch = Batch(states, actions, old, torch.randn(count, rows) + 1.0, zero, zero)
    return policy, batch


def moment(epsilon, switches=SOUND, mix=1.0, **changes):
    return Moment(
        config("ppo+sgld", (0, 1), **changes), switches, rates(2), epsilon, mix, generators((0, 1), 0, "r")
    )


# ---------------------------------------------------------------------------------------- regularisers


@settings(max_examples=10, deadline=None)
@given(epsilon=st.floats(0.01, 0.5), seed=st.integers(0, 100))
def test_sgld_lies_below_the_convex_bound(epsilon, seed):
    """What the search finds inside the ball never exceeds what bounds allow; CROWN is at least as tight."""
    torch.manual_seed(seed)
    net = PoolNet.orthogonal(SIZES, 1.0, generators((seed, seed + 1), 0, "t"))
    policy = PoolPolicy(net, torch.zeros(2, 1, 3))
    states = torch.randn(2, 8, 5)
    zero = torch.zeros(2, 8)
    batch = Batch(states, torch.zeros(2, 8, 3), zero, torch.randn(2, 8), zero, zero)
    mean = policy.mean(states)
    found = [
        (loss(policy, mean, batch, now) - regularisers.ppo(policy, mean, batch, now)).detach()
        for loss, now in (
            (regularisers.sgld, moment(epsilon)),
            (regularisers.convex, moment(epsilon, mix=0.0)),
            (regularisers.convex, moment(epsilon, mix=1.0)),
        )
    ]
    assert (found[0] <= found[1] + 1e-4).all()
    assert (found[1] <= found[2] + 1e-4).all()
    assert (found[0] >= 0).all()


def test_langevin_stays_in_the_ball_and_beats_random_corners(scene):
    policy, batch = scene
    anchor = policy.mean(batch.states).detach()
    nearby = regularisers.langevin(policy, anchor, batch.states, moment(0.1))
    assert (nearby - batch.states).abs().max() <= 0.1 + 1e-6
    corners = batch.states + 0.1 * torch.randn_like(batch.states).sign()

    def moved(x):
        return losses.scaled_distance(policy.mean(x), anchor, policy.log_std).mean(1)

    assert (moved(nearby) > 1.5 * moved(corners)).all()


def test_at_epsilon_zero_the_defences_are_ppo(scene):
    policy, batch = scene
    mean = policy.mean(batch.states)
    plain = regularisers.ppo(policy, mean, batch, moment(0.0))
    for loss in (regularisers.sgld, regularisers.convex, regularisers.radial):
        torch.testing.assert_close(loss(policy, mean, batch, moment(0.0)), plain, atol=1e-5, rtol=1e-5)


def test_the_smoothed_anchor_is_a_switch(scene):
    """Paper: the term holds (mu(s) - median)^2 and stays at epsilon 0; sound: it vanishes."""
    policy, batch = scene
    smoothed = policy.smoothed_mean(batch.states, 0.3 * torch.randn(2, 32, 20, 5))
    terms = [
        regularisers.sgld(policy, smoothed, batch, moment(0.0, switches))
        - regularisers.ppo(policy, smoothed, batch, moment(0.0, switches))
        for switches in (PAPER, SOUND)
    ]
    assert (terms[0] > 1e-3).all()
    torch.testing.assert_close(terms[1], torch.zeros(2), atol=1e-6, rtol=0)


def test_radial_by_hand():
    """mu(s) = s, std 1, a = .5, s = 0, epsilon .25: distances .25 and .75 against .5 of the clean policy.

    A = 1 (sound, both rows alike up to normalisation signs): the worst ratio is exp((.5^2 - .75^2) / 2).
    """
    net = PoolNet(torch.tensor([[1.0, 0.0]]), (1, 1))
    policy = PoolPolicy(net, torch.zeros(1, 1, 1))
    states, actions = torch.zeros(1, 2, 1), torch.full((1, 2, 1), 0.5)
    old = losses.log_prob(policy.mean(states), policy.log_std, actions)
    advantages = torch.tensor([[3.0, 1.0]])
    zero = torch.zeros(1, 2)
    batch = Batch(states, actions, old, advantages, zero, zero)
    one = torch.ones(1)
    now = Moment(config("ppo+radial"), PAPER, rates(1, clip=0.2 * one), 0.25, 1.0, generators((0,), 0, "r"))
    found = regularisers.radial(policy, policy.mean(states), batch, now)
    near, far = np.exp((0.25 - 0.0625) / 2), np.exp((0.25 - 0.5625) / 2)
    clean = np.array([1.0, -1.0]) / np.sqrt(2.0) * 1.0
    assert near < 1.2
    assert far > 0.8
    worst = np.minimum(clean, np.minimum(np.array([3.0, 1.0]) * far, np.array([3.0, 1.0]) * near))
    np.testing.assert_allclose(found.item(), -np.mean(0.5 * clean + 0.5 * worst), rtol=1e-5)
    sound = regularisers.radial(policy, policy.mean(states), batch, dataclasses.replace(now, switches=SOUND))
    a = clean
    worst = np.minimum(a, np.minimum(a * far, a * near))
    np.testing.assert_allclose(sound.item(), -np.mean(0.5 * a + 0.5 * worst), rtol=1e-5)


def test_wocar_wrong_bounds_miss_the_policy_and_right_ones_hold_it(scene):
    policy, batch = scene
    mean = policy.mean(batch.states).detach()
    low, high = worst_case.action_box(policy.mean, batch.states, 0.01, wrong=False)
    assert ((low <= mean + 1e-5) & (mean <= high + 1e-5)).all()
    low, high = worst_case.action_box(policy.mean, batch.states, 0.01, wrong=True)
    assert not ((low <= mean) & (mean <= high)).all()


def test_worst_action_lowers_q_inside_the_box(scene):
    policy, batch = scene
    q = PoolNet.orthogonal((8, 16, 16, 1), 1.0, generators((5, 6), 0, "q"))
    action = worst_case.worst_action(q, policy.mean, batch.states, 0.2, wrong=False)
    low, high = worst_case.action_box(policy.mean, batch.states, 0.2, wrong=False)
    assert ((action >= low - 1e-5) & (action <= high + 1e-5)).all()

    def value(a):
        return q(torch.cat([batch.states, a], dim=-1))[..., 0]

    assert (value(action) <= value(policy.mean(batch.states)) + 1e-5).all()


# ------------------------------------------------------------------------------------------- schedules


def test_schedules_reproduce_the_released_end_points():
    """976 iterations of a ramp from 500 over 1000: .0267 (smooth) and .0238 (exponential), never .075."""
    u = (976 - 499) / 1000
    assert round(schedules.grown("smooth", u, 0.075), 4) == 0.0267
    assert round(schedules.grown("exponential", u, 0.075), 4) == 0.0238
    assert schedules.grown("exponential", -1.0, 0.075) == pytest.approx(1e-10)
    assert schedules.grown("smooth", 0.0, 0.075) == 0.0


@pytest.mark.parametrize("growth", ["linear", "smooth", "exponential"])
def test_schedules_grow_continuously_to_epsilon(growth):
    values = [schedules.grown(growth, u, 0.075) for u in np.linspace(-0.2, 1.2, 1401)]
    assert np.all(np.diff(values) >= 0)
    assert np.max(np.diff(values)) < 0.075 * 0.003
    assert values[-1] == pytest.approx(0.075)


@pytest.mark.parametrize(
    ("name", "switches", "last"),
    [("ppo+sgld", SOUND, 0.075), ("ppo+radial", SOUND, 0.075), ("ppo+radial", PAPER, 0.0267)],
)
def test_epsilon_at_the_end_of_a_full_training(name, switches, last):
    conf = presets.configure(methods.parse(name), "Hopper-v2", (0,), {})
    loss = regularisers.policy_loss(methods.parse(name), conf, switches, rates(1), conf.iterations - 1)
    assert round(loss.epsilon, 4) == last
    first = regularisers.policy_loss(methods.parse(name), conf, switches, rates(1), 0)
    assert first.epsilon_at(0) == 0.0


# -------------------------------------------------------------------------------- ends of episodes


def test_what_follows_the_last_row_and_a_time_limit():
    """One lane, three steps: step 1 cut off by the time limit; the buffer ends after step 2."""
    net = ActorCritic((0,), SIZES, "agent")
    states = np.random.default_rng(0).normal(size=(3, 1, 1, 5)).astype(np.float32)
    tail, final = np.ones((1, 1, 5), np.float32), np.full(5, 2.0, np.float32)
    empty, flags = np.zeros((3, 1, 1, 3), np.float32), np.zeros((3, 1, 1), bool)
    cut = flags.copy()
    cut[1] = True
    data = Rollout(states, empty, empty, np.ones((3, 1, 1)), flags, cut, tail, [(1, 0, 0, final)])

    def value(x):
        rows = torch.from_numpy(np.broadcast_to(np.asarray(x, np.float32).reshape(1, 1, 5), (1, 8, 5)).copy())
        return net.value(rows)[0, 0, 0].item()

    v = [value(s) for s in states]
    r = rates(1)
    sound, paper = net.prepare(data, r, SOUND), net.prepare(data, r, PAPER)

    def delta(t, after):
        return 1.0 + 0.99 * after - v[t]

    decay = 0.99 * 0.95
    last = [delta(2, value(tail)), delta(2, v[2])]
    wanted = [
        [delta(0, v[1]) + decay * delta(1, value(final)), delta(1, value(final)), last[0]],
        [delta(0, v[1]) + decay * delta(1, 0.0), delta(1, 0.0), last[1]],
    ]
    for batch, numbers in zip((sound, paper), wanted, strict=True):
        np.testing.assert_allclose(batch.advantages[0].numpy(), numbers, rtol=1e-4, atol=1e-5)
    assert sound.keep is None
    assert paper.keep.tolist() == [[1.0, 0.0, 1.0]]


def test_the_worst_case_q_goes_on_after_a_time_limit_unless_that_is_an_end():
    """Three steps: step 0 cut off by the time limit, step 1 terminal, step 2 followed by the tail."""
    states = np.arange(3, dtype=np.float32).reshape(3, 1, 1, 1)
    empty, flags = np.zeros((3, 1, 1, 1), np.float32), np.zeros((3, 1, 1), bool)
    ends, cut = flags.copy(), flags.copy()
    ends[1], cut[0] = True, True
    final = (0, 0, 0, np.full(1, 9.0, np.float32))
    data = Rollout(
        states, empty, empty, np.ones((3, 1, 1)), ends, cut, np.full((1, 1, 1), 7.0, np.float32), [final]
    )
    sound, paper = ppo.successors(data, SOUND), ppo.successors(data, PAPER)
    assert sound["goes_on"].tolist() == [[1.0, 0.0, 1.0]]
    assert paper["goes_on"].tolist() == [[0.0, 0.0, 1.0]]
    assert sound["next_states"].flatten().tolist() == [9.0, 2.0, 7.0]
    assert paper["next_states"].flatten().tolist() == [1.0, 2.0, 7.0]


# ------------------------------------------------------------------------------------------ adversaries


def test_atla_perturbation_by_hand():
    shown = along_tanh(np.zeros((1, 1, 3), np.float32), np.array([[[0.5, 7.0, -7.0]]], np.float32), 0.1)
    np.testing.assert_allclose(shown[0, 0], [0.05, 0.1, -0.1], rtol=1e-6)


@pytest.mark.parametrize("smoothed", [False, True])
def test_fgsm_moves_the_action_along_the_direction_and_the_slip_against_it(scene, smoothed):
    policy, batch = scene
    torch.manual_seed(1)
    direction = torch.randn(2, 32, 3)
    noise = 0.1 * torch.randn(2, 32, 20, 5) if smoothed else None

    def mean(x):
        return policy.mean(x) if noise is None else policy.smoothed_mean(x, noise)

    scores = []
    for slip in (False, True):
        switches = dataclasses.replace(SOUND, fgsm_sign_flipped=slip)
        start = 0.01 * (2 * torch.rand(2, 32, 5) - 1)
        shown = directed_step(policy, batch.states, direction, start, noise, 0.1, switches)
        assert (shown - batch.states).abs().max() <= 0.1 + 1e-6
        change = (mean(shown) - mean(batch.states)).detach()
        scores.append(torch.cosine_similarity(change, direction, dim=-1).mean())
    assert scores[0] > 0.2
    assert scores[1] < -0.2
    assert directed_objective(change, direction).shape == (2, 32)


@pytest.mark.parametrize("name", ["ppo+atla", "s-ppo+pa-atla"])
def test_a_look_at_a_cut_off_state_leaves_the_coming_draws_alone(name):
    """A pool looks whenever one of its members is cut off: the others must not notice."""
    learner = ppo.Learner(config(name, (0, 1), train_samples=4), threads=1)
    observation = np.random.default_rng(0).normal(size=(2, 1, 4)).astype(np.float32)
    played = []
    for looks in (0, 3):
        player = learner.adversary.attacking(learner.actor("agent"), 0)
        seen = [player.perceive(observation) for _ in range(looks)]
        assert all(np.array_equal(s, seen[0]) for s in seen)
        played.append(player.act(observation, 0).played)
    np.testing.assert_array_equal(*played)


ROBUST = ["ppo+sgld", "ppo+convex", "ppo+radial", "ppo+wocar", "ppo+atla", "ppo+pa-atla"]


@pytest.mark.parametrize("protocol", ["paper", "sound"])
@pytest.mark.parametrize("name", ROBUST + [f"s-{name}" for name in ROBUST])
def test_every_method_trains_and_its_members_are_single_runs(tmp_path, name, protocol):
    changes = {"protocol": protocol, "train_samples": 4, "horizon": 64, "iterations": 2}
    pool = ppo.train(config(name, (3, 4), **changes), tmp_path / "pool", tensorboard=False)
    (single,) = ppo.train(config(name, (4,), **changes), tmp_path / "one", tensorboard=False)
    mine, theirs = load_agent(pool[1]), load_agent(single)
    assert mine.info.method == name
    for key, value in theirs.network.state_dict().items():
        torch.testing.assert_close(mine.network.state_dict()[key], value, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["s-ppo+wocar", "s-ppo+pa-atla", "ppo+atla"])
def test_interrupted_and_resumed_ends_with_the_same_bits(tmp_path, name):
    conf = config(name, (0, 1), iterations=3, train_samples=4, horizon=64)

    def stop(step, row):
        if step == 128:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ppo.train(conf, tmp_path / "a", tensorboard=False, on_iteration=stop, save_every=0.0)
    resumed = ppo.train(conf, tmp_path / "a", resume=True, tensorboard=False)
    whole = ppo.train(conf, tmp_path / "b", tensorboard=False)
    assert [load_agent(p).digest for p in resumed] == [load_agent(p).digest for p in whole]


def test_common_noise_starts_with_ratios_of_one(tmp_path):
    rows = []
    for common in (False, True):
        conf = config("s-ppo", iterations=3, common_noise=common, policy_lr=3e-3)
        row = []
        ppo.train(
            conf, tmp_path / str(common), tensorboard=False, on_iteration=lambda _, r, to=row: to.append(r)
        )
        rows.append(row[-1])
    assert rows[1]["noise_ratio_spread"] < rows[0]["noise_ratio_spread"] / 3


# ------------------------------------------------------------------------------ fitted adversaries


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    conf = presets.configure(
        methods.parse("ppo"),
        "InvertedPendulum-v4",
        (0,),
        {"steps": 512 * 24, "horizon": 512, "minibatches": 8, "policy_lr": 2e-3, "value_lr": 2e-3},
    )
    (path,) = ppo.train(conf, tmp_path_factory.mktemp("victim") / "run", tensorboard=False)
    return load_agent(path)


def test_a_fitted_adversary_hurts_and_resumes(victim, tmp_path):
    grid = [AdversaryConfig(lr=3e-3, value_lr=3e-3), AdversaryConfig(lr=1e-3, entropy=1e-3, anneal=False)]
    fit = FitSettings(epsilon=3.0, steps=512 * 4, horizon=512, minibatches=8, epochs=5)
    found = fit_adversaries(victim, "InvertedPendulum-v4", grid, fit, SOUND)
    assert len(found.policies) == 2
    assert all(len(c) == 4 for c in found.curves)
    clean = rollout.evaluate(victim, episodes=5, seed=1).returns.mean()
    assert np.nanmin(found.curves) < 0.5 * clean

    def stop(step, returns):
        if step >= 512 * 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_adversaries(
            victim, "InvertedPendulum-v4", grid, fit, SOUND, progress=stop, state_dir=tmp_path / "fit"
        )
    again = fit_adversaries(victim, "InvertedPendulum-v4", grid, fit, SOUND, state_dir=tmp_path / "fit")
    for a, b in zip(found.policies, again.policies, strict=True):
        for x, y in zip(a.parameters(), b.parameters(), strict=True):
            assert torch.equal(x, y)


def test_a_fit_refuses_what_cannot_work(victim):
    fit = FitSettings(epsilon=0.1, steps=10)
    with pytest.raises(UserError, match="less than one iteration"):
        fit_adversaries(victim, "InvertedPendulum-v4", [AdversaryConfig()], fit, SOUND)
    with pytest.raises(UserError, match="director"):
        fit_adversaries(victim, "InvertedPendulum-v4", [AdversaryConfig()], fit, SOUND, kind="pa")
