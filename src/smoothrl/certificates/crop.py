"""Certified radius of mean smoothing (CROP): the action with the largest averaged Q-value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from smoothrl.certificates.claims import (
    IDEAL,
    NOT_VALID,
    UNITS,
    BoolArray,
    Claim,
    FloatArray,
    IntArray,
    check_alpha,
    check_finite,
    check_sigma,
    plain,
)
from smoothrl.certificates.intervals import (
    betting_lower,
    empirical_bernstein_lower,
    fewest,
    hoeffding_delta,
)
from smoothrl.errors import UserError, unknown

CROP_MODES = ("paper", "exact")
METHODS = ("betting", "empirical-bernstein", "hoeffding")
ABSTAIN = -1


@dataclass(frozen=True)
class CropResult:
    """Certificates of the mean-smoothed action at each of several states."""

    certified: BoolArray
    """(S,) whether a certificate was issued."""
    action: IntArray
    """(S,) the certified action; -1 where there is none."""
    radius: FloatArray
    """(S,) l2 radius, 0 where there is none. The claim is for perturbations strictly shorter."""
    lower: FloatArray
    """(S,) lower bound of the winner's expected Q-value, scaled to [0, 1]."""
    upper: FloatArray
    """(S,) upper bound of every other action's, scaled to [0, 1]."""
    clipped_fraction: float
    """Share of Q-values outside the range (cut there in exact mode)."""
    value_range: tuple[float, float]
    """[V_min, V_max]."""
    samples: int
    """Noise samples a state."""
    sigma: float
    """Standard deviation of the noise."""
    alpha: float
    """Failure probability of each state's certificate."""
    mode: str
    """paper or exact."""
    claim: Claim
    """What is claimed of each state."""

    @property
    def mean_radius(self) -> float:
        """Mean radius with abstentions counted as 0."""
        return float(self.radius.mean())

    @property
    def fraction_certified(self) -> float:
        """Share of states with a certificate."""
        return float(self.certified.mean())

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a state."""
        columns = ("certified", "action", "radius", "lower", "upper")
        return [
            {"step": step, **{name: plain(getattr(self, name)[step]) for name in columns}}
            for step in range(self.radius.shape[0])
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON data, with the two summary numbers."""
        data: dict[str, Any] = plain(self)
        return data | {"mean_radius": self.mean_radius, "fraction_certified": self.fraction_certified}


def crop_formula(
    q1: npt.ArrayLike,
    q2: npt.ArrayLike,
    value_range: tuple[float, float],
    sigma: float,
    samples: int,
    alpha: float,
) -> tuple[BoolArray, FloatArray, FloatArray, FloatArray]:
    """CROP's radius from the two largest averaged Q-values: (certified, radius, lower, upper).

    D = (V_max - V_min) sqrt(ln(1/alpha)/2m);
    R = sigma/2 [z((q1 - D - V_min)/(V_max - V_min)) - z((q2 + D - V_min)/(V_max - V_min))].
    """
    low, high = _checked_range(value_range)
    delta = hoeffding_delta(samples, alpha)
    lower = (np.asarray(q1, dtype=np.float64) - low) / (high - low) - delta
    upper = (np.asarray(q2, dtype=np.float64) - low) / (high - low) + delta
    certified, radius = _radius(lower, upper, sigma)
    return certified, radius, lower, upper


def crop_radius(
    q_values: npt.ArrayLike,
    value_range: tuple[float, float],
    sigma: float,
    alpha: float = 0.05,
    mode: str = "exact",
    *,
    method: str = "betting",
    action: npt.ArrayLike | None = None,
) -> CropResult:
    """Certified radii of the mean-smoothed agent from Q-values `q_values[s, i, a]` at n noisy copies.

    - `exact`: Q is clipped to [V_min, V_max], and the certificate is about the agent that averages the
      clipped values: any range is sound, a poor one only costs radius. Bounds for bounded means
      (`betting`, `empirical-bernstein` or `hoeffding`): lower l_a for the largest mean, upper u for all
      others; R = sigma/2 (z(l_a) - z(u)). Failure <= alpha for each state: with `action` fixed on other
      samples, alpha/2 + alpha/2 (the runner-up needs no correction); without, lower bounds at
      alpha/(2K) for all K actions and upper bounds at alpha/4 for the best and the second best.
    - `paper`: the published formula on unclipped averages; not a valid bound where a Q-value leaves
      the range.
    """
    values = np.asarray(q_values, dtype=np.float64)
    values = values[None] if values.ndim == 2 else values
    if values.ndim != 3 or values.shape[2] < 2:
        raise UserError("Q-values need the shape (states, samples, actions) with at least two actions.")
    check_finite(values, "Q-values")
    check_sigma(sigma), check_alpha(alpha)
    low, high = _checked_range(value_range)
    if mode not in CROP_MODES:
        raise unknown("CROP mode", mode, CROP_MODES)
    if method not in METHODS:
        raise unknown("bound for a mean", method, METHODS)
    outside = float(((values < low) | (values > high)).mean())
    if mode == "paper":
        means = values.mean(axis=1)
        winner = means.argmax(axis=1)
        certified, radius, lower, upper = crop_formula(
            _take(means, winner), _others(means, winner), value_range, sigma, values.shape[1], alpha
        )
    else:
        scaled = (np.clip(values, low, high) - low) / (high - low)
        winner, lower, upper = _bounds(scaled, alpha, method, action)
        certified, radius = _radius(lower, upper, sigma)
        certified = certified & (radius > 0.0)
    return CropResult(
        certified=certified,
        action=np.where(certified, winner, ABSTAIN).astype(np.int64),
        radius=np.where(certified, radius, 0.0),
        lower=lower,
        upper=upper,
        clipped_fraction=outside,
        value_range=(low, high),
        samples=values.shape[1],
        sigma=sigma,
        alpha=alpha,
        mode=mode,
        claim=_claim(alpha, mode, outside),
    )


def largest_crop_radius(
    samples: int,
    actions: int,
    sigma: float,
    alpha: float = 0.05,
    method: str = "betting",
    mode: str = "exact",
) -> float:
    """The radius when every sample of the best action is V_max and of all others V_min."""
    best = np.zeros((1, samples, actions))
    best[..., 0] = 1.0
    return float(crop_radius(best, (0.0, 1.0), sigma, alpha, mode, method=method).radius[0])


def refuse_hopeless_crop(
    samples: int,
    actions: int,
    sigma: float,
    alpha: float = 0.05,
    method: str = "betting",
    mode: str = "exact",
) -> None:
    """Refuse, before any sampling, what even perfectly separated Q-values cannot certify."""
    if samples < 1:
        raise UserError("a certificate needs at least one noise sample.")

    def enough(n: int) -> bool:
        return largest_crop_radius(n, actions, sigma, alpha, method, mode) > 0.0

    if enough(samples):
        return
    raise UserError(
        f"{samples} samples can never certify a mean-smoothed action at alpha = {alpha:g} ({mode}"
        + (f", {method}" if mode == "exact" else "")
        + f"): the largest certificate reachable is 0. At least {fewest(enough, 2**20)} samples are needed."
    )


def _bounds(
    scaled: FloatArray, alpha: float, method: str, action: npt.ArrayLike | None
) -> tuple[IntArray, FloatArray, FloatArray]:
    states, _, actions = scaled.shape
    samples_first = np.moveaxis(scaled, 1, 0)
    if action is None:
        winner = np.asarray(scaled.mean(axis=1).argmax(axis=1), dtype=np.int64)
        level_lower, level_upper = alpha / (2 * actions), alpha / 4
    else:
        winner = np.broadcast_to(np.asarray(action, dtype=np.int64), (states,)).copy()
        if bool((winner < 0).any()) or bool((winner >= actions).any()):
            raise UserError(f"action must be between 0 and {actions - 1}.")
        level_lower = level_upper = alpha / 2
    own = np.take_along_axis(samples_first, winner[None, :, None], axis=2)[:, :, 0]
    lower = mean_lower(own, level_lower, method)
    upper_all = 1.0 - mean_lower(1.0 - samples_first, level_upper, method)
    return winner, lower, _others(upper_all, winner)


def mean_lower(samples: npt.ArrayLike, alpha: float, method: str) -> FloatArray:
    """Lower bound of the mean of [0, 1] samples along axis 0 by the named method."""
    if method == "betting":
        return betting_lower(samples, alpha)
    if method == "empirical-bernstein":
        return empirical_bernstein_lower(samples, alpha)
    x = np.asarray(samples, dtype=np.float64)
    return np.asarray(x.mean(axis=0) - hoeffding_delta(x.shape[0], alpha), dtype=np.float64)


def _radius(lower: FloatArray, upper: FloatArray, sigma: float) -> tuple[BoolArray, FloatArray]:
    certified = (lower >= upper) & (lower > 0.0) & (upper < 1.0) & (lower < 1.0) & (upper > 0.0)
    inside_l, inside_u = np.where(certified, lower, 0.5), np.where(certified, upper, 0.5)
    return certified, np.asarray(0.5 * sigma * (special.ndtri(inside_l) - special.ndtri(inside_u)))


def _take(values: FloatArray, index: IntArray) -> FloatArray:
    return np.take_along_axis(values, index[:, None], axis=1)[:, 0]


def _others(values: FloatArray, index: IntArray) -> FloatArray:
    rest = values.copy()
    np.put_along_axis(rest, index[:, None], -math.inf, axis=1)
    return np.asarray(rest.max(axis=1), dtype=np.float64)


def _checked_range(value_range: tuple[float, float]) -> tuple[float, float]:
    low, high = float(value_range[0]), float(value_range[1])
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"[V_min, V_max] = [{low}, {high}] is not a range.")
    return low, high


def _claim(alpha: float, mode: str, outside: float) -> Claim:
    valid = mode == "exact"
    note = "Q-values are clipped to the range before they are averaged: the deployed agent must clip too"
    if not valid:
        note = f"{NOT_VALID} unless every Q-value lies in the range: nothing clips it ({outside:.2%} outside)"
    return Claim(
        text=(
            "the mean-smoothed agent's action at this state is the same under every perturbation of the "
            "observation strictly shorter than the radius"
        ),
        agent=IDEAL,
        adversary="static: any perturbation of this observation chosen before the noise is drawn",
        norm="l2",
        units=UNITS,
        confidence=1.0 - alpha if valid else None,
        random="the noise samples of the certificate, for each state by itself",
        valid=valid,
        note=note,
    )
