"""Toy agents whose certificates have closed forms; the truth never comes from the code under test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

phi = special.ndtr
z = special.ndtri


# --- toy 1: two actions, linear ---------------------------------------------------------------------


@dataclass(frozen=True)
class LinearTwoAction:
    p_action1: float
    true_radius: float


def linear_two_action(w: list[float], b: float, s: list[float], sigma: float) -> LinearTwoAction:
    """Q(s, 1) - Q(s, 0) = w.s + b: the vote for 1 has probability Phi(u / (sigma ||w||))."""
    weights = np.asarray(w, dtype=float)
    margin, length = float(weights @ np.asarray(s, dtype=float) + b), float(np.linalg.norm(weights))
    return LinearTwoAction(float(phi(margin / (sigma * length))), abs(margin) / length)


# --- toy 2: slabs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThreeSlab:
    pA: float
    pB: float
    true_radius: float
    formula_radius: float


def three_slab(t1: float, t2: float, u: float, sigma: float) -> ThreeSlab:
    """A where x <= t1, B where x >= t2, filler between; moving towards B ties at the middle."""
    p_a, p_b = float(phi((t1 - u) / sigma)), float(phi((u - t2) / sigma))
    return ThreeSlab(p_a, p_b, (t1 + t2) / 2 - u, sigma / 2 * float(z(p_a) - z(p_b)))


# --- toy 5: linear policies -------------------------------------------------------------------------


def linear_policy_adiv(weights: list[list[float]]) -> float:
    """||W||_F, for every epsilon."""
    return float(np.linalg.norm(np.asarray(weights, dtype=float)))


def linear_policy_adiv_paper(W: list[list[float]], eps: float, sigma: float, m: int, alpha: float) -> float:
    """||W||_F (1 + sigma z(.5 + D)/eps): infinitely many samples at the paper's inflated levels."""
    delta = np.sqrt(np.log(1 / alpha) / (2 * m))
    return linear_policy_adiv(W) * (1 + sigma * float(z(0.5 + delta)) / eps)


# --- toy 6: the two-step switch game ----------------------------------------------------------------


def switch_game(c: float, b: float) -> dict[str, float]:
    """Return 1 iff z2 sign(z1) > -c; the adaptive optimum waits for z1 and spends all on z2."""
    return {"clean": float(phi(c)), "adaptive_worst": float(phi(c - b)), "bound": float(phi(z(phi(c)) - b))}


def switch_game_static(c: float, b: float, points: int = 20001) -> float:
    """The best attack fixed in advance: a grid over directions (d1, d2) of length b."""
    angle = np.linspace(0.0, 2 * np.pi, points)
    d1, d2 = b * np.cos(angle), b * np.sin(angle)
    return float((phi(d1) * phi(c + d2) + phi(-d1) * phi(c - d2)).min())


# --- toy 7: monotone functions of one Gaussian ------------------------------------------------------


def wang_plugin(returns: np.ndarray, floor: float, shift: float) -> float:
    """The Wang-transformed mean of the empirical law itself: no confidence, for cross-checks."""
    ordered = np.sort(returns)
    n = len(ordered)
    survival = 1.0 - np.arange(n) / n
    return float(floor + (np.diff(ordered, prepend=floor) * phi(z(survival) - shift)).sum())
