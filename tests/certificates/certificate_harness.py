"""The soundness harness: simulate a certificate many times, count false claims, judge.

A case gives an `Outcome`; sound and known-bad variants go through the same `judge`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

FALSE_ALARM = 1e-6
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """What became of the repetitions of one certificate at one parameter point."""

    false: Bools
    """(reps,) issued and wrong."""
    issued: Bools
    """(reps,) issued at all."""
    alpha: float
    """The failure probability it promises."""

    @property
    def rate(self) -> float:
        return float(self.false.mean())


def critical(reps: int, alpha: float) -> int:
    """More false claims than this happen to a sound certificate with probability below 1e-6."""
    return int(stats.binom.ppf(1.0 - FALSE_ALARM, reps, alpha))


def judge(outcome: Outcome) -> bool:
    """Whether the certificate keeps its promise as far as these repetitions can tell."""
    return int(outcome.false.sum()) <= critical(len(outcome.false), outcome.alpha)


Case = Callable[[np.random.Generator, int], Outcome]


def run(case: Case, name: str, reps: int, seed: int = 0) -> Outcome:
    """One case with a generator of its own."""
    outcome = case(np.random.default_rng([seed, zlib.crc32(name.encode())]), reps)
    assert len(outcome.false) == len(outcome.issued)
    return outcome
