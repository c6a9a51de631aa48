"""Coverage simulations: sound certificates keep their promise, known-bad ones are caught by one judge."""

from __future__ import annotations

import numpy as np
import pytest
from certificate_cases import ALPHA, BAD, SOUND
from certificate_harness import Outcome, critical, judge, run

HEAVY = ("return", "joint", "sequential")
"""Cases that call the certificate once a repetition: fewer repetitions in the quick set."""
QUICK_SKIP = ("half-space, fixed", "bins agent at 1.1", "2.0 sigma", "any length")


def reps_of(name: str, quick: bool) -> int:
    per_call = name.startswith(HEAVY)
    if quick:
        return 300 if per_call else 1000 if name.startswith("crop") else 2000
    return 4000 if per_call else 20000


@pytest.mark.parametrize("name", [n for n in SOUND if not any(s in n for s in QUICK_SKIP)])
def test_sound(name: str) -> None:
    outcome = run(SOUND[name], name, reps_of(name, quick=True))
    assert judge(outcome), f"{name}: {outcome.rate:.2%} false claims at alpha = {outcome.alpha}"


@pytest.mark.parametrize("name", BAD)
def test_known_bad_is_flagged(name: str) -> None:
    reps = 500 if "return" in name else 4000
    outcome = run(BAD[name], name, reps)
    assert not judge(outcome), f"{name}: only {outcome.rate:.2%} false claims; the harness is blind"


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_sound_in_full(name: str) -> None:
    outcome = run(SOUND[name], name, reps_of(name, quick=False), seed=1)
    assert judge(outcome), f"{name}: {outcome.rate:.2%} false claims at alpha = {outcome.alpha}"


def test_critical_values() -> None:
    assert [critical(n, 0.05) for n in (500, 2000, 20000)] == [51, 149, 1150]
    assert [critical(n, 0.01) for n in (500, 2000, 20000)] == [19, 44, 270]


def test_the_judge_can_say_both() -> None:
    reps = 2000
    clean, broken = np.zeros(reps, dtype=bool), np.arange(reps) < 0.09 * reps
    assert judge(Outcome(clean, clean, ALPHA))
    assert not judge(Outcome(broken, broken, ALPHA))


ISSUED = {
    "radius majority, counts .9/.1": 0.99,
    "radius rank, counts .6+5x.08": 0.99,
    "radius cohen, counts .9/.1": 0.99,
    "radius anytime, counts .97/.03": 0.99,
    "deployed radius, p = 0.95, m = 100": 0.9,
    "action exact, linear, 1.0 sigma": 0.99,
    "crop betting, smooth": 0.9,
    "return quantile order, clipped": 0.99,
    "return mean berk-jones, clipped": 0.99,
}


@pytest.mark.parametrize(("name", "share"), ISSUED.items())
def test_issued_often_enough(name: str, share: float) -> None:
    """A certificate that always abstains is sound too: hold the easy points to an issue rate."""
    outcome = run(SOUND[name], name, 200, seed=2)
    assert outcome.issued.mean() >= share
