"""Properties that hold for every input, and inputs that must be refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from smoothrl.certificates import (
    action_bound,
    adiv,
    certified_curve,
    crop_radius,
    deployed_radius,
    intervals,
    joint_radius,
    norms,
    per_step_return_bound,
    radius,
    return_bound,
)
from smoothrl.certificates.actions import (
    deployed_median_levels,
    paper_index,
    refuse_hopeless_actions,
    shifted_levels,
)
from smoothrl.certificates.crop import refuse_hopeless_crop
from smoothrl.certificates.radius import refuse_hopeless, samples_needed
from smoothrl.certificates.returns import refuse_hopeless_returns
from smoothrl.errors import UserError

MODES = ("paper", "majority", "rank", "anytime")
counts_lists = st.lists(st.integers(0, 60), min_size=2, max_size=6).filter(lambda c: sum(c) > 0)
shared = settings(max_examples=60, deadline=None)


# --- radius -----------------------------------------------------------------------------------------


@shared
@given(counts_lists, st.sampled_from(MODES), st.integers(0, 100))
def test_permuting_actions_permutes_the_answer(counts: list[int], mode: str, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(counts))
    first, second = radius(counts, 1.0, 0.05, mode), radius(np.asarray(counts)[order], 1.0, 0.05, mode)
    assert second.radius[0] == pytest.approx(first.radius[0], abs=1e-12)
    assert second.certified[0] == first.certified[0]
    if first.certified[0] and first.radius[0] > 0:
        assert order[second.action[0]] == first.action[0]


@shared
@given(counts_lists, st.sampled_from(MODES), st.floats(0.01, 10.0))
def test_radius_is_linear_in_sigma(counts: list[int], mode: str, sigma: float) -> None:
    unit, scaled = radius(counts, 1.0, 0.05, mode), radius(counts, sigma, 0.05, mode)
    assert scaled.radius[0] == pytest.approx(sigma * unit.radius[0], rel=1e-9, abs=1e-12)


@shared
@given(st.integers(2, 200), st.data(), st.sampled_from(MODES))
def test_radius_grows_with_agreement(n: int, data: st.DataObject, mode: str) -> None:
    k = data.draw(st.integers((n + 1) // 2, n - 1))
    fewer, more = radius([[k, n - k], [k + 1, n - k - 1]], 1.0, 0.05, mode).radius
    assert more >= fewer - 1e-12


@shared
@given(counts_lists, st.sampled_from(MODES), st.floats(0.001, 0.2), st.floats(1.0, 2.4))
def test_radius_grows_with_alpha(counts: list[int], mode: str, alpha: float, factor: float) -> None:
    strict, loose = radius(counts, 1.0, alpha, mode), radius(counts, 1.0, alpha * factor, mode)
    assert loose.radius[0] >= strict.radius[0] - 1e-12


@shared
@given(counts_lists)
def test_anytime_costs_something(counts: list[int]) -> None:
    fixed = {"action": int(np.argmax(counts))}
    anytime, cohen = (radius(counts, 1.0, 0.05, mode, **fixed) for mode in ("anytime", "cohen"))
    assert anytime.radius[0] <= cohen.radius[0] + 1e-12


def test_an_open_action_pays_for_all_actions() -> None:
    """Anytime without a fixed action: K sequences at alpha/K each."""
    counts = [60, 3, 2, 1]
    for alpha, options in ((0.05 / 4, {}), (0.05, {"action": 0})):
        found = radius(counts, 1.0, 0.05, "anytime", **options)
        assert found.p_lower[0] == pytest.approx(float(intervals.cs_lower(60, 66, alpha)), rel=1e-9)


@shared
@given(counts_lists, st.integers(1, 300), st.floats(0.001, 0.3))
def test_deployed_radius_is_shorter(counts: list[int], m: int, eta: float) -> None:
    ideal = radius(counts, 1.0, 0.05, "majority")
    real = deployed_radius(ideal, m, eta)
    assert real.radius[0] <= ideal.radius[0] + 1e-12
    assert real.level >= 0.5


def test_many_states_are_many_single_ones() -> None:
    counts = np.random.default_rng(0).multinomial(40, [0.7, 0.2, 0.1], size=50)
    for mode in MODES:
        together = radius(counts, 0.3, 0.05, mode)
        alone = [radius(c, 0.3, 0.05, mode).radius[0] for c in counts]
        assert together.radius == pytest.approx(alone, abs=1e-12)
        assert len(together.rows()) == 50


@pytest.mark.parametrize("mode", MODES)
def test_ties_and_empty_winners(mode: str) -> None:
    tied = radius([50, 50], 1.0, 0.05, mode)
    assert not tied.certified[0]
    assert (tied.radius[0], tied.action[0]) == (0.0, -1)
    assert radius([0, 100], 1.0, 0.05, mode).action[0] == 1
    assert radius([100, 0], 1.0, 0.05, mode).certified[0]


def test_cohen_with_an_unlucky_pilot() -> None:
    result = radius([0, 100], 1.0, 0.05, "cohen", selection_counts=[8, 2])
    assert result.p_lower[0] == 0.0
    assert not result.certified[0]


def test_paper_mode_abstains_with_few_samples() -> None:
    """m < 2 ln(1/alpha): even a unanimous vote abstains."""
    assert not radius([5, 0], 1.0, 0.05, "paper").certified[0]
    assert radius([6, 0], 1.0, 0.05, "paper").certified[0]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: radius([[100]], 1.0), "two actions"),
        (lambda: radius([0, 0], 1.0), "without votes"),
        (lambda: radius([5, -1], 1.0), "negative"),
        (lambda: radius([0.9, 0.1], 1.0), "whole numbers"),
        (lambda: radius([np.nan, 1.0], 1.0), "whole numbers"),
        (lambda: radius(np.array([2**24 + 4, 3], dtype=np.float32), 1.0), "2\\^24"),
        (lambda: radius([90, 10], 0.0), "sigma"),
        (lambda: radius([90, 10], 1.0, 0.0), "alpha"),
        (lambda: radius([90, 10], 1.0, 0.7), "alpha"),
        (lambda: radius([90, 10], 1.0, mode="cohen"), "other samples"),
        (lambda: radius([90, 10], 1.0, mode="majority", action=0), "chooses the action itself"),
        (lambda: radius([90, 10], 1.0, mode="majorty"), "majority"),
        (lambda: radius([90, 10], 1.0, mode="majority", split=(0.6, 0.4)), "half"),
        (lambda: radius([90, 10], 1.0, mode="rank", split=(0.6, 0.6, 0.1)), "split"),
        (lambda: refuse_hopeless(5, 1.0, 0.05, "majority"), "at least 8 samples"),
        (lambda: refuse_hopeless(100, 0.1, 0.05, "paper", target=0.2), "0.1163"),
        (lambda: refuse_hopeless(0, 0.1, 0.05), "at least one"),
        (lambda: joint_radius([[5, 0]] * 10, 1.0, cap=5), "cap"),
        (lambda: intervals.cp_lower(5, 4, 0.05), "counts"),
        (lambda: certified_curve([], [0.0]), "at least one episode"),
        (lambda: norms.lp_radius(1.0, 0, 3.0), "dimension"),
        (lambda: norms.lp_radius(1.0, 3, 0.5), "p >= 1"),
        (lambda: norms.total_budget(0.1, 0), "horizon"),
    ],
)  # fmt: skip
def test_refused_radius_inputs(call: object, word: str) -> None:
    with pytest.raises(UserError, match=word):
        call()  # type: ignore[operator]


def test_large_float64_counts_are_fine() -> None:
    assert radius(np.array([2.0**25, 3.0]), 1.0, 0.05, "majority").radius[0] > 4.0


@pytest.mark.parametrize("mode", ["majority", "rank", "paper", "anytime", "cohen"])
def test_samples_needed_is_the_least(mode: str) -> None:
    for target in (0.0, 0.5, 1.0):
        n = samples_needed(target, 1.0, 0.05, mode)
        refuse_hopeless(n, 1.0, 0.05, mode, target)
        if n > 1:
            with pytest.raises(UserError, match=f"at least {n} samples"):
                refuse_hopeless(n - 1, 1.0, 0.05, mode, target)


# --- action bounds ----------------------------------------------------------------------------------

samples_strategy = st.integers(0, 10_000).map(lambda s: np.random.default_rng(s).normal(size=(60, 2)))


@shared
@given(samples_strategy, st.sampled_from(["paper", "exact", "deployed"]), st.integers(0, 100))
def test_the_order_of_samples_does_not_matter(sample: np.ndarray, mode: str, seed: int) -> None:
    shuffled = sample[np.random.default_rng(seed).permutation(60)]
    first, second = (action_bound(x, 0.1, 0.2, mode=mode) for x in (sample, shuffled))
    assert np.array_equal(first.lower, second.lower)
    assert np.array_equal(first.upper, second.upper)


@shared
@given(samples_strategy, st.floats(0.1, 5.0), st.floats(-3.0, 3.0), st.sampled_from(["sup", "max", "numpy"]))
def test_action_bounds_follow_increasing_maps(
    sample: np.ndarray, scale: float, shift: float, reading: str
) -> None:
    for mode in ("exact", "paper"):
        plain = action_bound(sample, 0.1, 0.2, mode=mode, reading=reading)
        mapped = action_bound(scale * sample + shift, 0.1, 0.2, mode=mode, reading=reading)
        assert mapped.lower == pytest.approx(scale * plain.lower + shift, rel=1e-9, abs=1e-9)
        assert mapped.upper == pytest.approx(scale * plain.upper + shift, rel=1e-9, abs=1e-9)


@shared
@given(samples_strategy, st.floats(0.0, 0.3), st.floats(0.0, 0.3))
def test_action_bounds_widen_with_the_budget(sample: np.ndarray, a: float, b: float) -> None:
    for mode in ("exact", "deployed", "paper"):
        small, large = (action_bound(sample, e, 0.2, mode=mode) for e in sorted((a, b)))
        assert (large.lower <= small.lower).all()
        assert (large.upper >= small.upper).all()


def test_negating_actions_swaps_the_exact_bounds() -> None:
    sample = np.random.default_rng(1).normal(size=(101, 3))
    first, second = action_bound(sample, 0.1, 0.2), action_bound(-sample, 0.1, 0.2)
    assert np.array_equal(first.lower, -second.upper)
    assert np.array_equal(first.upper, -second.lower)


def test_no_budget_gives_the_interval_of_a_median() -> None:
    sample = np.arange(100.0)[:, None]
    bound = action_bound(sample, 0.0, 0.2, alpha=0.05)
    assert bound.lower_position == intervals.lower_index(100, 0.5, 0.025)
    assert bound.upper_position == 99 - bound.lower_position


def test_deployed_bounds_contain_the_exact_ones() -> None:
    sample = np.random.default_rng(2).normal(size=(100, 2))
    exact, real = action_bound(sample, 0.1, 0.2), action_bound(sample, 0.1, 0.2, mode="deployed")
    assert (real.lower <= exact.lower).all()
    assert (real.upper >= exact.upper).all()
    assert real.claim.agent.startswith("deployed agent with 100")


def test_every_coordinate_pays_for_the_deployed_median() -> None:
    """Three coordinates: eta/3 each for the level of the median, alpha/6 a side for the quantile."""
    bound = action_bound(np.zeros((100, 3)), 0.1, 0.2, alpha=0.04, eta=0.03, mode="deployed")
    p_minus, p_plus = deployed_median_levels(100, 50, 0.01)
    assert bound.levels == shifted_levels(p_minus, p_plus, 0.1, 0.2)
    assert bound.lower_position == intervals.lower_index(100, bound.levels.lower, 0.04 / 6)
    assert bound.upper_position == intervals.upper_index(100, bound.levels.upper, 0.04 / 6)
    assert bound.claim.confidence == pytest.approx(0.93)


def test_clipping_and_infinite_sides() -> None:
    sample = np.random.default_rng(3).normal(size=(7, 20, 2))
    result = adiv(sample, [0.01, 0.5], 0.2, box=(-1.0, 1.0))
    assert result.infinite_fraction == 0.5
    assert result.by_budget[0.5] == np.inf
    assert np.isfinite(result.value)
    clipped = adiv(sample, [0.01, 0.5], 0.2, box=(-1.0, 1.0), clipped=True)
    assert clipped.infinite_fraction == 0.0
    assert clipped.by_budget[0.5] == pytest.approx(np.sqrt(8) / (2 * 0.5))
    assert clipped.by_budget[0.01] <= result.by_budget[0.01] + 1e-9


@pytest.mark.parametrize("reading", ["sup", "max", "numpy"])
def test_paper_bounds_of_few_samples_are_infinite(reading: str) -> None:
    """m <= 5 at alpha = .05: Delta swallows the median, both sides are infinite."""
    bound = action_bound(np.zeros((5, 1)), 0.01, 0.2, mode="paper", reading=reading)
    assert (bound.lower[0], bound.upper[0]) == (-np.inf, np.inf)


def test_paper_index_at_the_ends() -> None:
    assert paper_index(10, -0.1) == paper_index(10, 0.0)
    assert paper_index(10, 0.0).side == "-inf"
    assert paper_index(10, 1.0).side == "+inf"
    assert paper_index(10, 1e-30).j == 1
    assert paper_index(10, 0.3).j == 3


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: action_bound([[np.nan]], 0.1, 0.2), "NaN"),
        (lambda: action_bound([[np.inf], [0.0]], 0.1, 0.2), "infinite"),
        (lambda: action_bound(np.zeros((0, 2)), 0.1, 0.2), "at least one sample"),
        (lambda: action_bound([1.0, 2.0], 0.1, 0.2), "shape"),
        (lambda: action_bound([[1.0]], -0.1, 0.2), "epsilon"),
        (lambda: action_bound([[1.0]], 0.1, 0.0), "sigma"),
        (lambda: action_bound([[1.0]], 0.1, 0.2, p=1.0), "percentile"),
        (lambda: action_bound([[1.0]], 0.1, 0.2, mode="exct"), "exact"),
        (lambda: action_bound([[1.0]], 0.1, 0.2, mode="paper", reading="x"), "reading"),
        (lambda: action_bound([[1.0]], 0.1, 0.2).adiv(clipped=True), "box"),
        (lambda: adiv([[1.0]], [0.0], 0.2), "divides"),
        (lambda: adiv([[1.0]], [], 0.2), "at least one budget"),
        (lambda: refuse_hopeless_actions(100, 3, [0.4], 0.2), "at least 209"),
        (lambda: crop_radius(np.full((1, 5, 2), np.nan), (0, 1), 1.0), "NaN"),
        (lambda: crop_radius(np.zeros((1, 5, 2)), (1, 1), 1.0), "range"),
        (lambda: crop_radius(np.zeros((1, 5, 1)), (0, 1), 1.0), "two actions"),
        (lambda: refuse_hopeless_crop(3, 4, 1.0), "can never certify"),
    ],
)  # fmt: skip
def test_refused_action_inputs(call: object, word: str) -> None:
    with pytest.raises(UserError, match=word):
        call()  # type: ignore[operator]


def test_reachable_action_bounds_are_not_refused() -> None:
    refuse_hopeless_actions(209, 3, [0.4], 0.2)
    refuse_hopeless_actions(100, 3, [0.4, 0.1], 0.2)
    assert action_bound(np.zeros((209, 3)), 0.4, 0.2).finite.all()
    assert not action_bound(np.zeros((208, 3)), 0.4, 0.2).finite.any()


# --- return bounds ----------------------------------------------------------------------------------

RETURNS = np.random.default_rng(4).normal(30.0, 2.0, 200)
KINDS = [("quantile", "order"), ("quantile", "dkw"), ("quantile", "berk-jones"), ("threshold", "order")]
KINDS += [("mean", "dkw"), ("mean", "berk-jones"), ("cvar", "dkw"), ("cvar", "berk-jones")]


@pytest.mark.parametrize(("kind", "band"), KINDS)
@shared
@given(a=st.floats(0.0, 3.0), b=st.floats(0.0, 3.0), seed=st.integers(0, 50))
def test_return_bounds_fall_with_the_budget(kind: str, band: str, a: float, b: float, seed: int) -> None:
    sample = RETURNS[np.random.default_rng(seed).permutation(200)]
    small, large = return_bound(
        sample, 1.0, budget=sorted((a, b)), kind=kind, band=band, floor=0.0, threshold=29.0
    ).bound
    assert large <= small + 1e-9


@pytest.mark.parametrize(("kind", "band"), [pair for pair in KINDS if pair[0] != "threshold"])
@shared
@given(scale=st.floats(0.1, 5.0), shift=st.floats(-50.0, 50.0))
def test_return_bounds_are_affine(kind: str, band: str, scale: float, shift: float) -> None:
    plain = return_bound(RETURNS, 1.0, budget=0.7, kind=kind, band=band, floor=0.0).bound[0]
    mapped = return_bound(scale * RETURNS + shift, 1.0, budget=0.7, kind=kind, band=band, floor=shift).bound[
        0
    ]
    assert mapped == pytest.approx(scale * plain + shift, rel=1e-9, abs=1e-6)


def test_no_budget_gives_plain_intervals() -> None:
    sample = np.sort(RETURNS)
    quantile = return_bound(RETURNS, 1.0, budget=0.0)
    assert quantile.bound[0] == sample[intervals.lower_index(200, 0.5, 0.05)]
    wins = int((RETURNS >= 29.0).sum())
    threshold = return_bound(RETURNS, 1.0, budget=0.0, kind="threshold", threshold=29.0)
    assert threshold.bound[0] == pytest.approx(float(intervals.cp_lower(wins, 200, 0.05)))


def test_per_step_bound_in_closed_form() -> None:
    """Rewards all 1: each step keeps Phi(z(1 - b_1) - eps sqrt(t+1)), b_1 the first level at alpha/H."""
    result = per_step_return_bound(np.ones((40, 3)), 0.3, 2.0, floor=0.0, alpha=0.06)
    first = float(intervals.band_levels("berk-jones", 40, 0.02)[0])
    expected = special.ndtr(special.ndtri(1.0 - first) - 0.15 * np.sqrt([1.0, 2.0, 3.0]))
    assert result.by_step == pytest.approx(expected, rel=1e-9)
    assert result.bound == pytest.approx(expected.sum(), rel=1e-9)


def test_equal_and_two_atom_returns() -> None:
    for kind, band in KINDS:
        bound = return_bound(
            np.full(100, 7.0), 1.0, budget=0.5, kind=kind, band=band, floor=0.0, threshold=7.0
        ).bound[0]
        assert bound <= 7.0
    assert return_bound(np.full(100, 7.0), 1.0, budget=0.5).bound[0] == 7.0
    atoms = np.repeat([-21.0, 20.0], [30, 970])
    assert return_bound(atoms, 1.0, budget=[0.5, 1.5]).bound.tolist() == [20.0, 20.0]
    assert return_bound(atoms, 1.0, budget=2.0).bound[0] == -21.0


def test_several_budgets_share_alpha() -> None:
    alone = return_bound(np.arange(1000.0), 1.0, budget=0.5)
    five = return_bound(np.arange(1000.0), 1.0, budget=[0.1, 0.2, 0.3, 0.4, 0.5])
    separate = return_bound(np.arange(1000.0), 1.0, budget=[0.1, 0.5], simultaneous=False)
    assert five.position[-1] < alone.position[0] == separate.position[-1]


def test_without_a_bound_the_floor_is_reported_and_flagged() -> None:
    result = return_bound(np.arange(10.0), 1.0, budget=5.0, floor=0.0)
    assert result.bound[0] == 0.0
    assert not result.found[0]
    assert result.episodes_needed[0] == 10_450_778 or result.episodes_needed[0] > 10_000_000


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: return_bound([1.0, np.nan], 1.0, budget=1.0), "NaN"),
        (lambda: return_bound([], 1.0, budget=1.0), "at least one"),
        (lambda: return_bound([1.0], 1.0), "exactly one"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, eps=0.1), "exactly one"),
        (lambda: return_bound([1.0], 1.0, eps=0.1), "horizon"),
        (lambda: return_bound([1.0], 0.0, budget=1.0), "sigma"),
        (lambda: return_bound([1.0], 1.0, budget=-1.0), "budget"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, kind="mean"), "floor"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, kind="mean", floor=2.0), "floor"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, kind="cvar"), "floor"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, kind="mean", band="order", floor=0.0), "band"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, kind="threshold"), "threshold"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, kind="mean", mode="paper", floor=0.0), "quantile"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, kind="median"), "kind"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, band="x"), "band"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, mode="x"), "mode"),
        (lambda: return_bound([1.0], 1.0, budget=1.0, p=0.0), "probabilities"),
        (lambda: per_step_return_bound([1.0], 0.1, 1.0, floor=0.0), "shape"),
        (lambda: per_step_return_bound([[-1.0]], 0.1, 1.0, floor=0.0), "floor"),
        (lambda: refuse_hopeless_returns(1000, 0.05, [0.2]), "at least 94587"),
    ],
)  # fmt: skip
def test_refused_return_inputs(call: object, word: str) -> None:
    with pytest.raises(UserError, match=word):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("band", ["order", "dkw"])
@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0, 1.7])
def test_the_fewest_episodes_are_the_fewest(band: str, budget: float) -> None:
    needed = return_bound([0.0], 1.0, budget=budget, band=band).episodes_needed[0]
    assert needed is not None
    assert return_bound(np.arange(float(needed)), 1.0, budget=budget, band=band).position[0] == 0
    if needed > 1:
        fewer = return_bound(np.arange(float(needed - 1)), 1.0, budget=budget, band=band)
        assert fewer.position[0] is None
        assert str(needed) in fewer.claims[0]


@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0, 1.7])
def test_the_stated_episodes_are_enough_for_berk_jones(budget: float) -> None:
    enough = return_bound([0.0], 1.0, budget=budget, band="berk-jones").episodes_needed[0]
    assert enough is not None
    assert return_bound(np.arange(float(enough)), 1.0, budget=budget, band="berk-jones").position[0] == 0
    least = return_bound([0.0], 1.0, budget=budget).episodes_needed[0]
    assert least is not None
    assert least <= enough <= 4 * least + 4


def test_claims_say_whether_budgets_hold_together() -> None:
    def text(**options: object) -> str:
        return return_bound(RETURNS, 1.0, budget=[0.1, 0.2], **options).claim.text  # type: ignore[arg-type]

    assert text().endswith("all budgets together")
    assert text(simultaneous=False).endswith("each budget by itself")
    assert text(simultaneous=False, band="dkw").endswith("all budgets together")
    assert text(mode="paper").endswith("each budget by itself")
    assert "budgets" not in return_bound(RETURNS, 1.0, budget=0.1).claim.text


# --- CROP, norms, words -------------------------------------------------------------------------------


@shared
@given(st.integers(0, 1000), st.floats(0.1, 10.0), st.floats(-5.0, 5.0))
def test_crop_is_affine_in_the_values(seed: int, scale: float, shift: float) -> None:
    q = np.random.default_rng(seed).beta(2, 2, size=(2, 50, 3)) + np.array([0.4, 0.0, 0.0])
    for mode in ("exact", "paper"):
        first = crop_radius(q, (0.0, 1.4), 1.0, mode=mode)
        second = crop_radius(scale * q + shift, (shift, 1.4 * scale + shift), 1.0, mode=mode)
        assert second.radius == pytest.approx(first.radius, rel=1e-6, abs=1e-9)


def test_crop_splits_its_level_among_the_actions() -> None:
    q = np.random.default_rng(7).beta(2, 2, size=(1, 80, 4)) * np.array([1.0, 0.2, 0.3, 0.1])
    for fixed, low, high in ((None, 0.05 / 8, 0.05 / 4), (0, 0.05 / 2, 0.05 / 2)):
        result = crop_radius(q, (0.0, 1.0), 1.0, 0.05, action=fixed)
        others = max(1.0 - float(intervals.betting_lower(1.0 - q[0, :, a], high)) for a in (1, 2, 3))
        assert result.lower[0] == pytest.approx(float(intervals.betting_lower(q[0, :, 0], low)), rel=1e-9)
        assert result.upper[0] == pytest.approx(others, rel=1e-9)


def capital(x: np.ndarray, m: float, alpha: float) -> float:
    """The largest capital on the way, one bet at a time, from the definition."""
    mean, variance, wealth, best, total, squares = 0.5, 0.25, 1.0, 1.0, 0.5, 0.25
    for i, value in enumerate(x, start=1):
        stake = min(np.sqrt(2 * np.log(1 / alpha) / (len(x) * variance)), 0.5 / m)
        wealth *= 1 + stake * (value - m)
        best = max(best, wealth)
        total += value
        mean = total / (i + 1)
        squares += (value - mean) ** 2
        variance = squares / (i + 1)
    return float(best)


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_betting_inverts_its_capital(alpha: float) -> None:
    x = np.random.default_rng(8).beta(3, 1, size=60)
    lower = float(intervals.betting_lower(x, alpha))
    assert capital(x, lower * (1 - 1e-6), alpha) >= 1 / alpha
    assert capital(x, lower * (1 + 1e-6), alpha) < 1 / alpha


def test_empirical_bernstein_by_hand() -> None:
    x = np.array([0.9, 1.0, 0.8, 0.9] * 100)
    log_term, variance = np.log(2 / 0.05), x.var(ddof=1)
    expected = 0.9 - np.sqrt(2 * variance * log_term / 400) - 7 * log_term / (3 * 399)
    assert float(intervals.empirical_bernstein_lower(x, 0.05)) == pytest.approx(expected)
    assert intervals.empirical_bernstein_lower(np.ones((1, 2)), 0.05).tolist() == [0.0, 0.0]


def test_crop_says_what_was_clipped() -> None:
    q = np.zeros((1, 50, 2))
    q[..., 1] = 5.0
    result = crop_radius(q, (0.0, 1.0), 1.0)
    assert result.clipped_fraction == 0.5
    assert result.radius[0] > 1.0
    assert not crop_radius(q, (0.0, 1.0), 1.0, mode="paper").claim.valid


def test_crop_certifies_the_clipped_agent() -> None:
    q = np.random.default_rng(9).normal(size=(5, 100, 3)) + np.array([1.5, 0.0, 0.0])
    wild, tame = (crop_radius(values, (-1.0, 2.0), 1.0) for values in (q, np.clip(q, -1.0, 2.0)))
    assert wild.clipped_fraction > 0.1
    assert np.array_equal(wild.radius, tame.radius)
    assert wild.certified.all()


def test_one_hot_crop_is_the_paper_vote() -> None:
    votes = np.eye(2)[np.repeat([0, 1], [90, 10])][None]
    published = radius([90, 10], 0.1, 0.05, "paper").radius[0]
    assert crop_radius(votes, (0, 1), 0.1, mode="paper").radius[0] == pytest.approx(published, rel=1e-9)


def test_norm_conversions() -> None:
    assert norms.linf_radius(1.0, 16) == pytest.approx(0.25)
    assert norms.lp_radius(1.0, 16, 4.0) == pytest.approx(0.5)
    assert norms.l1_radius(0.3, 100) == 0.3
    assert norms.l0_radius([0.5, 1.0, 1.01, 2.0, 2.5]).tolist() == [0, 0, 1, 3, 6]
    assert norms.ellipsoid_contains([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.1], 2.0).tolist() == [True, False]


def test_claims_are_complete_in_words_and_data() -> None:
    sample = np.random.default_rng(5).normal(size=(100, 2))
    results = [
        radius([90, 10], 0.1),
        deployed_radius(radius([90, 10], 0.1), 100),
        joint_radius([[90, 10]] * 3, 0.1, cap=3),
        action_bound(sample, 0.1, 0.2),
        adiv(sample, [0.1], 0.2),
        return_bound(RETURNS, 0.1, budget=0.1),
        per_step_return_bound(np.ones((50, 4)), 0.1, 1.0, floor=0.0),
        crop_radius(np.random.default_rng(6).random((1, 100, 2)), (0, 1), 0.1),
        certified_curve([[0.1, 0.2]], [0.0, 0.1]),
    ]
    for result in results:
        claim = result.claim
        assert claim.norm == "l2"
        assert claim.units == "normalised observation"
        assert claim.adversary.startswith(("static", "adaptive"))
        assert "agent" in claim.agent
        assert 0.5 <= claim.confidence < 1.0
        assert claim.random
        assert str(claim).startswith(claim.text)
        assert result.rows()
        assert isinstance(result.to_json(), dict)
