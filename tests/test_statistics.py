"""Numbers worked out by hand, coverage by simulation, and the refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from smoothrl import statistics as s
from smoothrl.errors import UserError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_iqm_by_hand() -> None:
    assert s.iqm([1, 2, 3, 4]) == 2.5
    assert s.iqm([100, 1, 2, 3, 4, -100, 5, 6]) == 3.5  # -100, 1 and 6, 100 are cut
    assert s.iqm([1, 2, 30]) == 11.0  # floor(3 / 4) = 0: nothing is cut


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_iqm_is_the_trimmed_mean(values: list[float]) -> None:
    assert s.iqm(values) == pytest.approx(stats.trim_mean(values, 0.25), rel=1e-9, abs=1e-6)


def test_mean_gives_seeds_equal_weight() -> None:
    estimate = s.mean_estimate([[0.0] * 99, [1.0]], rng())
    assert estimate.value == 0.5  # not 0.01
    assert (estimate.seeds, estimate.episodes) == (2, 100)


def test_bootstrap_draws_seeds_above_episodes() -> None:
    """Two seeds without spread within: the draws are 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    draws = s.bootstrap_means([[0.0] * 50, [1.0] * 50], rng(), resamples=20_000)
    values, counts = np.unique(draws, return_counts=True)
    assert values.tolist() == [0.0, 0.5, 1.0]
    assert np.abs(counts / 20_000 - [0.25, 0.5, 0.25]).max() < 0.015


def test_bootstrap_variance_by_hand() -> None:
    """Var = (variance of seed means) / S + (mean of episode variances / n) / S, all with divisor n."""
    a, b = np.array([0.0, 2.0, 4.0]), np.array([10.0, 10.0, 13.0])
    draws = s.bootstrap_means([a, b], rng(), resamples=60_000)
    between = np.var([a.mean(), b.mean()]) / 2
    within = (a.var() / 3 + b.var() / 3) / 2 / 2
    assert draws.var() == pytest.approx(between + within, rel=0.03)


def test_ragged_groups_never_read_padding() -> None:
    draws = s.bootstrap_means([[5.0], [5.0] * 7], rng())
    assert (draws == 5.0).all()


def test_blocks_do_not_change_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = s.bootstrap_means([[0.0, 1.0, 5.0], [2.0, 9.0]], rng(1))
    monkeypatch.setattr(s, "BLOCK", 7)
    small = s.bootstrap_means([[0.0, 1.0, 5.0], [2.0, 9.0]], rng(1))
    assert whole.tolist() == small.tolist()


def test_same_generator_same_interval() -> None:
    data = [rng(3).normal(size=20), rng(4).normal(size=30)]
    assert s.mean_estimate(data, rng(7)) == s.mean_estimate(data, rng(7))


def test_expanded_percentile_by_hand() -> None:
    """Five units: t = 2.7764, times sqrt(5/4) = 3.1042, tail Phi(-3.1042) = 0.000954."""
    draws = np.linspace(0.0, 1.0, 100_001)
    low, high = s.expanded_percentiles(draws, 5)
    assert low == pytest.approx(0.000954, abs=2e-6)
    assert high == pytest.approx(1 - 0.000954, abs=2e-6)
    low, _ = s.expanded_percentiles(draws, 100_000)
    assert low == pytest.approx(0.025, abs=1e-5)


def test_coverage_with_five_seeds() -> None:
    """95 % nominal with five seeds: the plain percentile interval covers about 85 %, ours at least 91 %."""
    generator, hits, plain, trials = rng(11), 0, 0, 400
    for _ in range(trials):
        centres = generator.normal(0.0, 1.0, 5)
        groups = [generator.normal(c, 1.0, 10) for c in centres]
        estimate = s.mean_estimate(groups, generator, resamples=1500)
        hits += estimate.low <= 0.0 <= estimate.high
        low, high = np.quantile(s.bootstrap_means(groups, generator, resamples=1500), [0.025, 0.975])
        plain += low <= 0.0 <= high
    assert hits / trials > 0.91
    assert plain / trials < hits / trials


def test_one_seed_speaks_about_its_episodes() -> None:
    values = rng(5).normal(10.0, 2.0, 200)
    estimate = s.mean_estimate([values], rng())
    assert estimate.seeds == 1
    assert estimate.high - estimate.low == pytest.approx(2 * 1.97 * values.std() / np.sqrt(200), rel=0.08)


def test_single_value() -> None:
    estimate = s.mean_estimate([[3.0]], rng())
    assert (estimate.value, estimate.low, estimate.high) == (3.0, 3.0, 3.0)


def test_median_and_iqm_of_seed_means() -> None:
    groups = [[1.0, 3.0], [10.0, 10.0], [100.0, 0.0]]
    assert s.median_estimate(groups, rng()).value == 10.0
    assert s.iqm_estimate([[0, 0], [2, 4], [5, 5], [90, 90]], rng()).value == 4.0
    single = s.median_estimate([[1.0, 2.0, 50.0]], rng())
    assert (single.value, single.low, single.high) == (2.0, 1.0, 50.0)


def test_paired_difference_uses_common_seeds_only() -> None:
    a = {0: [1.0, 1.0], 1: [3.0, 3.0], 7: [1000.0]}
    b = {0: [0.0, 0.0], 1: [2.0, 2.0], 9: [-1000.0]}
    estimate = s.paired_difference(a, b, rng())
    assert (estimate.value, estimate.low, estimate.high, estimate.seeds) == (1.0, 1.0, 1.0, 2)
    with pytest.raises(UserError, match="no seed in common"):
        s.paired_difference({0: [1.0]}, {1: [1.0]}, rng())


def test_pairing_episodes_removes_their_common_spread() -> None:
    base = rng(2).normal(0.0, 100.0, 300)
    paired = s.paired_difference({0: base + 1.0}, {0: base}, rng(), paired_episodes=True)
    loose = s.paired_difference({0: base + 1.0}, {0: base}, rng())
    assert (paired.low, paired.high) == (pytest.approx(1.0), pytest.approx(1.0))
    assert loose.high - loose.low > 10.0
    with pytest.raises(UserError, match="as many in both"):
        s.paired_difference({0: [1.0, 2.0]}, {0: [1.0]}, rng(), paired_episodes=True)


def test_probability_of_improvement_by_hand() -> None:
    assert s.improvement([1, 2, 3], [0, 2, 2]) == pytest.approx((1 + 1 + 1 + 1 + 0.5 + 0.5 + 1 + 0 + 0) / 9)
    estimate = s.probability_of_improvement([[2, 3], [0, 0]], [[0, 1], [5, 6]], rng())
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.5, 0.5)
    with pytest.raises(UserError, match="same tasks"):
        s.probability_of_improvement([[1.0]], [], rng())


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8), st.lists(st.integers(0, 5), min_size=1, max_size=8)
)
@settings(max_examples=50, deadline=None)
def test_improvement_is_the_share_of_pairs(x: list[int], y: list[int]) -> None:
    pairs = [1.0 if i > j else 0.5 if i == j else 0.0 for i, j in itertools.product(x, y)]
    assert s.improvement(x, y) == pytest.approx(np.mean(pairs))
    assert s.improvement(x, y) + s.improvement(y, x) == pytest.approx(1.0)


def test_performance_profile() -> None:
    profile = s.performance_profile([[0, 1, 2, 3], [3, 3]], [0.5, 2.5, 9])
    assert profile.tolist() == [(0.75 + 1) / 2, (0.25 + 1) / 2, 0.0]


def test_refusals() -> None:
    with pytest.raises(UserError, match="no seeds"):
        s.mean_estimate([], rng())
    with pytest.raises(UserError, match="no episodes"):
        s.mean_estimate([[]], rng())
    with pytest.raises(UserError, match="finite"):
        s.mean_estimate([[1.0, float("nan")]], rng())
    with pytest.raises(UserError, match="between 0 and 1"):
        s.mean_estimate([[1.0, 2.0]], rng(), level=95)
