"""Exact sums instead of simulation, limits of many samples, and figures worked out elsewhere."""

from __future__ import annotations

import itertools
import time

import certificate_toys as toys
import numpy as np
import numpy.typing as npt
import pytest
from certificate_toys import phi, z
from scipy import stats

from smoothrl.certificates import action_bound, adiv, deployed_radius, intervals, radius, return_bound
from smoothrl.certificates.episodes import joint_step_radius
from smoothrl.certificates.radius import largest_radius
from smoothrl.certificates.returns import per_step_return_bound

ALPHA = 0.05
Array = npt.NDArray[np.float64]


def outcomes(n: int, actions: int) -> npt.NDArray[np.int64]:
    """Every count vector of n votes."""
    heads = [c for c in itertools.product(range(n + 1), repeat=actions - 1) if sum(c) <= n]
    return np.array([[*c, n - sum(c)] for c in heads])


def violation(mode: str, n: int, grid: list[list[float]]) -> float:
    """The exact worst probability, over a grid of vote laws, of an issued and false certificate."""
    counts = outcomes(n, len(grid[0]))
    result = radius(counts, 1.0, ALPHA, mode)
    worst = 0.0
    for p in grid:
        limit = np.maximum(toys.oracle_radius(p)[np.maximum(result.action, 0)], 0.0)
        false = result.certified & (result.radius > limit + 1e-9)
        worst = max(worst, float(stats.multinomial.pmf(counts[false], n, p).sum()))
    return worst


TWO = [[p, 1 - p] for p in np.linspace(0.5, 0.999, 400)]
THREE = [
    [a, (1 - a) * s, (1 - a) * (1 - s)]
    for a in np.linspace(0.34, 0.95, 14)
    for s in (0.5, 0.7, 0.9, 0.98)
    if a >= (1 - a) * s
]


@pytest.mark.parametrize(
    ("mode", "n", "known"),
    [
        ("majority", 10, 0.045), ("majority", 100, 0.0449), ("rank", 20, 0.0449), ("rank", 100, 0.0449),
        ("paper", 10, 0.0219), ("paper", 100, 0.0130), ("paper", 20, 0.0141),
    ],
)  # fmt: skip
def test_worst_violation_of_two_actions(mode: str, n: int, known: float) -> None:
    found = violation(mode, n, TWO)
    assert found <= ALPHA
    assert found == pytest.approx(known, abs=0.003)


def test_worst_violation_with_another_split() -> None:
    """Rank at (.005, .04, .005) of .05, the split of the published comparison: 4.0 %."""
    counts = outcomes(100, 2)
    result = radius(counts, 1.0, ALPHA, "rank", split=(0.1, 0.8, 0.1))
    rates = []
    for p in TWO:
        limit = np.maximum(toys.oracle_radius(p)[np.maximum(result.action, 0)], 0.0)
        false = result.certified & (result.radius > limit + 1e-9)
        rates.append(float(stats.multinomial.pmf(counts[false], 100, p).sum()))
    assert max(rates) == pytest.approx(0.0400, abs=0.0005)


@pytest.mark.parametrize("mode", ["majority", "rank", "paper"])
def test_worst_violation_of_three_actions(mode: str) -> None:
    assert violation(mode, 50, THREE) <= ALPHA


def test_clopper_pearson_is_not_needlessly_loose() -> None:
    p, k = np.linspace(0.05, 0.95, 181), np.arange(101)
    lower = intervals.cp_lower(k, 100, ALPHA)
    rates = [float(stats.binom.pmf(k[lower > q], 100, q).sum()) for q in p]
    assert max(rates) <= ALPHA
    assert max(rates) >= 0.9 * ALPHA
    upper = intervals.cp_upper(k, 100, ALPHA)
    assert np.allclose(upper, 1 - lower[::-1], rtol=1e-9)


def test_clopper_pearson_inverts_the_binomial_tail() -> None:
    k = np.arange(1, 101)
    assert np.allclose(stats.binom.sf(k - 1, 100, intervals.cp_lower(k, 100, 0.01)), 0.01, rtol=1e-8)
    assert intervals.cp_lower(100, 100, 0.05) == pytest.approx(0.05 ** (1 / 100))


def test_unanimous_hundred() -> None:
    """The exact radius is 1.87 sigma where the published one stops at 1.16."""
    assert radius([100, 0], 1.0).radius[0] == pytest.approx(1.8730, abs=1e-4)
    assert radius([100, 0], 1.0, mode="paper").radius[0] == pytest.approx(1.16314, abs=1e-5)
    assert joint_step_radius(100, 100, 2500, ALPHA, 1.0)[1] == pytest.approx(1.2672, abs=1e-4)
    assert largest_radius(1000, 1.0, ALPHA) == pytest.approx(2.7374, abs=1e-4)


@pytest.mark.parametrize("mode", ["majority", "rank", "cohen", "anytime"])
def test_radius_converges_to_the_truth(mode: str) -> None:
    counts = np.random.default_rng(3).multinomial(1_000_000, [0.7, 0.3])
    fixed = {"action": 0} if mode in ("cohen", "anytime") else {}
    found = radius(counts, 1.0, ALPHA, mode, **fixed).radius[0]
    assert toys.oracle_radius([0.7, 0.3])[0] - 0.01 < found < toys.oracle_radius([0.7, 0.3])[0]


def test_rank_uses_the_runner_up() -> None:
    """With the rest spread over 17 actions the true radius is far beyond sigma z(p_A)."""
    p = [0.4] + [0.6 / 17] * 17
    counts = np.random.default_rng(3).multinomial(1_000_000, p)
    found = radius(counts, 1.0, ALPHA, "rank").radius[0]
    assert found == pytest.approx(toys.oracle_radius(p)[0], abs=0.01)


def test_action_bound_converges_to_the_truth() -> None:
    sample = np.random.default_rng(4).standard_normal((1_000_000, 1)) * 0.2
    bound = action_bound(sample, 0.3, 0.2)
    assert bound.upper[0] == pytest.approx(0.3, abs=0.002)
    assert bound.lower[0] == pytest.approx(-0.3, abs=0.002)
    assert bound.upper[0] >= 0.3 - 1e-3


def test_population_adiv_of_a_linear_policy() -> None:
    rng = np.random.default_rng(5)
    weights = np.array([[1.0, 2.0], [0.5, -0.25]])
    sample = (rng.standard_normal((400_000, 2)) * 0.2) @ weights.T
    exact = adiv(sample, [0.1, 0.2, 0.3], 0.2)
    for value in exact.by_budget.values():
        assert value == pytest.approx(toys.linear_policy_adiv(weights.tolist()), rel=0.02)
    assert exact.infinite_fraction == 0.0


def test_paper_adiv_inflation() -> None:
    ratios = [toys.linear_policy_adiv_paper([[1.0]], e, 0.2, 100, ALPHA) for e in (0.1, 0.2, 0.3)]
    assert ratios == pytest.approx([1.6235, 1.3118, 1.2079], abs=1e-4)


@pytest.mark.parametrize("band", ["order", "dkw", "berk-jones"])
def test_return_quantile_converges_to_the_truth(band: str) -> None:
    n = 1_000_000 if band != "berk-jones" else 4000
    sample = np.random.default_rng(6).standard_normal(n)
    bound = return_bound(sample, 1.0, budget=1.0, band=band).bound[0]
    assert -1.0 - (0.01 if band != "berk-jones" else 0.2) < bound < -1.0 + 1e-3


def test_mean_bounds_reach_the_published_comparison() -> None:
    """Returns clip(N(31, 1.2^2), 0, 34), n = 1000: Berk-Jones keeps what DKW gives away."""
    g = z((np.arange(1000) + 0.5) / 1000)
    sample = np.clip(31 + 1.2 * g, 0, 34)
    shifts = (0.0, 0.5, 1.0, 1.5, 2.0)
    dkw = return_bound(sample, 1.0, budget=shifts, kind="mean", band="dkw", floor=0.0).bound
    bj = return_bound(sample, 1.0, budget=shifts, kind="mean", floor=0.0).bound
    assert dkw == pytest.approx([29.8, 27.4, 23.4, 18.0, 12.0], abs=0.15)
    assert bj == pytest.approx([30.7, 29.6, 27.8, 24.6, 19.8], abs=0.25)


@pytest.mark.parametrize(
    ("shift", "order", "five", "dkw", "bj"),
    [(0.5, 285, 275, 270, 265), (1.0, 140, 132, 120, 125), (1.5, 54, 49, 29, 44), (2.0, 15, 13, None, 10)],
)
def test_ranks_of_the_return_quantile(shift: float, order: int, five: int, dkw: int | None, bj: int) -> None:
    sample = np.arange(1000.0)

    def rank(**options: object) -> int | None:
        position = return_bound(sample, 1.0, budget=shift, **options).position[0]  # type: ignore[arg-type]
        return None if position is None else position + 1

    assert rank() == order
    assert rank(alpha=0.01) == five
    assert rank(band="dkw") == dkw
    assert rank(band="berk-jones") == bj


@pytest.mark.parametrize("shift", [3.0, 4.0, 5.0])
def test_hopeless_return_bounds_are_none(shift: float) -> None:
    result = return_bound(np.arange(1000.0), 1.0, budget=shift)
    assert result.position == (None,)
    assert result.bound[0] == -np.inf
    assert not result.found[0]
    paper = return_bound(np.arange(1000.0), 1.0, budget=shift, mode="paper")
    assert np.isfinite(paper.bound[0])
    assert "not a valid bound" in paper.claims[0]
    assert not paper.valid[0]


def test_published_road_runner_entries() -> None:
    """The two smallest of 1000 returns alone give three published numbers."""
    returns = 30000.0 + 10 * np.arange(1000)
    returns[:2] = 14000, 21800
    bounds = return_bound(returns, 0.05, eps=[0.003, 0.004, 0.005], horizon=2500, mode="paper")
    assert np.round(bounds.bound).tolist() == [21612, 14163, 14001]
    assert not bounds.valid.any()


@pytest.mark.parametrize(("n", "alpha"), [(5, 0.05), (100, 0.05), (300, 0.01)])
def test_berk_jones_calibration(n: int, alpha: float) -> None:
    levels = intervals.band_levels("berk-jones", n, alpha)
    uniform = np.sort(np.random.default_rng(7).random((40_000, n)), axis=1)
    held = float((uniform <= levels).all(axis=1).mean())
    assert held == pytest.approx(1 - alpha, abs=5 * np.sqrt(alpha / 40_000))


def test_noncrossing_in_closed_form() -> None:
    """n = 1 and n = 2 by hand: P(U_(1) <= a, U_(2) <= b) = b^2 - (b - a)^2."""
    assert intervals.noncrossing([0.3]) == pytest.approx(0.3, rel=1e-12)
    assert intervals.noncrossing([0.3, 0.8]) == pytest.approx(0.64 - 0.25, rel=1e-12)
    assert intervals.noncrossing([1.0, 1.0, 1.0]) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (3, 5), (10, 10), (45, 50), (990, 1000), (500, 1000), (0, 7)])
@pytest.mark.parametrize("alpha", [0.3, 0.05, 0.001])
def test_the_confidence_sequence_is_an_interval(k: int, n: int, alpha: float) -> None:
    """{p0: E(p0) >= 1/alpha} is [0, L]: no rejected level lies above an accepted one."""
    grid = np.linspace(1e-6, 1 - 1e-6, 4001)
    rejected = intervals.log_e_value(k, n, grid) >= np.log(1 / alpha)
    lower = float(intervals.cs_lower(k, n, alpha))
    assert np.array_equal(rejected, grid <= lower)


def test_confidence_sequence_costs_little() -> None:
    fixed, anytime = intervals.cp_lower(100, 100, 0.05), intervals.cs_lower(100, 100, 0.05)
    assert anytime < fixed
    assert z(anytime) == pytest.approx(1.7847, abs=1e-4)


def test_log_e_value_far_in_the_tail() -> None:
    """Beyond the smallest float; figures from 60-digit arithmetic."""
    assert intervals.log_e_value(0, 500, 0.99) == pytest.approx(-6.905412493618876, rel=1e-10)
    assert intervals.log_e_value(0, 500, 0.8, (1.0, 1.0)) == pytest.approx(-6.2166061010848646, rel=1e-10)
    assert intervals.log_e_value(0, 500, 0.99, (2.0, 1.0)) == pytest.approx(-6.221623773783191, rel=1e-10)
    found = intervals.log_e_value([10, 99_990, 300], [10_000, 100_000, 100_290], [0.999, 0.2, 0.8])
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("p", "ranks"),
    [
        (0.308538, (23, 22, 20, 19)), (0.158655, (10, 9, 8, 7)), (0.066807, (3, 2, 2, 1)),
        (0.022750, (None,) * 4),
    ],
)  # fmt: skip
def test_ranks_of_the_action_bound(p: float, ranks: tuple[int | None, ...]) -> None:
    found = [intervals.lower_index(100, p, a) for a in (0.05, 0.025, 0.05 / 6, 0.05 / 12)]
    assert tuple(None if i is None else i + 1 for i in found) == ranks


@pytest.mark.parametrize(
    ("ratio", "needed"),
    [
        (0.5, (9, 10, 13, 15)),
        (1.0, (18, 22, 28, 32)),
        (2.0, (131, 161, 209, 239)),
        (3.0, (2218, 2731, 3545, 4058)),
    ],
)
def test_samples_needed(ratio: float, needed: tuple[int, ...]) -> None:
    p = float(phi(-ratio))
    for alpha, n in zip((0.05, 0.025, 0.05 / 6, 0.05 / 12), needed, strict=True):
        found = intervals.min_samples(p, alpha)
        assert found == n
        assert intervals.lower_index(found, p, alpha) == 0
        assert intervals.lower_index(found - 1, p, alpha) is None


@pytest.mark.parametrize(
    ("ratio", "sup", "largest", "numpy_"),
    [(0.5, 1.9, 1.0, 1.4), (1.0, 6.5, 3.4, 4.1), (1.5, 19.5, 9.2, 12.6), (2.0, 60.2, 33.3, 33.8)],
)
def test_violation_of_the_published_action_bound(
    ratio: float, sup: float, largest: float, numpy_: float
) -> None:
    """One side of a tight coordinate; percent. The numpy reading is bounded, and simulated."""
    sample = np.random.default_rng(8).standard_normal((20_000, 100, 1))
    for reading, known in (("sup", sup), ("max", largest), ("numpy", numpy_)):
        bound = action_bound(sample, ratio, 1.0, mode="paper", reading=reading)
        simulated = 100 * float((bound.lower[:, 0] > -ratio).mean())
        assert simulated == pytest.approx(known, abs=1.2)
        stated = float(bound.claim.note.split("up to ")[1].split("%")[0])
        assert stated >= simulated - 1.2
        assert bound.claim.valid == (stated <= 5.0 and ratio < 2.0)


def test_deployed_radius_costs() -> None:
    """The price of m finite votes in sigma: z(pi_eta)."""
    ideal = radius([1000, 0], 1.0)
    for m, eta, price in ((5, 0.05, 0.881), (5, 0.001, 1.67), (100, 0.05, 0.218), (1000, 0.001, 0.124)):
        assert ideal.radius[0] - deployed_radius(ideal, m, eta).radius[0] == pytest.approx(price, abs=0.005)


def test_the_adaptive_adversary_is_stronger() -> None:
    """Two-step switch game: .841 clean, .682 under the best fixed attack, .500 under the adaptive one."""
    game = toys.switch_game(1.0, 1.0)
    static = toys.switch_game_static(1.0, 1.0)
    assert static == pytest.approx(0.681545, abs=1e-5)
    assert game["adaptive_worst"] == pytest.approx(0.5)
    assert game["adaptive_worst"] == pytest.approx(game["bound"])
    played = toys.switch_returns(1.0, 1.0, (400_000,), np.random.default_rng(9)).mean()
    assert played == pytest.approx(game["adaptive_worst"], abs=0.004)


def test_attack_side_radius() -> None:
    """A million noises at the end of the certified ball: the action stands; past the true radius it falls."""
    w, sigma, s = np.array([3.0, 4.0]), 0.2, np.array([0.12, 0.16])
    toy = toys.linear_agent(w.tolist(), 0.0, sigma)
    counts = toys.counts_of(toy, s.tolist(), 1, 10_000, 1)
    certified = float(radius(counts, sigma).radius[0])
    true = float(w @ s / 5)
    assert 0 < certified < true
    for distance, action in ((0.999 * certified, 1), (1.02 * true, 0)):
        moved = s - distance * w / 5
        votes = toys.counts_of(toy, moved.tolist(), 1, 1_000_000, 2)
        assert votes[0].argmax() == action


def test_attack_side_action_bound() -> None:
    row, sigma, eps = np.array([[3.0, 4.0]]), 0.2, 0.2
    toy = toys.policy_agent(row, sigma, lambda x: x)
    state = np.array([0.1, -0.2])
    bound = action_bound(toys.outputs_of(toy, state, 1, 5000, 3)[0], eps, sigma)
    for sign in (-1, 1):
        moved = state + sign * eps * row[0] / 5
        median = np.median(toys.outputs_of(toy, moved, 1, 1_000_000, 4))
        assert bound.lower[0] <= median <= bound.upper[0]


def test_attack_side_return() -> None:
    toy = toys.MONOTONE["clipped"]
    rng = np.random.default_rng(10)
    result = return_bound(toy.h(rng.standard_normal(1000)), 1.0, budget=1.0, kind="mean", floor=0.0)
    attacked = toy.h(rng.standard_normal(1_000_000) - 1.0)
    assert result.bound[0] <= attacked.mean()
    median = return_bound(toy.h(rng.standard_normal(1000)), 1.0, budget=1.0)
    assert (attacked >= median.bound[0]).mean() >= 0.5


def test_cvar_against_the_plug_in() -> None:
    """Without a budget and with many returns, CVaR_b is the mean of the lowest share."""
    sample = np.arange(4000.0)
    bound = return_bound(sample, 1.0, budget=0.0, kind="cvar", tail=0.25, floor=0.0).bound[0]
    assert 0.85 * sample[:1000].mean() < bound < sample[:1000].mean()
    mean = return_bound(sample, 1.0, budget=[0.0, 1.0], kind="mean", floor=0.0).bound
    whole = return_bound(sample, 1.0, budget=[0.0, 1.0], kind="cvar", tail=1.0, floor=0.0).bound
    assert whole == pytest.approx(mean, rel=1e-9)


def test_per_step_budget_is_tighter_than_the_total() -> None:
    rng = np.random.default_rng(11)
    root = np.sqrt(np.arange(1, 41))
    rewards = (np.cumsum(rng.standard_normal((1000, 40)), axis=1) / root > -2.0).astype(float)
    per_step = per_step_return_bound(rewards, 0.2, 1.0, floor=0.0)
    total = return_bound(rewards.sum(axis=1), 1.0, eps=0.2, horizon=40, kind="mean", floor=0.0)
    assert per_step.bound > total.bound[0]
    assert per_step.by_step[0] <= phi(2.0 - 0.2)


def test_a_whole_episode_takes_milliseconds() -> None:
    counts = np.random.default_rng(12).multinomial(100, [0.9, 0.02, 0.02, 0.02, 0.02, 0.02], size=2500)
    for mode in ("paper", "majority", "rank", "anytime"):
        times = []
        for _ in range(7):
            start = time.process_time()
            radius(counts, 0.1, ALPHA, mode)
            times.append(time.process_time() - start)
        assert min(times) < 0.010, mode
