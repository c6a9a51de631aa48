"""What a certificate says: in words for a person, in fields for a program."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothrl.errors import UserError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

NOT_VALID = "not a valid bound"
IDEAL = "ideal smoothed agent (infinitely many noise samples)"
ONE_DRAW = "agent with one fresh noise draw a step"
UNITS = "normalised observation"


def deployed(samples: int) -> str:
    """The name of the agent that really acts, with its finite number of noise samples."""
    return f"deployed agent with {samples} fresh noise samples a step"


@dataclass(frozen=True)
class Claim:
    """One certified statement, complete enough to be disputed."""

    text: str
    """The statement in one or two sentences."""
    agent: str
    """Whose behaviour is certified: ideal, deployed with m samples, or one noise draw a step."""
    adversary: str
    """`static` (fixed before the noise) or `adaptive` (may depend on everything before the noise)."""
    norm: str
    """The norm of the budget: always `l2` before a conversion by `norms`."""
    units: str
    """The space in which the budget and sigma are measured."""
    confidence: float | None
    """Lower bound on the probability that the statement is right, or None where there is none."""
    random: str
    """What that probability is over."""
    valid: bool = True
    """False where the published formula gives no valid bound."""
    note: str = ""
    """Caveats that belong beside the number."""

    def __str__(self) -> str:
        prefix = "" if self.valid else f"{NOT_VALID}: "
        return prefix + self.text + (f" ({self.note})" if self.note else "")

    def to_json(self) -> dict[str, Any]:
        """The claim as plain JSON data."""
        return dataclasses.asdict(self)


def plain(value: Any) -> Any:
    """JSON data for `value`: arrays become lists, infinities and NaN become strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def number(value: Any) -> float:
    """The number that `plain` wrote: the inverse for one scalar."""
    return float(value)


def check_alpha(alpha: float, name: str = "alpha") -> float:
    """Refuse a failure probability outside (0, 1/2]."""
    if not 0.0 < alpha <= 0.5:
        raise UserError(
            f"{name} = {alpha} is no failure probability: choose a number in (0, 0.5], e.g. 0.05."
        )
    return float(alpha)


def check_sigma(sigma: float) -> float:
    """Refuse a noise level that smooths nothing."""
    if not (math.isfinite(sigma) and sigma > 0.0):
        raise UserError(
            f"sigma = {sigma}: an agent without noise has no smoothing certificate; "
            "use the sigma it was smoothed with (a positive number)."
        )
    return float(sigma)


def check_budget(budget: float, name: str = "epsilon") -> float:
    """Refuse a budget that is not a nonnegative number."""
    if not (math.isfinite(budget) and budget >= 0.0):
        raise UserError(f"{name} = {budget} is not a budget: it must be a finite number, zero or more.")
    return float(budget)


def check_finite(values: FloatArray, what: str) -> FloatArray:
    """Refuse NaN and infinite samples: a certificate of garbage would be garbage."""
    if values.size == 0:
        raise UserError(f"no {what} given: a certificate needs at least one sample.")
    if not bool(np.isfinite(values).all()):
        raise UserError(f"{what} contain NaN or infinite values: look at the agent's outputs first.")
    return values
