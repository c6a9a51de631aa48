"""Certificates of whole episodes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from smoothrl.certificates import (
    certified_curve,
    certified_fraction,
    joint_radius,
    max_false_certificates,
    radius,
)
from smoothrl.certificates.episodes import joint_step_radius, step_alphas
from smoothrl.errors import UserError

UNANIMOUS = np.tile([100, 0], (2500, 1))


def test_schedules_spend_no_more_than_alpha() -> None:
    assert step_alphas(0.05, 10).sum() == pytest.approx(0.05)
    assert 0.04 < step_alphas(0.05, 100_000, "anytime").sum() < 0.05
    with pytest.raises(UserError, match="schedule"):
        step_alphas(0.05, 10, "linear")


def test_a_whole_episode_stays_above_the_published_step() -> None:
    """2500 joint steps of a unanimous vote: 1.2672 sigma where the action is fixed beforehand."""
    joint = joint_radius(UNANIMOUS, 1.0, 0.05, "cohen", action=0, cap=2500, deterministic=True)
    assert joint.smallest == pytest.approx(1.2672, abs=1e-4)
    assert joint.smallest == pytest.approx(joint_step_radius(100, 100, 2500, 0.05, 1.0)[1])
    assert joint.smallest > 1.16314
    assert joint.claim.adversary == "adaptive"
    assert joint.claim.confidence == 0.95


def test_cap_and_anytime_schedule() -> None:
    few = UNANIMOUS[:3]
    capped = joint_radius(few, 1.0, 0.05, "majority", cap=2500)
    assert capped.smallest < joint_radius(few, 1.0, 0.05, "majority", cap=3).smallest
    anytime = joint_radius(few, 1.0, 0.05, "majority")
    assert (np.diff(anytime.radius) < 0).all()
    expected = [
        radius(few[t], 1.0, a, "majority").radius[0] for t, a in enumerate(step_alphas(0.05, 3, "anytime"))
    ]
    assert anytime.radius == pytest.approx(expected)


def test_a_length_that_votes_may_decide_is_not_used() -> None:
    """Nothing may be split by the realised length: a cap, or levels for any length."""
    with pytest.raises(UserError, match="cap"):
        joint_radius(UNANIMOUS[:3], 1.0, schedule="uniform")
    long, short = joint_radius(UNANIMOUS[:50], 1.0), joint_radius(UNANIMOUS[:10], 1.0)
    assert np.array_equal(long.radius[:10], short.radius)
    result = radius(UNANIMOUS[:500], 1.0)
    assert certified_fraction(result, cap=2500) < certified_fraction(result)
    with pytest.raises(UserError, match="cap"):
        certified_fraction(result, cap=10)


def test_false_certificates_of_an_episode() -> None:
    assert max_false_certificates(500, 0.05, 0.05) == 33
    assert max_false_certificates(500, 0.001, 0.05) == 2
    result = radius(UNANIMOUS[:500], 1.0)
    assert certified_fraction(result) == pytest.approx((500 - 33) / 500)
    assert certified_fraction(result, at=5.0) == 0.0


def test_the_count_of_false_ones_is_below_the_binomial() -> None:
    """Toy 1 at its worst margin, 500 steps an episode, 2000 episodes: the 95 % quantile of false ones."""
    p = 0.55
    k = np.random.default_rng(0).binomial(100, p, (2000, 500))
    result = radius(np.stack([100 - k, k], axis=2).reshape(-1, 2), 1.0, 0.05, "cohen", action=1)
    false = (result.certified & (result.p_lower > p)).reshape(2000, 500).sum(axis=1)
    assert np.quantile(false, 0.95) <= max_false_certificates(500, 0.05, 0.05)


def test_curve_by_hand() -> None:
    curve = certified_curve([[0.0, 0.1, 0.2, 0.3], [0.2, 0.2]], [0.0, 0.15, 0.2, 0.25], returns=[1.0, 3.0])
    assert curve.curve.tolist() == pytest.approx([0.875, 0.75, 0.75, 0.125])
    assert curve.area == pytest.approx((0.15 + 0.2) / 2)
    assert curve.weighted is not None
    assert curve.weighted.tolist() == pytest.approx([0.9375, 0.875, 0.875, 0.0625])
    assert (np.diff(curve.curve) <= 0).all()
    assert (curve.lower <= curve.curve).all()
    assert (curve.curve <= curve.upper).all()


def test_area_is_the_mean_radius() -> None:
    radii = np.random.default_rng(1).random(400)
    grid = np.linspace(0, 1, 2001)
    curve = certified_curve([radii], grid)
    assert np.trapezoid(curve.curve, grid) == pytest.approx(radii.mean(), abs=1e-3)
    assert curve.area == pytest.approx(radii.mean())


def test_the_band_covers_the_expected_curve() -> None:
    """Episodes of very different quality; truth: radii uniform on [0, u], u uniform."""
    rng, grid, missed, reps = np.random.default_rng(2), np.linspace(0.05, 0.95, 10), 0, 400
    truth = 1 - grid + grid * np.log(grid)
    for _ in range(reps):
        tops = rng.random(20)
        curve = certified_curve([u * rng.random(50) for u in tops], grid)
        missed += bool(((truth < curve.lower) | (truth > curve.upper)).any())
    assert missed <= stats.binom.ppf(1 - 1e-6, reps, 0.05)


@pytest.mark.parametrize("weights", [[1.0], [-1.0, 2.0], [0.0, 0.0]])
def test_bad_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(UserError, match="nonnegative"):
        certified_curve([[0.1], [0.2]], [0.0], returns=weights)
