"""Action bounds of a median-smoothed policy, and the action divergence (ADIV) computed from them.

`samples[..., n, d]` are the policy's mean actions at n noisy copies of a state; leading axes are states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from smoothrl.certificates.claims import (
    IDEAL,
    NOT_VALID,
    UNITS,
    Claim,
    FloatArray,
    check_alpha,
    check_budget,
    check_finite,
    check_sigma,
    deployed,
    plain,
)
from smoothrl.certificates.intervals import (
    cp_lower,
    cp_upper,
    fewest,
    hoeffding_delta,
    lower_index,
    min_samples,
    upper_index,
)
from smoothrl.errors import UserError, unknown

ActionMode = Literal["paper", "exact", "deployed"]
ACTION_MODES: tuple[ActionMode, ...] = ("paper", "exact", "deployed")
Reading = Literal["sup", "max", "numpy"]
READINGS: tuple[Reading, ...] = ("sup", "max", "numpy")


@dataclass(frozen=True)
class Levels:
    """Levels of the clean action law between which the attacked percentile must lie."""

    lower: float
    """p_lower = Phi(z(p_minus) - eps/sigma)."""
    upper: float
    """p_upper = Phi(z(p_plus) + eps/sigma)."""
    upper_complement: float
    """1 - p_upper, without cancellation."""


def shifted_levels(p_minus: float, p_plus: float, budget: float, sigma: float) -> Levels:
    """A Gaussian of deviation sigma moved by `budget` changes no probability beyond these levels."""
    shift = budget / sigma
    low = float(special.ndtr(special.ndtri(p_minus) - shift)) if p_minus > 0.0 else 0.0
    if p_plus >= 1.0:
        return Levels(low, 1.0, 0.0)
    z = float(special.ndtri(p_plus)) + shift
    return Levels(low, float(special.ndtr(z)), float(special.ndtr(-z)))


def paper_levels(p: float, samples: int, alpha: float, budget: float, sigma: float) -> Levels:
    """Theorem 4's levels: p -+ Delta shifted by the budget; 0 and 1 where Delta swallows p."""
    delta = hoeffding_delta(samples, alpha)
    return shifted_levels(max(p - delta, 0.0), min(p + delta, 1.0), budget, sigma)


@dataclass(frozen=True)
class PaperIndex:
    """The three readings of the paper's empirical percentile, as 0-based sorted positions."""

    j: int
    """ceil(m p'), how many samples may lie below."""
    sup: int | None
    """The literal supremum of {a: #{x <= a} <= j}: position j; None: infinite."""
    max: int | None
    """The largest sample in that set: position j - 1; None: infinite."""
    side: str
    """`finite`, `-inf` or `+inf` (what the sup reading gives)."""


def paper_index(samples: int, p: float) -> PaperIndex:
    """Positions for level p: -inf where p <= 0, +inf where p >= 1 or the sup leaves the sample."""
    if p <= 0.0:
        return PaperIndex(0, None, None, "-inf")
    j = max(1, math.ceil(samples * min(p, 1.0) - 1e-9))
    if p >= 1.0:
        return PaperIndex(j, None, None, "+inf")
    return PaperIndex(j, j if j < samples else None, j - 1, "finite" if j < samples else "+inf")


def paper_quantile(ordered: FloatArray, p: float, reading: str, axis: int = -1) -> FloatArray:
    """The paper's empirical percentile of samples sorted along `axis`, in one of its three readings."""
    if reading not in READINGS:
        raise unknown("reading of the empirical percentile", reading, READINGS)
    n = ordered.shape[axis]
    index = paper_index(n, p)
    first = np.take(ordered, 0, axis=axis)
    if p <= 0.0 or p >= 1.0:
        return np.full_like(first, -math.inf if p <= 0.0 else math.inf)
    if reading == "sup":
        if index.sup is None:
            return np.full_like(first, math.inf)
        return np.asarray(np.take(ordered, index.sup, axis=axis), dtype=np.float64)
    if reading == "max":
        assert index.max is not None
        return np.asarray(np.take(ordered, index.max, axis=axis), dtype=np.float64)
    position = (n - 1) * p
    floor = min(int(position), n - 1)
    below = np.take(ordered, floor, axis=axis)
    above = np.take(ordered, min(floor + 1, n - 1), axis=axis)
    return np.asarray(below + (position - floor) * (above - below), dtype=np.float64)


def paper_violation(
    n: int, true_level: float, used_level: float, reading: str, *, upper: bool = False
) -> float:
    """How often the paper's percentile is on the wrong side of the true quantile, for a continuous tight law.

    The position k (0-based) lies above the quantile when at most k samples lie below it:
    P(Bin(n, true_level) <= k). For `numpy` the inner neighbour's position: an upper bound. For an upper
    bound `true_level` is 1 - p_upper and positions count from the top.
    """
    index = paper_index(n, used_level)
    if used_level <= 0.0 or used_level >= 1.0 or (upper and reading == "sup" and index.sup is None):
        return 0.0
    inner = int((n - 1) * used_level) + (0 if upper else 1)
    position = min({"sup": index.j, "max": index.j - 1}.get(reading, inner), n - 1)
    return float(stats.binom.cdf(n - 1 - position if upper else position, n, true_level))


@dataclass(frozen=True)
class ActionBoundResult:
    """Interval for every coordinate of the smoothed action under attack."""

    lower: FloatArray
    """(..., d) lower bounds, -inf where the samples are too few."""
    upper: FloatArray
    """(..., d) upper bounds, +inf where the samples are too few."""
    levels: Levels
    """The levels of the clean action law that were bounded."""
    lower_position: int | None
    """0-based position of the lower bound among the sorted samples; None: infinite."""
    upper_position: int | None
    """0-based position of the upper bound among the sorted samples; None: infinite."""
    eps: float
    """l2 budget of one step."""
    sigma: float
    """Standard deviation of the noise."""
    p: float
    """The percentile the agent acts with (0.5: the median)."""
    alpha: float
    """Failure probability of all coordinates and both sides of one state together."""
    samples: int
    """Noise samples a state."""
    mode: str
    """paper, exact or deployed."""
    reading: str | None
    """sup, max or numpy in paper mode."""
    box: tuple[Any, Any] | None
    """The action box, if one was given; `clipped` uses it."""
    claim: Claim
    """What is claimed of each state."""
    violation: float = math.nan
    """Paper mode: how often one side of one coordinate fails at most, for a continuous tight law."""

    @property
    def finite(self) -> npt.NDArray[np.bool_]:
        """(...,) whether every side of every coordinate is finite."""
        return np.asarray(np.isfinite(self.lower).all(axis=-1) & np.isfinite(self.upper).all(axis=-1))

    @property
    def infinite_fraction(self) -> float:
        """Share of states with an infinite side: never averaged away in silence."""
        return float(1.0 - self.finite.mean())

    @property
    def clipped(self) -> tuple[FloatArray, FloatArray]:
        """The bounds of the clipped action: clipping is monotone, so it commutes with percentiles."""
        if self.box is None:
            raise UserError("clipped bounds need the action box: pass box=(low, high).")
        low, high = np.asarray(self.box[0]), np.asarray(self.box[1])
        return np.clip(self.lower, low, high), np.clip(self.upper, low, high)

    def adiv(self, *, clipped: bool = False) -> FloatArray:
        """||U - L||_2 / (2 eps) for each state."""
        if self.eps <= 0.0:
            raise UserError("ADIV divides by epsilon: use a positive budget.")
        low, high = self.clipped if clipped else (self.lower, self.upper)
        return np.asarray(np.sqrt(((high - low) ** 2).sum(axis=-1)) / (2.0 * self.eps))

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a state and coordinate."""
        low = self.lower.reshape(-1, self.lower.shape[-1])
        high = self.upper.reshape(low.shape)
        return [
            {"step": s, "dimension": i, "lower": plain(low[s, i]), "upper": plain(high[s, i])}
            for s in range(low.shape[0])
            for i in range(low.shape[1])
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON data."""
        data: dict[str, Any] = plain(self)
        return data | {"infinite_fraction": self.infinite_fraction}


def median_rank(samples: int) -> int:
    """1-based rank of the lower median, the one `torch.median` returns."""
    return (samples + 1) // 2


def percentile_rank(samples: int, p: float) -> int:
    """1-based rank of the p-th percentile of m samples; the lower median at p = 0.5."""
    return median_rank(samples) if p == 0.5 else max(1, math.ceil(samples * p))


def deployed_median_levels(samples: int, rank: int, eta: float) -> tuple[float, float]:
    """(p_minus, p_plus): the level of the rank-th of m fresh samples lies between them w.p. >= 1 - eta."""
    if not 1 <= rank <= samples:
        raise UserError(f"rank {rank} is not one of the {samples} samples of the deployed percentile.")
    return float(cp_lower(rank, samples, eta / 2)), float(cp_upper(rank - 1, samples, eta / 2))


def action_bound(
    samples: npt.ArrayLike,
    eps: float,
    sigma: float,
    p: float = 0.5,
    alpha: float = 0.05,
    mode: str = "exact",
    *,
    reading: str = "sup",
    box: tuple[Any, Any] | None = None,
    simultaneous: bool = True,
    deployed_samples: int | None = None,
    rank: int | None = None,
    eta: float | None = None,
) -> ActionBoundResult:
    """Bounds of the p-th percentile action under every ||Delta||_2 <= eps.

    Population (Theorem 3): q_{p_lower}(s) <= q_p(s + Delta) <= q_{p_upper}(s) with
    p_lower, p_upper = Phi(z(p) -+ eps/sigma), for every law of actions, atoms included.

    - `exact`: sorted samples bound both quantiles, x_(r) with P(Bin(n, p_lower) <= r - 1) <= a' and its
      mirror image, a' = alpha/(2d): with probability >= 1 - alpha all coordinates and sides hold together
      for the ideal smoothed agent. Infinite where n is too small.
    - `deployed`: bounds what the agent that acts on m fresh samples does (rank-th smallest, by default the
      lower median): its own level lies in [p_minus, p_plus] except with probability eta/d a coordinate;
      then as exact. Total failure alpha + eta (eta defaults to alpha).
    - `paper`: Theorem 4: levels Phi(z(p -+ D) -+ eps/sigma), the empirical percentile in three readings
      (`sup`, `max`, `numpy`: what the released code runs). It leaves the error of the empirical quantile
      out: violations grow with eps/sigma, see `claim.note`. Not a valid bound where no exact index exists.

    `simultaneous=False` spends alpha/2 a side on each coordinate by itself.
    """
    values = check_finite(np.asarray(samples, dtype=np.float64), "action samples")
    if values.ndim < 2:
        raise UserError("action samples need the shape (samples, action dimensions), states in front.")
    check_sigma(sigma), check_alpha(alpha), check_budget(eps)
    if not 0.0 < p < 1.0:
        raise UserError(f"p = {p}: the percentile must lie strictly between 0 and 1.")
    if mode not in ACTION_MODES:
        raise unknown("action bound mode", mode, ACTION_MODES)
    if mode == "paper":
        return _paper_bound(values, eps, sigma, p, alpha, reading, box)
    n, d = values.shape[-2:]
    share = d if simultaneous else 1
    p_minus = p_plus = p
    failure = alpha
    if mode == "deployed":
        eta = alpha if eta is None else check_alpha(eta, "eta")
        m = n if deployed_samples is None else deployed_samples
        k = percentile_rank(m, p) if rank is None else rank
        p_minus, p_plus = deployed_median_levels(m, k, eta / share)
        failure = alpha + eta
    levels = shifted_levels(p_minus, p_plus, eps, sigma)
    low = lower_index(n, levels.lower, alpha / (2 * share))
    high = upper_index(n, levels.upper, alpha / (2 * share), complement=levels.upper_complement)
    ordered = np.sort(values, axis=-2)
    infinite = np.full(values.shape[:-2] + (d,), math.inf)
    agent = IDEAL if mode == "exact" else deployed(n if deployed_samples is None else deployed_samples)
    return ActionBoundResult(
        lower=-infinite if low is None else ordered[..., low, :],
        upper=infinite if high is None else ordered[..., high, :],
        levels=levels,
        lower_position=low,
        upper_position=high,
        eps=eps,
        sigma=sigma,
        p=p,
        alpha=alpha,
        samples=n,
        mode=mode,
        reading=None,
        box=box,
        claim=_claim(eps, p, failure, agent, simultaneous, ""),
    )


def own_levels(
    samples: int, dimensions: int, p: float, alpha: float, mode: str, eta: float | None = None
) -> tuple[float, float]:
    """(p_minus, p_plus): the levels of the clean law that are shifted by the budget, before any sampling."""
    if mode == "paper":
        delta = hoeffding_delta(samples, alpha)
        return max(p - delta, 0.0), min(p + delta, 1.0)
    if mode == "deployed":
        return deployed_median_levels(
            samples, percentile_rank(samples, p), (alpha if eta is None else eta) / dimensions
        )
    return p, p


def largest_eps(
    samples: int, dimensions: int, sigma: float, alpha: float = 0.05, p: float = 0.5, mode: str = "exact"
) -> float:
    """The largest budget with finite bounds on both sides of every coordinate; -inf where none is."""
    p_minus, p_plus = own_levels(samples, dimensions, p, alpha, mode)
    nearest = min(p_minus, 1.0 - p_plus)
    if nearest <= 0.0:
        return -math.inf
    if mode == "paper":
        return math.inf
    lowest = -math.expm1(math.log(alpha / (2 * dimensions)) / samples)
    return sigma * (float(special.ndtri(nearest)) - float(special.ndtri(lowest)))


def refuse_hopeless_actions(
    samples: int,
    dimensions: int,
    eps: Sequence[float],
    sigma: float,
    alpha: float = 0.05,
    p: float = 0.5,
    mode: str = "exact",
) -> None:
    """Refuse, before any sampling, action bounds that are infinite at every budget.

    In `deployed` mode the agent acts on as many samples as the certificate has.
    """
    check_sigma(sigma), check_alpha(alpha)
    if samples < 1 or not eps:
        raise UserError("an action bound needs at least one noise sample and one budget.")
    easiest = min(check_budget(e) for e in eps)

    def enough(n: int) -> bool:
        return largest_eps(n, dimensions, sigma, alpha, p, mode) >= easiest

    if enough(samples):
        return
    needed = fewest(enough)
    raise UserError(
        f"{samples} samples can never bound {dimensions} action coordinates at epsilon = {easiest:g} "
        f"(sigma = {sigma:g}, alpha = {alpha:g}, mode {mode}): "
        + (f"at least {needed}" if needed else "infinitely many")
        + " are needed; the largest epsilon they reach is "
        f"{max(0.0, largest_eps(samples, dimensions, sigma, alpha, p, mode)):.4g}."
    )


def _paper_bound(
    values: FloatArray,
    eps: float,
    sigma: float,
    p: float,
    alpha: float,
    reading: str,
    box: tuple[Any, Any] | None,
) -> ActionBoundResult:
    n = values.shape[-2]
    levels = paper_levels(p, n, alpha, eps, sigma)
    ordered = np.sort(values, axis=-2)
    truth = shifted_levels(p, p, eps, sigma)
    violation = max(
        paper_violation(n, truth.lower, levels.lower, reading),
        paper_violation(n, truth.upper_complement, levels.upper, reading, upper=True),
    )
    impossible = (lower_index(n, truth.lower, alpha) is None and levels.lower > 0.0) or (
        lower_index(n, truth.upper_complement, alpha) is None and levels.upper < 1.0
    )
    note = f"a side of a coordinate fails with probability up to {violation:.1%} at {eps / sigma:.3g} sigma"
    if impossible:
        needed = str(min_samples(truth.lower, alpha)) if truth.lower > 0.0 else "infinitely many"
        note = (
            f"{NOT_VALID}: no order statistic of {n} samples bounds level {truth.lower:.3g}, "
            f"{needed} samples are needed; {note}"
        )
    index_low, index_high = paper_index(n, levels.lower), paper_index(n, levels.upper)
    claim = _claim(eps, p, alpha, IDEAL, False, note)
    valid = violation <= alpha and not impossible
    return ActionBoundResult(
        lower=paper_quantile(ordered, levels.lower, reading, axis=-2),
        upper=paper_quantile(ordered, levels.upper, reading, axis=-2),
        levels=levels,
        lower_position=_position(index_low, reading),
        upper_position=_position(index_high, reading),
        eps=eps,
        sigma=sigma,
        p=p,
        alpha=alpha,
        samples=n,
        mode="paper",
        reading=reading,
        box=box,
        claim=Claim(**{**claim.to_json(), "valid": valid, "confidence": None}),
        violation=violation,
    )


def _position(index: PaperIndex, reading: str) -> int | None:
    return {"sup": index.sup, "max": index.max}.get(reading)


def _claim(eps: float, p: float, failure: float, agent: str, jointly: bool, note: str) -> Claim:
    what = "median action" if p == 0.5 else f"{p:g}-percentile action"
    together = "all coordinates and both sides together" if jointly else "each coordinate by itself"
    return Claim(
        text=(
            f"under every perturbation of the observation of l2 length at most {eps:g} the agent's {what} "
            f"stays between the lower and the upper bound ({together})"
        ),
        agent=agent,
        adversary="static: any perturbation of this observation chosen before the noise is drawn",
        norm="l2",
        units=UNITS,
        confidence=1.0 - failure,
        random="the noise samples of the certificate"
        + (", and the deployed agent's own samples" if agent != IDEAL else "")
        + ", for each state by itself",
        note=note,
    )


@dataclass(frozen=True)
class AdivResult:
    """Action divergence: ||U - L|| / (2 eps), averaged over budgets and states."""

    value: float
    """Mean over the states and budgets that are finite; NaN where none is."""
    infinite_fraction: float
    """Share of (state, budget) pairs with an infinite side, which the mean leaves out."""
    by_budget: dict[float, float]
    """Mean over finite states for each budget; +inf where none is finite."""
    clipped: bool
    """Whether the action box cut the bounds first."""
    bounds: tuple[ActionBoundResult, ...]
    """The action bounds behind it, one a budget."""

    @property
    def claim(self) -> Claim:
        """ADIV is a metric; the claim is that of the action bounds behind it, with all their caveats."""
        claims = [bound.claim for bound in self.bounds]
        first, own = claims[0], f"at most {self.bounds[0].eps:g} "
        budgets = ", ".join(f"{bound.eps:g}" for bound in self.bounds)
        text = (
            first.text.replace(own, f"at most {budgets} (each by itself) ") if len(claims) > 1 else first.text
        )
        notes = [claim.note for claim in claims if claim.note]
        return replace(first, text=text, valid=all(c.valid for c in claims), note="; ".join(notes))

    def rows(self) -> list[dict[str, Any]]:
        """One record a budget."""
        return [
            {
                "epsilon": bound.eps,
                "adiv": plain(self.by_budget[bound.eps]),
                "infinite_fraction": bound.infinite_fraction,
                "valid": bound.claim.valid,
            }
            for bound in self.bounds
        ]

    def to_json(self) -> dict[str, Any]:
        """The metric as plain JSON data (bounds left out)."""
        return {
            "value": plain(self.value),
            "infinite_fraction": self.infinite_fraction,
            "clipped": self.clipped,
            "by_budget": self.rows(),
            "claims": [bound.claim.to_json() for bound in self.bounds],
        }


def adiv(
    samples: npt.ArrayLike,
    eps: Sequence[float],
    sigma: float,
    p: float = 0.5,
    alpha: float = 0.05,
    mode: str = "exact",
    *,
    clipped: bool = False,
    **options: Any,
) -> AdivResult:
    """ADIV of states `samples[..., n, d]`: mean over states and budgets of ||U - L||_2 / (2 eps).

    For a linear policy the population value is the Frobenius norm of its weights at every eps. It averages
    clean states only, so it is a metric, not a guarantee for a trajectory; infinite bounds are left out
    of the mean and counted in `infinite_fraction`. Options go to `action_bound`.
    """
    if not eps:
        raise UserError("ADIV needs at least one budget.")
    bounds = tuple(action_bound(samples, e, sigma, p, alpha, mode, **options) for e in eps)
    values = [np.atleast_1d(bound.adiv(clipped=clipped)) for bound in bounds]
    finite = [np.isfinite(v) for v in values]
    means = [float(v[ok].mean()) if ok.any() else math.inf for v, ok in zip(values, finite, strict=True)]
    everything, kept = np.concatenate(values), np.concatenate(finite)
    return AdivResult(
        value=float(everything[kept].mean()) if kept.any() else math.nan,
        infinite_fraction=float(1.0 - kept.mean()),
        by_budget={bound.eps: mean for bound, mean in zip(bounds, means, strict=True)},
        clipped=clipped,
        bounds=bounds,
    )
