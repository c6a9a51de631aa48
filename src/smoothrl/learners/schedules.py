"""How epsilon grows over a training. A schedule maps progress u of its ramp to a share of epsilon."""

from __future__ import annotations

import math

from scipy.special import lambertw

from smoothrl.learners.presets import Growth

MIDDLE = 0.25
POWER = 4.0
TINY = 1e-10
"""Where the exponential ramp starts, an absolute epsilon: it is never exactly zero."""


def linear(u: float) -> float:
    return min(max(u, 0.0), 1.0)


def smooth(u: float) -> float:
    """A fourth power up to a quarter of the ramp, then linear; value and slope fit where they meet."""
    alpha = 1.0 / ((1.0 - MIDDLE) * POWER * MIDDLE ** (POWER - 1.0) + MIDDLE**POWER)
    if u <= 0.0:
        return 0.0
    if u < MIDDLE:
        return float(alpha * u**POWER)
    at_middle = alpha * MIDDLE**POWER
    return float(min(at_middle + (1.0 - at_middle) * (u - MIDDLE) / (1.0 - MIDDLE), 1.0))


def exponential(u: float, epsilon: float) -> float:
    """Exponential from TINY to a quarter m of the ramp, then linear: r ln r = m / (1 - m) epsilon / TINY."""
    start = TINY / epsilon
    ratio = math.exp(float(lambertw(MIDDLE / (1.0 - MIDDLE) / start).real))
    if u <= 0.0:
        return start
    if u < MIDDLE:
        return float(start * ratio ** (u / MIDDLE))
    at_middle = ratio * start
    return float(min(at_middle + (1.0 - at_middle) * (u - MIDDLE) / (1.0 - MIDDLE), 1.0))


def grown(growth: Growth, u: float, epsilon: float) -> float:
    """Epsilon at progress u of the ramp."""
    if epsilon == 0.0:
        return 0.0
    if growth == "linear":
        return epsilon * linear(u)
    return epsilon * (smooth(u) if growth == "smooth" else exponential(u, epsilon))


def ramp(iteration: float, iterations: int, start: float, length: float) -> float:
    """Progress u at a (fractional) iteration of a ramp that starts after the share `start` of the run."""
    return (iteration - start * iterations) / (length * iterations)
