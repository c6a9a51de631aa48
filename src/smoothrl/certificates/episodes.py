"""From one step to an episode: joint certificates, counted false ones, certified-steps curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from smoothrl.certificates.claims import IDEAL, UNITS, Claim, FloatArray, check_alpha, check_sigma, plain
from smoothrl.certificates.intervals import binomial_quantile, cp_lower
from smoothrl.certificates.radius import RadiusResult, radius
from smoothrl.errors import UserError


def step_alphas(alpha: float, steps: int, schedule: str = "uniform") -> FloatArray:
    """Failure probabilities of the steps, summing to at most alpha.

    `uniform`: alpha/T for a known cap T. `anytime`: 6 alpha / (pi^2 (t+1)^2), for episodes of any length.
    """
    check_alpha(alpha)
    if steps < 1:
        raise UserError("an episode has at least one step.")
    if schedule == "uniform":
        return np.full(steps, alpha / steps)
    if schedule == "anytime":
        return 6.0 * alpha / (math.pi**2 * np.arange(1, steps + 1, dtype=np.float64) ** 2)
    raise UserError(f"unknown schedule {schedule!r}: choose uniform or anytime.")


def joint_step_radius(k: int, n: int, steps: int, alpha: float, sigma: float) -> tuple[float, float]:
    """(p_lower, radius) of one step at alpha/T, its action fixed beforehand: sigma z(CPL(k, n, alpha/T))."""
    p_lower = float(cp_lower(k, n, check_alpha(alpha) / steps))
    return p_lower, max(0.0, check_sigma(sigma) * float(special.ndtri(p_lower)))


@dataclass(frozen=True)
class JointResult:
    """Certificates of all steps of an episode that hold together."""

    steps: RadiusResult
    """The per-step certificates, each at its share of alpha."""
    alpha: float
    """Failure probability of the whole episode."""
    deterministic: bool
    """Whether the environment is deterministic: then the whole trajectory is certified."""
    claim: Claim
    """What is claimed of the episode."""

    @property
    def radius(self) -> FloatArray:
        """(T,) radii that hold together."""
        return self.steps.radius

    @property
    def smallest(self) -> float:
        """The budget a step under which no action of the episode changes (0 where any step abstained)."""
        return float(self.radius.min())

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a step."""
        return self.steps.rows()

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON data."""
        data: dict[str, Any] = plain(self)
        return data | {"smallest": self.smallest}


def joint_radius(
    counts: npt.ArrayLike,
    sigma: float,
    alpha: float = 0.05,
    mode: str | None = None,
    *,
    cap: int | None = None,
    schedule: str | None = None,
    deterministic: bool = False,
    **options: Any,
) -> JointResult:
    """All steps of one episode at once.

    Guarantee: noise at step t is fresh given s_t and the levels alpha_t are fixed beforehand with
    sum alpha_t <= alpha, so with probability >= 1 - alpha every issued certificate of the episode is true,
    whatever made the states and ended the episode. In a deterministic environment an adversary,
    adaptive too, with ||e_t|| < R_t at every step then leaves actions, trajectory and return of the ideal
    smoothed agent unchanged.

    `cap` is the largest possible length, known beforehand: alpha/cap a step (`uniform`). Without one the
    length may depend on the votes, so the `anytime` schedule of `step_alphas` is used.
    """
    votes = np.atleast_2d(np.asarray(counts))
    length = votes.shape[0]
    if cap is not None and cap < length:
        raise UserError(f"cap = {cap}, but the episode has {length} steps: alpha was not split far enough.")
    chosen = schedule or ("anytime" if cap is None else "uniform")
    if chosen == "uniform":
        if cap is None:
            raise UserError(
                "the uniform schedule needs `cap`, the largest length an episode can have: its real length "
                "may depend on the votes."
            )
        steps = radius(votes, sigma, check_alpha(alpha) / cap, mode, **options)
    else:
        alphas = step_alphas(alpha, length, chosen)
        parts = [radius(votes[t], sigma, float(a), mode, **_at(options, t)) for t, a in enumerate(alphas)]
        steps = _stack(parts)
    claim = Claim(
        text=(
            "an adversary with every perturbation strictly shorter than that step's radius leaves every "
            "action, the trajectory and the return unchanged"
            if deterministic
            else "at every visited state, no perturbation strictly shorter than its radius changes the action"
        ),
        agent=IDEAL,
        adversary="adaptive" if deterministic else "static at each visited state",
        norm="l2",
        units=UNITS,
        confidence=1.0 - alpha,
        random="the noise samples of all steps together",
        valid=steps.claim.valid and steps.mode != "paper",
    )
    return JointResult(steps=steps, alpha=alpha, deterministic=deterministic, claim=claim)


def _at(options: dict[str, Any], step: int) -> dict[str, Any]:
    per_step = ("selection_counts", "action")
    return {
        key: np.asarray(value)[step] if key in per_step and np.ndim(value) else value
        for key, value in options.items()
    }


def _stack(parts: Sequence[RadiusResult]) -> RadiusResult:
    arrays = ("certified", "action", "radius", "p_lower", "p_upper", "pvalue", "samples")
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays}
    first = parts[0]
    return RadiusResult(
        **joined, sigma=first.sigma, alpha=max(p.alpha for p in parts), mode=first.mode, claim=first.claim
    )


def max_false_certificates(steps: int, alpha: float, beta: float) -> int:
    """v with P(#false certificates among T steps at alpha each <= v) >= 1 - beta.

    Noise is fresh given the state, so the number of false ones is stochastically at most Bin(T, alpha).
    """
    check_alpha(alpha), check_alpha(beta, "beta")
    return binomial_quantile(1.0 - beta, steps, alpha)


def certified_fraction(
    result: RadiusResult, beta: float = 0.05, at: float = 0.0, cap: int | None = None
) -> float:
    """Lower bound, at confidence 1 - beta, of the share of steps whose action truly holds up to `at`.

    The observed share of issued certificates with radius > `at`, less v/T from `max_false_certificates`:
    per-step alpha, no union over steps. Where the votes can end the episode, pass the largest possible
    number of steps as `cap`: v then counts false ones among that many.
    """
    total = len(result.radius)
    if cap is not None and cap < total:
        raise UserError(f"cap = {cap}, but there are {total} steps.")
    issued = int((result.certified & (result.radius > at)).sum())
    return max(0.0, (issued - max_false_certificates(cap or total, result.alpha, beta)) / total)


@dataclass(frozen=True)
class CertifiedCurve:
    """C(r): the share of steps certified at radius r or more, averaged over episodes."""

    grid: FloatArray
    """(G,) radii at which the curve is given."""
    curve: FloatArray
    """(G,) mean over episodes of the share of steps with R_t >= r (r = 0: issued certificates)."""
    lower: FloatArray
    """(G,) lower edge of the band for the expected curve."""
    upper: FloatArray
    """(G,) upper edge."""
    area: float
    """Area under the mean curve over all radii: the mean radius."""
    weighted: FloatArray | None
    """(G,) the curve weighted by episode returns, where they were given."""
    beta: float
    """Failure probability of the whole band."""
    episodes: int
    """Independent episodes."""
    claim: Claim
    """What the band claims."""

    def rows(self) -> list[dict[str, Any]]:
        """One record a radius."""
        return [
            {"radius": float(r), "certified": float(c), "lower": float(lo), "upper": float(up)}
            for r, c, lo, up in zip(self.grid, self.curve, self.lower, self.upper, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON data."""
        data: dict[str, Any] = plain(self)
        return data


def certified_curve(
    radii: Sequence[npt.ArrayLike],
    grid: npt.ArrayLike,
    beta: float = 0.05,
    returns: npt.ArrayLike | None = None,
) -> CertifiedCurve:
    """Certified-steps curve of E independent episodes, `radii[e]` the radii of one (0: abstained).

    Band: Hoeffding on the episode averages, which are iid in [0, 1], at beta/(2G) a side: with
    probability >= 1 - beta the expected curve lies in it at all G grid points.
    """
    check_alpha(beta, "beta")
    points = np.asarray(grid, dtype=np.float64)
    episodes = [np.asarray(r, dtype=np.float64).ravel() for r in radii]
    if not episodes or any(len(e) == 0 for e in episodes) or points.ndim != 1 or len(points) == 0:
        raise UserError("a certified-steps curve needs at least one episode with steps, and a grid of radii.")
    shares = np.stack([_survival(e, points) for e in episodes])
    curve = shares.mean(axis=0)
    half = math.sqrt(math.log(2.0 * len(points) / beta) / (2.0 * len(episodes)))
    weighted = None
    if returns is not None:
        weights = np.asarray(returns, dtype=np.float64)
        if weights.shape != (len(episodes),) or bool((weights < 0).any()) or weights.sum() <= 0.0:
            raise UserError("return weights need one nonnegative return an episode, not all zero.")
        weighted = (weights[:, None] * shares).sum(axis=0) / weights.sum()
    claim = Claim(
        text="the expected share of steps with an issued radius of at least r lies in the band, for every r",
        agent=IDEAL,
        adversary="static at each visited state",
        norm="l2",
        units=UNITS,
        confidence=1.0 - beta,
        random="the episodes: environment seeds and all noise",
        note="about issued radii; each is true with its own confidence",
    )
    return CertifiedCurve(
        grid=points,
        curve=curve,
        lower=np.maximum(0.0, curve - half),
        upper=np.minimum(1.0, curve + half),
        area=float(np.mean([e.mean() for e in episodes])),
        weighted=weighted,
        beta=beta,
        episodes=len(episodes),
        claim=claim,
    )


def _survival(radii: FloatArray, points: FloatArray) -> FloatArray:
    """Share of steps with R >= r and R > 0 at each point."""
    ordered = np.sort(radii[radii > 0.0])
    return (len(ordered) - np.searchsorted(ordered, points, side="left")) / len(radii)
