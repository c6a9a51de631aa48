"""Lower bounds on the return of an attacked episode, from returns of clean ones.

The agent draws one fresh noise a step. An adaptive adversary, who sees everything before each draw, spends
perturbations e_t with sum ||e_t||^2 <= B^2 on every path. Then every event of clean probability p keeps
probability at least W(p, B) = Phi(z(p) - B/sigma) (Kumar, Levine and Feizi; proof in
docs/certificates/return.md). All bounds here read that lemma.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from smoothrl.certificates.actions import (
    READINGS,
    paper_index,
    paper_levels,
    paper_quantile,
    paper_violation,
)
from smoothrl.certificates.claims import (
    NOT_VALID,
    ONE_DRAW,
    UNITS,
    Claim,
    FloatArray,
    check_alpha,
    check_budget,
    check_finite,
    check_sigma,
    plain,
)
from smoothrl.certificates.intervals import (
    band_index,
    band_levels,
    cp_lower,
    fewest,
    lower_index,
    min_samples,
)
from smoothrl.certificates.norms import total_budget
from smoothrl.errors import UserError, unknown

ReturnKind = Literal["quantile", "threshold", "mean", "cvar"]
RETURN_KINDS: tuple[ReturnKind, ...] = ("quantile", "threshold", "mean", "cvar")
Band = Literal["order", "dkw", "berk-jones"]
BANDS: tuple[Band, ...] = ("order", "dkw", "berk-jones")
RETURN_MODES = ("paper", "exact")


def attacked_probability(p: npt.ArrayLike, budget_over_sigma: npt.ArrayLike) -> FloatArray:
    """W(p, B) = Phi(z(p) - B/sigma): what is left of an event of clean probability p."""
    probability, shift = np.broadcast_arrays(
        np.asarray(p, dtype=np.float64), np.asarray(budget_over_sigma, dtype=np.float64)
    )
    return np.asarray(special.ndtr(special.ndtri(probability) - shift), dtype=np.float64)


@dataclass(frozen=True)
class ReturnBoundResult:
    """One bound a budget, all from the same episodes."""

    bound: FloatArray
    """(M,) the certified values; -inf where there is none (threshold: probabilities)."""
    budget: FloatArray
    """(M,) total l2 budget B of an episode."""
    eps: FloatArray | None
    """(M,) per-step budgets, where they were given with a horizon."""
    horizon: int | None
    """The enforced cap on episode length behind eps; None: only the total budget is claimed."""
    level: FloatArray
    """(M,) the level of the clean law that must be bounded (threshold: clean probability bound)."""
    position: tuple[int | None, ...]
    """0-based position among the sorted returns (quantile); None: none exists."""
    valid: npt.NDArray[np.bool_]
    """(M,) whether the bound holds with the stated confidence."""
    violation: FloatArray
    """(M,) exact failure probability for a continuous tight law (paper mode); NaN elsewhere."""
    kind: str
    """quantile, threshold, mean or cvar."""
    mode: str
    """paper or exact."""
    band: str
    """order, dkw or berk-jones."""
    reading: str | None
    """sup, max or numpy in paper mode."""
    sigma: float
    """Standard deviation of the noise."""
    alpha: float
    """Failure probability: of all budgets together, or of each by itself (`simultaneous`)."""
    simultaneous: bool
    """Whether all budgets hold together: a band and a threshold always do, order statistics at alpha/M."""
    episodes: int
    """Number of clean episodes."""
    p: float
    """The percentile of a quantile bound (0.5: the median)."""
    threshold: float | None
    """The return named beforehand (threshold)."""
    tail: float
    """The share b of worst returns (CVaR)."""
    floor: float | None
    """A value no return can fall below, where one is known."""
    episodes_needed: tuple[int | None, ...]
    """Episodes that give a bound at each budget: the fewest, or (`berk-jones`) enough."""
    claim: Claim
    """What is claimed; `claims` says it budget by budget."""

    @property
    def found(self) -> npt.NDArray[np.bool_]:
        """(M,) whether there is a bound better than the trivial one."""
        trivial = -math.inf if self.floor is None else self.floor
        return np.asarray(np.isfinite(self.bound) & (self.bound > trivial))

    @property
    def claims(self) -> tuple[str, ...]:
        """One sentence a budget."""
        return tuple(_sentence(self, i) for i in range(len(self.bound)))

    def rows(self) -> list[dict[str, Any]]:
        """One record a budget."""
        return [
            {
                "budget": plain(self.budget[i]),
                "epsilon": None if self.eps is None else plain(self.eps[i]),
                "level": plain(self.level[i]),
                "position": self.position[i],
                "bound": plain(self.bound[i]),
                "valid": bool(self.valid[i]),
                "violation": None if math.isnan(self.violation[i]) else float(self.violation[i]),
                "episodes_needed": self.episodes_needed[i],
                "claim": self.claims[i],
            }
            for i in range(len(self.bound))
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON data."""
        data: dict[str, Any] = plain(self)
        return data | {"claims": list(self.claims)}


@dataclass(frozen=True)
class _Task:
    """Checked inputs of one call."""

    returns: FloatArray
    budget: FloatArray
    sigma: float
    alpha: float
    p: float
    band: str
    reading: str
    floor: float | None
    threshold: float | None
    tail: float
    simultaneous: bool

    @property
    def shift(self) -> FloatArray:
        return self.budget / self.sigma


def default_band(kind: str) -> str:
    """One order statistic where one level is asked for, a band where the whole law is."""
    return "order" if kind in ("quantile", "threshold") else "berk-jones"


_Answer = tuple[FloatArray, FloatArray, tuple[int | None, ...]]


def return_bound(
    returns: npt.ArrayLike,
    sigma: float,
    *,
    budget: float | Sequence[float] | None = None,
    eps: float | Sequence[float] | None = None,
    horizon: int | None = None,
    kind: str = "quantile",
    mode: str = "exact",
    band: str | None = None,
    reading: str = "numpy",
    p: float = 0.5,
    threshold: float | None = None,
    tail: float = 0.1,
    floor: float | None = None,
    alpha: float = 0.05,
    simultaneous: bool = True,
) -> ReturnBoundResult:
    """Certified return of the one-noise-draw agent under any adaptive attack of total l2 budget B.

    `returns` are iid clean episodes (fresh environment seed and noise). Give `budget` B, or `eps` a step
    with the enforced `horizon` H (B = eps sqrt(H)). With probability >= 1 - alpha over the episodes, for
    all budgets together (each by itself where `simultaneous` is false and the band is `order`), under every
    such attack:

    - `quantile`: P(F >= bound) >= 1 - p. Bound x_(r), a lower bound of the clean quantile at level
      Phi(z(p) - B/sigma). band `order` (alpha/M a budget), or `dkw`/`berk-jones` (one band, any budget).
    - `threshold`: P(F >= threshold) >= Phi(z(CPL(#{F >= threshold}, n, alpha)) - B/sigma), for a threshold
      named before the episodes; one interval serves every budget.
    - `mean`: E F >= c0 + sum_i (x_(i+1) - x_(i)) Phi(z(S_i) - B/sigma), c0 = x_(0) = `floor` a sure lower
      limit of the return and S_i the band's lower bound of P(F > x_(i)).
    - `cvar`: (1/b) int_0^b q_u du >= the same integral of the band's quantiles at Phi(z(u) - B/sigma),
      b = `tail`; levels below the band count as `floor`.

    `mode="paper"` (Theorem 6, quantile only): level Phi(z(p - D) - B/sigma), empirical percentile in one of
    three readings; no error bar for that percentile, see `violation`; not a valid bound where `valid` is
    false.
    """
    if kind not in RETURN_KINDS:
        raise unknown("kind of return bound", kind, RETURN_KINDS)
    if mode not in RETURN_MODES:
        raise unknown("return bound mode", mode, RETURN_MODES)
    if mode == "paper" and kind != "quantile":
        raise UserError("the paper's return bound is a quantile: use kind='quantile' or mode='exact'.")
    task = _task(
        returns, sigma, budget, eps, horizon, band or default_band(kind), reading, p, threshold, tail, floor,
        alpha, simultaneous,
    )  # fmt: skip
    jointly = mode == "exact" and (simultaneous or kind == "threshold" or task.band != "order")
    if mode == "paper":
        bound, level, position, violation, valid = _paper(task)
    else:
        bound, level, position = _EXACT[kind](task)
        violation, valid = np.full(len(bound), math.nan), np.ones(len(bound), dtype=bool)
    return ReturnBoundResult(
        bound=bound,
        budget=task.budget,
        eps=None if eps is None else np.atleast_1d(np.asarray(eps, dtype=np.float64)),
        horizon=horizon,
        level=level,
        position=position,
        valid=valid,
        violation=violation,
        kind=kind,
        mode=mode,
        band=task.band,
        reading=reading if mode == "paper" else None,
        sigma=sigma,
        alpha=alpha,
        simultaneous=jointly,
        episodes=len(task.returns),
        p=p,
        threshold=threshold,
        tail=tail,
        floor=floor,
        episodes_needed=_episodes_needed(task, kind),
        claim=_claim(task, kind, mode, horizon, bool(valid.all()), jointly),
    )


def _task(
    returns: npt.ArrayLike,
    sigma: float,
    budget: float | Sequence[float] | None,
    eps: float | Sequence[float] | None,
    horizon: int | None,
    band: str,
    reading: str,
    p: float,
    threshold: float | None,
    tail: float,
    floor: float | None,
    alpha: float,
    simultaneous: bool,
) -> _Task:
    values = check_finite(np.sort(np.asarray(returns, dtype=np.float64).ravel()), "returns")
    check_sigma(sigma), check_alpha(alpha)
    if (budget is None) == (eps is None):
        raise UserError("give the total budget, or eps with a horizon: exactly one of the two.")
    if eps is not None and horizon is None:
        raise UserError(
            "a per-step epsilon needs the horizon that caps every episode, attacked ones too; "
            "without one only a total budget can be certified."
        )
    if budget is not None:
        totals = [check_budget(b, "budget") for b in np.atleast_1d(np.asarray(budget, dtype=np.float64))]
    else:
        steps = np.atleast_1d(np.asarray(eps, dtype=np.float64))
        totals = [total_budget(float(e), int(horizon or 0)) for e in steps]
    if band not in BANDS:
        raise unknown("band", band, BANDS)
    if not 0.0 < p < 1.0 or not 0.0 < tail <= 1.0:
        raise UserError(f"p = {p} and tail = {tail} are probabilities: choose them inside (0, 1).")
    if floor is not None and (not math.isfinite(floor) or values[0] < floor):
        raise UserError(
            f"floor = {floor}, but a return of {values[0]:g} was seen: "
            "a floor must lie below every possible return."
        )
    return _Task(
        values, np.asarray(totals, dtype=np.float64), sigma, alpha, p, band, reading, floor, threshold, tail,
        simultaneous,
    )  # fmt: skip


def _quantile(task: _Task) -> _Answer:
    n = len(task.returns)
    level = attacked_probability(task.p, task.shift)
    if task.band == "order":
        share = task.alpha / (len(level) if task.simultaneous else 1)
        position = tuple(lower_index(n, float(q), share) for q in level)
    else:
        position = tuple(band_index(task.band, n, float(q), task.alpha) for q in level)
    nothing = -math.inf if task.floor is None else task.floor
    bound = np.array([nothing if i is None else task.returns[i] for i in position], dtype=np.float64)
    return bound, level, position


def _threshold(task: _Task) -> _Answer:
    if task.threshold is None or not math.isfinite(task.threshold):
        raise UserError("kind='threshold' needs the threshold, named before the episodes were seen.")
    n = len(task.returns)
    wins = int((task.returns >= task.threshold).sum())
    clean = float(cp_lower(wins, n, task.alpha))
    bound = attacked_probability(clean, task.shift)
    return bound, np.full(len(bound), clean), (None,) * len(bound)


def _mean(task: _Task) -> _Answer:
    if task.floor is None:
        raise UserError(
            "a mean has no certified lower bound without a floor: pass a value no return can fall below "
            "(the attack may do whatever has probability zero in clean play), or use kind='quantile'."
        )
    survival = 1.0 - band_levels(_needs_band(task), len(task.returns), task.alpha)
    bound = _distorted_mean(task.returns, survival, task.floor, task.shift)
    return bound, np.full(len(bound), math.nan), (None,) * len(bound)


def _distorted_mean(ordered: FloatArray, survival: FloatArray, floor: float, shift: FloatArray) -> FloatArray:
    """floor + sum_i (x_(i+1) - x_(i)) Phi(z(S_i) - shift), x_(0) = floor."""
    steps = np.diff(ordered, prepend=floor)
    kept = attacked_probability(survival[None, :], shift[:, None])
    return np.asarray(floor + (steps * kept).sum(axis=1))


def _cvar(task: _Task) -> _Answer:
    if task.floor is None:
        raise UserError(
            "the worst returns have no certified mean without a floor: no band bounds the lowest levels, so "
            "pass a value no return can fall below, or use kind='quantile' with a small p."
        )
    levels = band_levels(_needs_band(task), len(task.returns), task.alpha)
    edges = special.ndtr(special.ndtri(levels)[None, :] + task.shift[:, None])
    edges = np.minimum(np.concatenate([edges, np.ones((len(task.shift), 1))], axis=1), task.tail)
    mass = np.diff(edges, axis=1)
    below = edges[:, 0]
    bound = (below * task.floor + (mass * task.returns[None, :]).sum(axis=1)) / task.tail
    return bound, np.full(len(bound), math.nan), (None,) * len(bound)


def _needs_band(task: _Task) -> str:
    if task.band == "order":
        raise UserError("mean and CVaR need a band for the whole law: use band='berk-jones' or 'dkw'.")
    return task.band


_EXACT = {"quantile": _quantile, "threshold": _threshold, "mean": _mean, "cvar": _cvar}


def _paper(
    task: _Task,
) -> tuple[FloatArray, FloatArray, tuple[int | None, ...], FloatArray, npt.NDArray[np.bool_]]:
    if task.reading not in READINGS:
        raise unknown("reading of the empirical percentile", task.reading, READINGS)
    n = len(task.returns)
    truth = attacked_probability(task.p, task.shift)
    used = np.array([paper_levels(task.p, n, task.alpha, float(b), task.sigma).lower for b in task.budget])
    bound = np.array([float(paper_quantile(task.returns, float(q), task.reading)) for q in used])
    violation = np.array(
        [paper_violation(n, float(t), float(q), task.reading) for t, q in zip(truth, used, strict=True)]
    )
    exists = np.array([lower_index(n, float(t), task.alpha) is not None for t in truth])
    indices = [paper_index(n, float(q)) for q in used]
    chosen = {"sup": [i.sup for i in indices], "max": [i.max for i in indices]}
    position = tuple(chosen.get(task.reading, [None] * len(used)))
    valid = (violation <= task.alpha) & (exists | (used <= 0.0))
    return bound, used, position, violation, valid


def _episodes_needed(task: _Task, kind: str) -> tuple[int | None, ...]:
    if kind != "quantile":
        return (None,) * len(task.budget)
    share = task.alpha / (len(task.budget) if task.simultaneous and task.band == "order" else 1)
    levels = attacked_probability(task.p, task.shift)
    return tuple(episodes_needed(float(q), share, task.band) for q in levels)


def lowest_level(episodes: int, alpha: float, band: str) -> float:
    """The lowest level of the clean law that the smallest of n returns bounds."""
    if band == "order":
        return -math.expm1(math.log(alpha) / episodes)
    return float(band_levels(band, episodes, alpha)[0])


def largest_budget(episodes: int, sigma: float, alpha: float, p: float = 0.5, band: str = "order") -> float:
    """The largest B with a quantile bound: it shifts level p down to `lowest_level`."""
    lowest = lowest_level(episodes, alpha, band)
    return max(0.0, sigma * float(special.ndtri(p) - special.ndtri(lowest)))


def episodes_needed(level: float, alpha: float, band: str = "order") -> int | None:
    """The fewest episodes that bound `level` of the clean law; None where no number does.

    For `berk-jones` a number that is surely enough, in closed form: its gamma is at least alpha/n.
    """
    if level <= 0.0:
        return None
    if band == "order":
        return min_samples(level, alpha)
    if band == "dkw":
        return math.ceil(math.log(1.0 / alpha) / (2.0 * level**2) - 1e-9)
    return fewest(lambda n: n * math.log1p(-level) <= math.log(alpha / n))


def _needed(episodes: int | None, band: str) -> str:
    if episodes is None:
        return "no number is enough"
    return f"{episodes} are enough" if band == "berk-jones" else f"at least {episodes} are needed"


def refuse_hopeless_returns(
    episodes: int,
    sigma: float,
    budget: Sequence[float],
    alpha: float = 0.05,
    p: float = 0.5,
    *,
    mode: str = "exact",
    kind: str = "quantile",
    band: str | None = None,
    tail: float = 0.1,
    simultaneous: bool = True,
) -> None:
    """Refuse, before any episode is played, bounds none of which can say anything.

    A quantile needs level Phi(z(p) - B/sigma), a CVaR the same at p = `tail`; a mean above its floor and a
    threshold always say something.
    """
    check_sigma(sigma), check_alpha(alpha)
    if mode == "paper":
        enough = math.floor(math.log(1.0 / alpha) / (2.0 * p**2)) + 1
        if episodes < enough:
            raise UserError(
                f"{episodes} episodes can never bound the return at alpha = {alpha:g} (published formula: "
                f"Delta swallows the percentile): at least {enough} are needed."
            )
        return
    if kind in ("threshold", "mean"):
        return
    chosen = band or default_band(kind)
    point = tail if kind == "cvar" else p
    share = alpha / (max(1, len(budget)) if simultaneous and chosen == "order" else 1)
    lowest = lowest_level(episodes, share, chosen)
    levels = [float(attacked_probability(point, check_budget(b, "budget") / sigma)) for b in budget]
    if any(level >= lowest for level in levels):
        return
    needed = _needed(episodes_needed(max(levels, default=0.0), share, chosen), chosen)
    reach = largest_budget(episodes, sigma, share, point, chosen)
    raise UserError(
        f"{episodes} episodes can never bound the return at these budgets (alpha = {alpha:g}, {chosen}): "
        f"{needed} for the smallest; the largest budget they reach is B = {reach:.4g}."
    )


@dataclass(frozen=True)
class PerStepBoundResult:
    """Mean return under a per-step budget, reward by reward."""

    bound: float
    """Lower bound of the expected attacked return."""
    by_step: FloatArray
    """(H,) lower bounds of the expected attacked reward of each step."""
    eps: float
    """l2 budget of each step."""
    sigma: float
    """Standard deviation of the noise."""
    alpha: float
    """Failure probability of the sum."""
    episodes: int
    """Number of clean episodes."""
    claim: Claim
    """What is claimed."""

    def rows(self) -> list[dict[str, Any]]:
        """One record a step."""
        return [{"step": t, "bound": float(b)} for t, b in enumerate(self.by_step)]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON data."""
        data: dict[str, Any] = plain(self)
        return data


def per_step_return_bound(
    rewards: npt.ArrayLike,
    eps: float,
    sigma: float,
    *,
    floor: float,
    alpha: float = 0.05,
    band: str = "berk-jones",
) -> PerStepBoundResult:
    """E F >= sum_t of the mean bounds of r_t with B_t = eps sqrt(t+1), alpha/H each.

    Only t + 1 noises precede reward t (0-based), so early rewards face a small budget. `rewards` is
    (episodes, H), ended episodes padded with 0; `floor` lies below every reward, the 0 of padding too.
    The sum holds with probability >= 1 - alpha for the adaptive adversary with ||e_t|| <= eps.
    """
    values = check_finite(np.asarray(rewards, dtype=np.float64), "rewards")
    if values.ndim != 2:
        raise UserError("rewards need the shape (episodes, horizon), ended episodes padded with 0.")
    check_sigma(sigma), check_alpha(alpha), check_budget(eps)
    if values.min() < floor:
        raise UserError(f"floor = {floor}, but a reward of {values.min():g} was seen.")
    n, horizon = values.shape
    survival = 1.0 - band_levels(band, n, alpha / horizon)
    ordered = np.sort(values, axis=0)
    shifts = eps * np.sqrt(np.arange(1, horizon + 1, dtype=np.float64)) / sigma
    by_step = np.array(
        [
            _distorted_mean(ordered[:, t], survival, floor, shifts[t : t + 1])[0]
            for t in range(horizon)
        ]
    )  # fmt: skip
    claim = Claim(
        text=(
            f"the expected return over {horizon} steps is at least {by_step.sum():.6g} under every attack "
            f"of l2 length at most {eps:g} a step"
        ),
        agent=ONE_DRAW,
        adversary="adaptive: each step's perturbation may depend on everything before that step's noise",
        norm="l2",
        units=UNITS,
        confidence=1.0 - alpha,
        random="the clean episodes (environment seeds and noise)",
    )
    return PerStepBoundResult(float(by_step.sum()), by_step, eps, sigma, alpha, n, claim)


# --- words ----------------------------------------------------------------------------------------


def _sentence(result: ReturnBoundResult, i: int) -> str:
    budget = f"total l2 budget {result.budget[i]:.6g}"
    if result.eps is not None:
        budget = f"l2 budget {result.eps[i]:.6g} a step over at most {result.horizon} steps"
    prefix = "" if result.valid[i] else f"{NOT_VALID}: "
    if not np.isfinite(result.bound[i]):
        needed = result.episodes_needed[i]
        hint = f" ({_needed(needed, result.band)})" if needed else ""
        return f"{prefix}no bound with {result.episodes} episodes at {budget}{hint}"
    value = f"{result.bound[i]:.6g}"
    what = {
        "quantile": f"the return is at least {value} with probability at least {1.0 - result.p:g}",
        "threshold": f"the return reaches {result.threshold} with probability at least {value}",
        "mean": f"the expected return is at least {value}",
        "cvar": f"the mean of the worst {result.tail:g} of returns (CVaR) is at least {value}",
    }[result.kind]
    return f"{prefix}under every attack with {budget}, {what}"


def _claim(task: _Task, kind: str, mode: str, horizon: int | None, valid: bool, jointly: bool) -> Claim:
    what = {
        "quantile": f"the return is at least the bound with probability at least {1.0 - task.p:g}",
        "threshold": f"the return reaches {task.threshold} with at least the stated probability",
        "mean": "the expected return is at least the bound",
        "cvar": f"the mean of the worst {task.tail:g} of returns is at least the bound",
    }[kind]
    several = len(task.budget) > 1
    together = (", all budgets together" if jointly else ", each budget by itself") if several else ""
    note = "" if horizon is None else f"episodes end after {horizon} steps at the latest, attacked ones too"
    if mode == "paper":
        note = "published formula: the error of the empirical percentile is left out" + (
            "" if valid else f"; {NOT_VALID} at some budgets"
        )
    return Claim(
        text=f"under every attack within the budget {what}{together}",
        agent=ONE_DRAW,
        adversary="adaptive: each step's perturbation may depend on everything before that step's noise",
        norm="l2",
        units=UNITS,
        confidence=None if mode == "paper" else 1.0 - task.alpha,
        random="the clean episodes (environment seeds and noise)",
        valid=valid,
        note=note,
    )
