"""From an l2 certificate to other norms, and from budgets to the l2 norm they fit in."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from smoothrl.certificates.claims import FloatArray, check_budget
from smoothrl.errors import UserError


def _dimension(dim: int) -> int:
    if dim < 1:
        raise UserError(f"dimension {dim}: an observation has at least one coordinate.")
    return int(dim)


def lp_radius(l2_radius: npt.ArrayLike, dim: int, p: float) -> FloatArray:
    """The largest lp ball inside the l2 ball: R N^(1/p - 1/2) for p >= 2, R for 1 <= p <= 2."""
    if p < 1.0:
        raise UserError(f"p = {p}: an lp norm has p >= 1 (for counted coordinates see l0_radius).")
    factor = 1.0 if p <= 2.0 else _dimension(dim) ** (1.0 / p - 0.5)
    return np.asarray(l2_radius, dtype=np.float64) * factor


def linf_radius(l2_radius: npt.ArrayLike, dim: int) -> FloatArray:
    """R / sqrt(N): every change of at most this much a coordinate is shorter than R."""
    return lp_radius(l2_radius, dim, math.inf)


def l1_radius(l2_radius: npt.ArrayLike, dim: int = 1) -> FloatArray:
    """R: the l1 ball of that radius touches the l2 sphere at its corners."""
    return lp_radius(l2_radius, dim, 1.0)


def l0_radius(l2_radius: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Coordinates of [0, 1] data that may change at will: the largest k with sqrt(k) < R (strict)."""
    squared = np.asarray(l2_radius, dtype=np.float64) ** 2
    return np.maximum(np.ceil(squared) - 1.0, 0.0).astype(np.int64)


def l2_of_linf(eps_inf: float, dim: int) -> float:
    """The l2 length an linf perturbation can have: eps sqrt(N)."""
    return check_budget(eps_inf) * math.sqrt(_dimension(dim))


def total_budget(eps: float, horizon: int) -> float:
    """B = eps sqrt(H): the l2 length of H perturbations of length eps each."""
    if horizon < 1:
        raise UserError(f"horizon {horizon}: an episode has at least one step.")
    return check_budget(eps) * math.sqrt(horizon)


def ellipsoid_contains(e: npt.ArrayLike, sigmas: npt.ArrayLike, z: float) -> npt.NDArray[np.bool_]:
    """For diagonal noise: whether sum (e_i / sigma_i)^2 < z(p_lower)^2, the certified ellipsoid."""
    scaled = np.asarray(e, dtype=np.float64) / np.asarray(sigmas, dtype=np.float64)
    return np.asarray((scaled**2).sum(axis=-1) < z**2)
