"""Fitting as a pool, choosing on held-out episodes, adversary files, the suite and its flags."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from smoothrl import certification, networks
from smoothrl.agents import Agent, Smoothing
from smoothrl.attacks import Adversary, Overrides, load_adversary, make_attack, make_budget, save_adversary
from smoothrl.attacks.base import Attack
from smoothrl.attacks.catalogue import plan_of
from smoothrl.attacks.learned import DirectedQAttack
from smoothrl.certificates import files
from smoothrl.errors import UserError
from smoothrl.learners import suite
from smoothrl.learners.attack_runs import Attacked, Episodes, early_stopped, play
from smoothrl.learners.critics import (
    CriticConfig,
    CriticSettings,
    Experience,
    PoolGrid,
    both_kinds,
    collect_experience,
    critic_loss,
    fit_critics,
)
from smoothrl.learners.directors import DirectorConfig, DirectorFit, DirectorSettings
from smoothrl.learners.fit_attacks import SCALES, fit_attack, still_improving
from smoothrl.learners.tournament import Arena, Grouped, choose, play_members
from smoothrl.protocols import PAPER, SOUND
from smoothrl.results import ResultRow

from .agents import adversary, linear_policy, linear_q, normalised_policy, policy, q_agent

TOY = "smoothrl/ToyContinuous-v0"
SMALL = CriticSettings(iterations=3, horizon=128, epochs=1, minibatches=4, lanes=4)
GRID = [CriticConfig(0.05, 0.3), CriticConfig(0.2, 1.0), CriticConfig(0.1, 10.0)]


@pytest.mark.parametrize("protocol", [SOUND, PAPER], ids=lambda p: p.name)
def test_critics_of_a_pool_equal_single_fits(protocol):
    agent = policy(Smoothing("median", 0.2, 5))
    data = collect_experience(agent, TOY, SMALL, protocol)
    assert data.states.shape == (384, 2)
    pool = fit_critics(agent, TOY, GRID, SMALL, protocol, experience=data)
    for i, config in enumerate(GRID):
        alone = fit_critics(agent, TOY, [config], replace(SMALL, seed=0), protocol, experience=data)
        if i == 0:
            for a, b in zip(pool.critics[i].parameters(), alone.critics[0].parameters(), strict=True):
                assert torch.allclose(a, b, atol=1e-4)
    assert all(np.isfinite(c).all() for c in pool.curves)


def test_critic_targets_by_hand():
    """Q = x: rows r + gamma Q(s', a') for the next state, or for the next row of the minibatch (released)."""
    critics = networks.PoolMLP(1, 2, 1, ())
    critics.set_member(0, networks.MLP(2, 1, ()))
    with torch.no_grad():
        critics.layers[0].weight.copy_(torch.tensor([[[1.0], [0.0]]]))  # type: ignore[union-attr, operator]
        critics.layers[0].bias.zero_()  # type: ignore[union-attr, operator]
    one = torch.tensor
    batch = Experience(
        one([[[1.0], [2.0], [4.0]]]),
        torch.zeros(1, 3, 1),
        one([[0.5, 0.5, 0.5]]),
        one([[[3.0], [5.0], [6.0]]]),
        torch.zeros(1, 3, 1),
        one([[1.0, 1.0, 0.0]]),
    )
    settings = CriticSettings(discount=0.5)
    none = PoolGrid.of([CriticConfig(0.0, 0.0)])
    sound = critic_loss(critics, batch, none, 0.0, settings, False)
    errors = np.array([1.0 - 2.0, 2.0 - 3.0, 4.0 - 0.5])
    huber = np.where(np.abs(errors) < 1, errors**2 / 2, np.abs(errors) - 0.5)
    assert sound.item() == pytest.approx(huber.mean())
    released = critic_loss(critics, batch, none, 0.0, settings, True)
    errors = np.array([1.0 - 1.5, 2.0 - 2.5])
    assert released.item() == pytest.approx((errors**2 / 2).mean())
    robust = critic_loss(critics, batch, PoolGrid.of([CriticConfig(0.1, 2.0)]), 1.0, settings, False)
    assert robust.item() == pytest.approx(huber.mean() + 2.0 * 0.1**2)
    myopic = critic_loss(critics, batch, PoolGrid.of([CriticConfig(0.0, 0.0, True)]), 0.0, settings, False)
    errors = np.array([1.0, 2.0, 4.0]) - 0.5
    huber = np.where(np.abs(errors) < 1, errors**2 / 2, np.abs(errors) - 0.5)
    assert myopic.item() == pytest.approx(huber.mean())


def test_a_critic_learns_what_follows():
    """In the toy game rewards are 1 - (a - x)^2: the value falls with (a - x)^2."""
    agent = linear_policy([[0.0, 0.0]])
    settings = CriticSettings(iterations=6, horizon=1024, epochs=4, minibatches=16, lanes=8, lr=3e-3)
    settings = replace(settings, exploration=1.0, discount=0.0)
    critic = fit_critics(agent, TOY, [CriticConfig(0.0, 0.0)], settings, SOUND).critics[0]
    state = torch.tensor([[0.8, 0.2], [-0.8, 0.2]])
    near = critic(torch.cat([state, torch.tensor([[0.3], [-0.3]])], 1))
    far = critic(torch.cat([state, torch.tensor([[-0.3], [0.3]])], 1))
    assert (near > far).all()


def test_killed_critic_fit_goes_on_to_the_same_bits(tmp_path):
    agent = policy()

    class Killed(Exception):
        pass

    def kill(share: float, note: str) -> None:
        if note.startswith("fitting") and share > 0.8:
            raise Killed

    settings = replace(SMALL, iterations=6)
    whole = fit_critics(agent, TOY, GRID, settings, SOUND)
    with pytest.raises(Killed):
        fit_critics(agent, TOY, GRID, settings, SOUND, progress=kill, state_dir=tmp_path)
    again = fit_critics(agent, TOY, GRID, settings, SOUND, state_dir=tmp_path)
    for a, b in zip(whole.critics, again.critics, strict=True):
        for x, y in zip(a.parameters(), b.parameters(), strict=True):
            assert torch.equal(x, y)


def test_killed_director_fit_goes_on_to_the_same_bits(tmp_path):
    agent = q_agent(Smoothing("vote", 0.2, 4))
    plan = plan_of("pa-ad", agent, SOUND, Overrides(steps=2, draws=2))
    grid = [DirectorConfig(), DirectorConfig(lr=1e-3)]
    settings = DirectorSettings(steps=1024, lanes=4, horizon=16)

    def fit():
        attack = DirectedQAttack(agent, make_budget(agent, 0.3), None, plan, SOUND, smoothed=True)
        return DirectorFit(attack, agent, "smoothrl/Toy-v0", grid, settings)

    def kill(share: float, note: str) -> None:
        if share > 0.6:
            raise ZeroDivisionError

    whole = fit().run()
    with pytest.raises(ZeroDivisionError):
        fit().run(kill, tmp_path)
    shares = []
    again = fit().run(lambda share, note: shares.append(share), tmp_path)
    assert shares[0] > 0.4
    assert again.curves == whole.curves
    for a, b in zip(whole.directors, again.directors, strict=True):
        for x, y in zip(a.parameters(), b.parameters(), strict=True):
            assert torch.equal(x, y)
    grid[0] = DirectorConfig(lr=2e-3)
    other = fit()
    with pytest.raises(UserError, match="lr"):
        other.run(None, tmp_path)


def test_grouped_pool_gives_each_member_its_rows():
    members = [networks.MLP(3, 2, (8,)) for _ in range(4)]
    grouped = Grouped(members, 3)
    x = torch.randn(2 * 4 * 3, 3)
    out = grouped(x).view(2, 4, 3, 2)
    for i, member in enumerate(members):
        rows = x.view(2, 4, 3, 3)[:, i]
        assert torch.allclose(out[:, i], member(rows), atol=1e-6)


def test_selection_finds_the_adversary_that_hurts():
    """a = x + u; pushing u's way costs most. Members meet the episodes that each would meet alone."""
    agent = linear_policy([[1.0, 1.0]])

    def pushing(direction: list[float]) -> networks.GaussianPolicy:
        network = networks.GaussianPolicy(2, 2, ())
        with torch.no_grad():
            network.mean.layers[0].weight.zero_()  # type: ignore[operator, union-attr]
            network.mean.layers[0].bias.copy_(torch.tensor(direction))  # type: ignore[operator, union-attr]
        return network

    members = [pushing(d) for d in ([-1.0, -1.0], [1.0, 1.0], [0.0, 0.0])]
    info = adversary(agent, "optimal").info

    def make(network):
        return make_attack("optimal", agent, 0.3, adversary=Adversary(network, info))

    arena = Arena(agent, TOY, 5)
    returns = play_members(arena, make, members, 4)
    for i, member in enumerate(members):
        alone = play(agent, make(member), Episodes(4, 5)).results.returns
        assert returns[i] == pytest.approx(alone, abs=1e-4)
    assert choose(arena, make, members, first=4, then=4, keep=2).member == 1


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: policy(Smoothing("median", 0.2, 4)), "min-rs"),
        (lambda: policy(Smoothing("median", 0.2, 4)), "optimal"),
        (policy, "pa-ad"),
        (lambda: q_agent(Smoothing("vote", 0.2, 4)), "pa-ad"),
    ],
    ids=["min-rs", "optimal", "pa-ad", "q pa-ad"],
)
def test_fitting_end_to_end(make, name, tmp_path):
    agent = make()
    tiny = replace(
        SCALES["tiny"],
        adversary_steps=2048 * (2 if name == "pa-ad" else 1),
        critic_settings=SMALL,
        adversary_lanes=16,
    )
    tiny = replace(tiny, director_settings=replace(tiny.director_settings, steps=256))
    file = fit_attack(agent, name, 0.3, folder=tmp_path, scale=tiny)
    found = load_adversary(file)
    assert found.info.victim == agent.digest
    assert found.info.notes["curve"]
    stamp = file.stat().st_mtime_ns
    assert fit_attack(agent, name, 0.3, folder=tmp_path, scale=tiny) == file
    assert file.stat().st_mtime_ns == stamp
    attacked = play(agent, make_attack(name, agent, 0.3, adversary=found), Episodes(4))
    assert attacked.excess == 0.0


@pytest.mark.parametrize("protocol", [SOUND, PAPER], ids=lambda p: p.name)
def test_sound_min_rs_chooses_among_both_kinds_of_critics(protocol, tmp_path):
    tiny = replace(SCALES["tiny"], critic_settings=SMALL, critics=tuple(GRID[:2]))
    file = fit_attack(policy(), "min-rs", 0.3, folder=tmp_path, scale=tiny, protocol=protocol)
    notes = load_adversary(file).info.notes
    both = protocol is SOUND
    assert notes["grid"] == (4 if both else 2)
    assert len(notes["selection"]["means"]) == notes["grid"]
    assert both_kinds(GRID[:1]) == (GRID[0], replace(GRID[0], myopic=True))


def test_adversaries_of_others_are_refused(tmp_path):
    mine, other = policy(), policy(seed=1)
    fitted = adversary(other, "optimal")
    with pytest.raises(UserError, match="another agent"):
        make_attack("optimal", mine, 0.1, adversary=fitted)
    with pytest.raises(UserError, match=r"fitted for 'optimal', not for 'min-rs'"):
        make_attack("min-rs", other, 0.1, adversary=fitted)
    elsewhere = Adversary(fitted.network, replace(fitted.info, env_id="Hopper-v2"))
    with pytest.raises(UserError, match="Hopper-v2"):
        make_attack("optimal", other, 0.1, adversary=elsewhere)
    with pytest.raises(UserError, match="--adversary FILE"):
        make_attack("optimal", other, 0.1)
    path = save_adversary(fitted, tmp_path / "a.safetensors")
    again = load_adversary(path)
    assert again.info == fitted.info
    x = torch.randn(9, 2)
    assert torch.equal(again.network(x), fitted.network(x))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match="damaged"):
        load_adversary(path)
    with pytest.raises(UserError, match="no such"):
        load_adversary(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "agent", "words"),
    [
        ("mad", q_agent, "discrete actions.*valid here: random, fgsm, pgd"),
        ("pgd", policy, "continuous actions.*valid here: random, fgsm, mad"),
        ("s-mad", policy, "not smoothed; use 'mad'"),
        ("s-pgd", policy, "continuous actions"),
        ("mda", policy, "did you mean 'mad'"),
    ],
)
def test_attacks_that_do_not_fit_are_refused(name, agent, words):
    with pytest.raises(UserError, match=words):
        make_attack(name, agent(), 0.1)
    with pytest.raises(UserError, match="at least one of its draws"):
        Overrides(draws=0)


def test_still_improving():
    rng = np.random.default_rng(0)
    falling = [float(v) for v in 1000 - 10 * np.arange(60) + rng.normal(0, 20, 60)]
    flat = [float(v) for v in 500 + rng.normal(0, 20, 60)]
    assert still_improving(falling)
    assert not still_improving(flat)
    assert not still_improving(falling[:3])


def test_released_early_stopping():
    low = np.array([100.0] * 5 + [0.0] * 15)
    assert len(early_stopped(low, 50.0)) == 20
    high = np.full(20, 100.0)
    assert len(early_stopped(high, 50.0)) == 6
    assert len(early_stopped(high, 150.0)) == 20


# ------------------------------------------------------------------------------------------ the suite


def run(agent, epsilon, tmp_path, **options):
    return suite.run_suite(agent, epsilon, episodes=Episodes(8, 2), folder=tmp_path, scale="tiny", **options)


def test_the_suite_reports_the_worst_and_goes_on_after_a_kill(tmp_path):
    agent = linear_policy([[1.0, 2.0]], Smoothing("median", 0.05, 8))
    names = ["random", "fgsm", "mad"]

    def kill(what, done, total, note):
        if what == "mad":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(agent, 0.2, tmp_path, names=names, progress=kill)
    seen = []
    report = run(agent, 0.2, tmp_path, names=names, progress=lambda what, *rest: seen.append(what))
    assert set(seen) == {"mad"}
    assert [row.metric for row in report.rows] == ["clean", *names]
    assert report.worst.mean == min(row.mean for row in report.rows[1:])
    assert report.worst_attack in report.worst.note
    assert report.flags == []
    fresh = run(agent, 0.2, tmp_path / "fresh", names=names)
    assert fresh.worst.mean == report.worst.mean


def test_hopeless_attacks_are_skipped(tmp_path):
    agent = linear_q([[-1.0, 0.0], [1.0, 0.0]])
    report = run(agent, 1.2, tmp_path)
    assert report.worst.mean == 0.0
    assert any(s.startswith("pa-ad") for s in report.skipped)


class Breaking(Attack):
    """An attack that does one thing wrong."""

    name = "breaking"
    size = 2.0

    def perturb(self, observations, index, noise, step):
        return observations + self.size * self.budget.epsilon

    def search(self, observations, index, noise, step):
        return observations


def names_of(flags):
    return {f.name for f in flags}


def test_flag_outside_the_budget():
    agent = policy()
    broken = Breaking(agent, make_attack("mad", agent, 0.1).budget)
    assert "breaking outside the budget" in names_of(
        suite.attack_flags(play(agent, broken, Episodes(3)), 0.1)
    )
    broken.size = 1.0
    assert not suite.attack_flags(play(agent, broken, Episodes(3)), 0.1)


def test_flag_epsilon_zero(tmp_path, monkeypatch):
    agent = policy()
    monkeypatch.setattr(Attack, "perturb", lambda self, x, index, noise, step: x + 0.2)
    report = run(agent, 0.1, tmp_path, names=["mad"])
    assert "epsilon 0" in names_of(report.flags)


def test_flag_zero_gradients():
    agent = policy()
    with torch.no_grad():
        for layer in agent.network.mean.layers:
            layer.weight.mul_(1e4)
    attacked = play(agent, make_attack("mad", agent, 0.01, protocol=PAPER), Episodes(3))
    assert "mad zero gradients" in names_of(suite.attack_flags(attacked, 0.01))
    assert not suite.attack_flags(play(policy(), make_attack("mad", policy(), 0.1), Episodes(3)), 0.1)


def test_flag_broken_gradients():
    agent = policy()
    attack = make_attack("mad", agent, 0.1)
    attack.objective = lambda outputs, aim: outputs.sum((1, 2)) * float("nan")
    assert "mad broken gradients" in names_of(suite.attack_flags(play(agent, attack, Episodes(3)), 0.1))


def test_flag_train_mode_and_batch_statistics():
    agent = policy()
    agent.network.train()
    assert names_of(suite.agent_flags(agent)) == {"train mode"}
    q = networks.DenoisedQ(networks.DnCNN(1, 4, 3, statistics="batch"), networks.SmallQ(1, 2, 6, 2, 8))
    base = q_agent()
    mixing = Agent(q, base.normaliser, base.info, batch_statistics=True)
    assert names_of(suite.agent_flags(mixing)) == {"batch statistics"}
    assert not suite.agent_flags(policy())


def row(metric, mean, spread=1.0, returns=()):
    return ResultRow(TOY, "x", metric, mean, low=mean - spread, high=mean + spread, returns=tuple(returns))


def test_flag_random_as_strong():
    rows = {"clean": row("clean", 100.0), "random": row("random", 50.0), "mad": row("mad", 60.0)}
    assert names_of(suite.comparison_flags(rows, (), 0.1, "linf")) == {"random as strong"}
    rows["mad"] = row("mad", 20.0)
    assert not suite.comparison_flags(rows, (), 0.1, "linf")
    harmless = {"clean": row("clean", 100.0), "random": row("random", 99.5), "mad": row("mad", 99.8)}
    assert not suite.comparison_flags(harmless, (), 0.1, "linf")


def test_flag_certificate_broken():
    rows = {"clean": row("clean", 100.0), "mad": row("mad", 60.0, returns=(59.0, 60.0, 61.0))}
    claim = suite.Certificate(80.0, 0.1, "l2")
    assert names_of(suite.comparison_flags(rows, (claim,), 0.1, "l2")) == {"certificate broken"}
    assert names_of(suite.comparison_flags(rows, (replace(claim, statistic="median"),), 0.05, "l2")) == {
        "certificate broken"
    }
    assert not suite.comparison_flags(rows, (claim,), 0.2, "l2")
    assert not suite.comparison_flags(rows, (claim,), 0.1, "linf")
    assert not suite.comparison_flags(rows, (replace(claim, bound=55.0),), 0.1, "l2")


def test_flag_more_draws():
    usual = np.array([10.0, 11.0, 9.0, 10.5, 10.2])
    assert suite.draws_flag(usual, usual - 5.0, "mad", 16) is not None
    assert suite.draws_flag(usual, usual + np.array([0.1, -0.1, 0.1, -0.1, 0.0]), "mad", 16) is None


def test_more_draws_is_flagged_by_the_suite(tmp_path, monkeypatch):
    """The agent plays worse as soon as its attacker averages over more draws than the suite's usual ones."""
    agent = linear_policy([[1.0, 2.0]], Smoothing("median", 0.05, 8))
    assert not run(agent, 0.2, tmp_path / "as-it-is", names=["mad"]).flags
    honest = suite.play

    def play_worse(agent, attack, episodes, **rest):
        found = honest(agent, attack, episodes, **rest)
        if attack is not None and attack.describe().get("draws") == 16:
            found.results.returns[:] -= 50.0
        return found

    monkeypatch.setattr(suite, "play", play_worse)
    report = run(agent, 0.2, tmp_path / "worse", names=["mad"])
    assert names_of(report.flags) == {"more draws"}


@pytest.mark.parametrize("growing", [True, False])
def test_flag_unfinished_adversary(tmp_path, growing):
    agent = policy()
    fitted = adversary(agent, "optimal")
    given = Adversary(fitted.network, replace(fitted.info, notes={"still_improving": growing}))
    report = run(agent, 0.1, tmp_path, names=["random", "optimal"], adversaries={"optimal": given})
    assert ("optimal unfinished" in names_of(report.flags)) == growing
    kept = json.loads(next(tmp_path.glob("suite-*/suite.json")).read_text())
    assert kept["format"] == "smoothrl-suite"


def test_an_adversary_of_others_is_refused_before_anything_is_played(tmp_path):
    foreign = adversary(policy(seed=1), "optimal")
    with pytest.raises(UserError, match="another agent"):
        run(policy(), 0.1, tmp_path, adversaries={"optimal": foreign})
    assert not list(tmp_path.iterdir())


def test_a_return_certificate_is_held_against_the_attacks(tmp_path):
    agent = linear_policy([[1.0, 0.0]], Smoothing("median", 0.2, 1))
    made = certification.certify_return(agent, 300, epsilons=(0.005,))
    file = files.write(tmp_path / "bound.json", made.record)
    (claim,) = suite.claims_of(file, agent)
    assert (claim.bound, claim.epsilon, claim.norm) == (float(made.result.bound[0]), 0.005, "l2")
    assert claim.statistic == "median"

    def flags(claim, folder):
        episodes, options = Episodes(40, 2), {"names": ["mad"], "certificates": (claim,)}
        report = suite.run_suite(agent, 0.005, "l2", episodes=episodes, folder=tmp_path / folder, **options)
        return names_of(report.flags)

    assert "certificate broken" not in flags(claim, "true")
    assert "certificate broken" in flags(replace(claim, bound=claim.bound + 5.0), "false")
    with pytest.raises(UserError, match="another agent"):
        suite.claims_of(file, policy(Smoothing("median", 0.2, 1)))
    with pytest.raises(UserError, match="--samples 1"):
        suite.claims_of(file, agent.with_smoothing(Smoothing("median", 0.2, 100)))
    short = certification.certify_return(agent, 300, epsilons=(0.005,), horizon=3)
    with pytest.raises(UserError, match="whole episodes"):
        suite.claims_of(files.write(tmp_path / "short.json", short.record), agent)


def test_rows_say_how_the_attack_was_made():
    from smoothrl.learners.attack_runs import row_of

    agent = normalised_policy()
    episodes = Episodes(3)
    attacked = play(agent, make_attack("mad", agent, 0.1, "l2"), episodes)
    assert isinstance(attacked, Attacked)
    made = row_of(agent, attacked, episodes, "sound", "smoothrl attack x")
    assert (made.metric, made.epsilon, made.norm, made.protocol) == ("mad", 0.1, "l2", "sound")
    for part in ("steps 3", "draws 4", "restarts 4"):
        assert part in made.note
