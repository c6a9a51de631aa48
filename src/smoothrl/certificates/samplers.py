"""Drawing the samples a certificate needs, and no more: batches, early stopping, refusals before work.

Agents come in as callables: `sample(states, m, generator)` returns the votes (or outputs) of m noisy copies
of each state, noise fresh at every call. The generator is passed through untouched, so it may be numpy's
or torch's; nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from smoothrl.certificates.claims import IntArray, check_alpha, check_sigma, plain
from smoothrl.certificates.intervals import JEFFREYS, cs_lower, fewest, log_e_value
from smoothrl.certificates.radius import RadiusResult, radius
from smoothrl.errors import UserError

Sample = Callable[[Any, int, Any], Any]
Progress = Callable[[int, int], None]
_WINDOW = 64
CERTIFIED, FUTILE, CAPPED = "certified", "futile", "capped"


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """A numpy view or copy of an array or of a tensor on any device."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def count_votes(votes: Any, actions: int) -> IntArray:
    """(S, actions) counts of (S, m) votes."""
    drawn = to_numpy(votes)
    if drawn.ndim != 2 or not np.issubdtype(drawn.dtype, np.integer):
        raise UserError(
            f"votes of shape {drawn.shape} and type {drawn.dtype}: "
            "expected whole actions of shape (states, samples)."
        )
    if drawn.size and (drawn.min() < 0 or drawn.max() >= actions):
        raise UserError(f"a vote outside 0..{actions - 1} was drawn: is `actions` right?")
    rows = np.arange(drawn.shape[0])[:, None] * actions
    flat = np.bincount((rows + drawn).ravel(), minlength=drawn.shape[0] * actions)
    return flat.reshape(drawn.shape[0], actions).astype(np.int64)


def _chunks(total: int, per_state: int, max_batch: int) -> Iterable[slice]:
    width = max(1, max_batch // max(1, per_state))
    for start in range(0, total, width):
        yield slice(start, min(start + width, total))


def sample_counts(
    sample: Sample,
    states: Any,
    samples: int,
    actions: int,
    generator: Any,
    *,
    max_batch: int = 4096,
    progress: Progress | None = None,
) -> IntArray:
    """(S, actions) votes of `samples` noisy copies of every state, at most `max_batch` copies a call."""
    total = len(states)
    counts = np.zeros((total, actions), dtype=np.int64)
    for rows in _chunks(total, min(samples, max_batch), max_batch):
        done = 0
        while done < samples:
            block = min(samples - done, max_batch)
            counts[rows] += count_votes(sample(states[rows], block, generator), actions)
            done += block
        if progress is not None:
            progress(rows.stop, total)
    return counts


def sample_outputs(
    sample: Sample,
    states: Any,
    samples: int,
    generator: Any,
    *,
    max_batch: int = 4096,
    progress: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """(S, samples, d) outputs (actions of a policy, Q-values) at noisy copies of every state."""
    total, parts = len(states), []
    for rows in _chunks(total, min(samples, max_batch), max_batch):
        blocks, done = [], 0
        while done < samples:
            block = min(samples - done, max_batch)
            blocks.append(to_numpy(sample(states[rows], block, generator)).astype(np.float64))
            done += block
        parts.append(np.concatenate(blocks, axis=1))
        if progress is not None:
            progress(rows.stop, total)
    drawn = np.concatenate(parts)
    if not np.isfinite(drawn).all():
        raise UserError(
            "the agent's outputs contain NaN or infinite values: nothing can be certified about it."
        )
    return drawn


# --- the anytime test -----------------------------------------------------------------------------


@lru_cache(maxsize=64)
def looks(p0: float, alpha: float, cap: int, prior: tuple[float, float] = JEFFREYS) -> tuple[int, ...]:
    """looks[f]: the fewest samples at which f disagreements still prove p > p0; only those up to `cap`.

    A state with f disagreements need not be looked at before: the test that looks after every sample stops
    at exactly these sizes.
    """
    sizes: list[int] = []
    n = 1
    level = math.log(1.0 / alpha)
    while n <= cap:
        failures = len(sizes)
        ahead = np.arange(n, min(n + _WINDOW, cap + 1))
        passed = np.flatnonzero(log_e_value(ahead - failures, ahead, p0, prior) >= level)
        if passed.size == 0:
            n = int(ahead[-1]) + 1
            continue
        n = int(ahead[passed[0]]) + 1
        sizes.append(n - 1)
    return tuple(sizes)


def predicted_success(k: npt.ArrayLike, n: npt.ArrayLike, cap: int, allowed: int) -> npt.NDArray[np.float64]:
    """Beta-binomial chance that at most `allowed` of `cap` samples disagree, given k of n agree so far."""
    agree, drawn = np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64)
    left = allowed - (drawn - agree)
    chance = stats.betabinom.cdf(np.maximum(left, 0.0), cap - drawn, drawn - agree + 0.5, agree + 0.5)
    return np.asarray(np.where(left < 0.0, 0.0, chance), dtype=np.float64)


@dataclass(frozen=True)
class Decision:
    """Answers to "is the radius of this state at least `target`?", each at its own sample size."""

    status: tuple[str, ...]
    """(S,) certified, futile (given up as unlikely) or capped (samples used up)."""
    samples: IntArray
    """(S,) noise samples drawn, pilot included."""
    pilot: IntArray
    """(S, K) votes that chose the action; not used as evidence."""
    counts: IntArray
    """(S, K) votes that are the evidence."""
    target: float
    """The radius asked about."""
    result: RadiusResult
    """The anytime certificates at the stopping times."""

    @property
    def mean_samples(self) -> float:
        """Average number of samples a state, pilot included."""
        return float(self.samples.mean())

    @property
    def certified(self) -> npt.NDArray[np.bool_]:
        """(S,) whether the target was certified."""
        return np.asarray([status == CERTIFIED for status in self.status])

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a state."""
        merged = zip(self.result.rows(), self.status, self.samples, strict=True)
        return [row | {"status": status, "drawn": int(drawn)} for row, status, drawn in merged]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON data."""
        data: dict[str, Any] = plain(self)
        return data | {"mean_samples": self.mean_samples}


def decide_radius(
    sample: Sample,
    states: Any,
    target: float,
    sigma: float,
    actions: int,
    generator: Any,
    *,
    alpha: float = 0.05,
    pilot: int = 5,
    cap: int = 100,
    early_look: int = 8,
    futility: float = 0.1,
    max_batch: int = 4096,
    progress: Progress | None = None,
) -> Decision:
    """Certify radius `target` at every state, or give up, with as few samples as the answer needs.

    A pilot fixes the action; its votes are not evidence. Then H0: p <= Phi(target/sigma) is tested by the
    e-process of `log_e_value`, looked at whenever it could cross 1/alpha. Guarantee: for each state, with
    probability >= 1 - alpha, not certified or the ideal smoothed agent takes that action at every
    ||Delta||_2 < radius, at whatever time sampling stopped (Ville). Giving up needs no level: it claims
    nothing. It happens when the predicted chance of success by `cap` falls below `futility`.
    """
    sizes = refuse_target(target, sigma, alpha, cap)
    votes = sample_counts(sample, states, pilot, actions, generator, max_batch=max_batch)
    action = votes.argmax(axis=1)
    total = len(states)
    counts = np.zeros((total, actions), dtype=np.int64)
    status = np.full(total, "", dtype=object)
    first = early_look if 0 < early_look < sizes[0] else sizes[0]
    pending = np.full(total, first, dtype=np.int64)
    allowed = len(sizes) - 1
    while (status == "").any():
        for block in np.unique(pending[status == ""]):
            rows = np.flatnonzero((status == "") & (pending == block))
            counts[rows] += sample_counts(
                sample, states[rows], int(block), actions, generator, max_batch=max_batch
            )
        active = np.flatnonzero(status == "")
        n = counts[active].sum(axis=1)
        k = counts[active, action[active]]
        failures = n - k
        reachable = failures <= allowed
        needed = np.array([*sizes, cap + 1])[np.minimum(failures, allowed + 1)]
        won = reachable & (n >= needed)
        hopeless = ~won & (~reachable | (predicted_success(k, n, cap, allowed) < futility))
        status[active[won]] = CERTIFIED
        status[active[hopeless]] = np.where(n[hopeless] >= cap, CAPPED, FUTILE)
        pending[active] = np.maximum(needed - n, 0)
        if progress is not None:
            progress(int((status != "").sum()), total)
    return Decision(
        status=tuple(str(s) for s in status),
        samples=counts.sum(axis=1) + pilot,
        pilot=votes,
        counts=counts,
        target=target,
        result=radius(counts, sigma, alpha, "anytime", action=action),
    )


def refuse_target(target: float, sigma: float, alpha: float, cap: int) -> tuple[int, ...]:
    check_sigma(sigma), check_alpha(alpha)
    if not (math.isfinite(target) and target > 0.0):
        raise UserError(f"target radius {target}: it must be a positive number.")
    p0 = float(special.ndtr(target / sigma))
    sizes = looks(p0, alpha, cap) if p0 < 1.0 else ()
    if not sizes:
        reach = sigma * float(special.ndtri(cs_lower(cap, cap, alpha)))
        more = _first_look(p0, alpha)
        raise UserError(
            f"{cap} samples can never certify radius {target:g} at alpha = {alpha:g}: the largest "
            f"reachable is {max(reach, 0.0):.4g}. "
            + (f"Use at least {more} samples." if more else "It is out of reach at this sigma.")
        )
    return sizes


def _first_look(p0: float, alpha: float) -> int | None:
    """Samples after which unanimity proves p > p0; None where more than a billion would be needed."""
    if p0 >= 1.0:
        return None
    level = math.log(1.0 / alpha)
    return fewest(lambda n: float(log_e_value(n, n, p0)) >= level, 2**30)


@dataclass(frozen=True)
class ProbabilityDecision:
    """Outcome of a sequential test of P(success) > p0."""

    proved: bool
    """Whether P(success) > p0 was proved."""
    successes: int
    """Successes seen."""
    trials: int
    """Trials run."""
    lower: float
    """Confidence-sequence lower bound of P(success) at the stopping time."""
    p0: float
    """The probability tested."""
    alpha: float
    """Failure probability, over all stopping times."""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON data."""
        data: dict[str, Any] = plain(self)
        return data


def decide_probability(
    trial: Callable[[int], int], p0: float, *, alpha: float = 0.05, cap: int = 10000, batch: int = 32
) -> ProbabilityDecision:
    """Run trials in batches until P(success) > p0 is proved, has become impossible, or `cap` is reached.

    `trial(m)` runs m fresh trials (episodes that reach a return, say) and returns the successes. Proved
    with probability at most alpha where P(success) <= p0, at any stopping time.
    """
    check_alpha(alpha)
    if not 0.0 < p0 < 1.0 or batch < 1:
        raise UserError("p0 must lie strictly between 0 and 1, and a batch holds at least one trial.")
    sizes = looks(p0, alpha, cap)
    if not sizes:
        raise UserError(
            f"{cap} trials can never prove a probability above {p0:g} at alpha = {alpha:g}: "
            f"at least {_first_look(p0, alpha)} are needed."
        )
    k = n = 0
    proved = False
    while not proved and n < cap and n - k < len(sizes):
        m = min(batch, cap - n)
        k, n = k + int(trial(m)), n + m
        proved = float(log_e_value(k, n, p0)) >= math.log(1.0 / alpha)
    return ProbabilityDecision(proved, k, n, float(cs_lower(k, n, alpha)), p0, alpha)


# --- refusals -------------------------------------------------------------------------------------

_BATCH_NORMS = ("_BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
_DROPOUTS = ("_DropoutNd", "Dropout", "AlphaDropout", "FeatureAlphaDropout")


def refuse_batch_dependent(module: Any) -> None:
    """Refuse a network whose output at one input depends on the rest of the batch, or on hidden dice.

    Train-mode batch norm mixes the noisy copies, so they are neither independent nor functions of s + delta;
    batch norm without running statistics does so in eval mode too; train-mode dropout adds noise the
    certificate does not know. Anything with a `modules()` walk is looked at; no torch import.
    """
    for part in module.modules() if hasattr(module, "modules") else ():
        names = {base.__name__ for base in type(part).__mro__}
        label = type(part).__name__
        if names.intersection(_BATCH_NORMS):
            if getattr(part, "running_mean", None) is None:
                raise UserError(
                    f"{label} keeps no running statistics and reads them from the batch: such an agent "
                    "cannot be certified; retrain it with track_running_stats, or use another normalisation."
                )
            if part.training:
                raise UserError(
                    f"{label} is in training mode and mixes the noisy copies of a batch: call .eval() on the "
                    "agent's network before certifying it."
                )
        if getattr(part, "mixes_batch", False) is True:
            raise UserError(f"{label} normalises with batch statistics: freeze them before certifying.")
        if names.intersection(_DROPOUTS) and part.training:
            raise UserError(f"{label} is in training mode: call .eval() on the agent's network first.")


def check_samplewise(
    base: Callable[[Any], Any], observations: Any, *, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    """Refuse a base map whose outputs change with the batch they are computed in.

    Computes the first observations in batches of 1, of 7 and of all m, and in reversed company. Tolerances
    leave room for the float32 rounding of different matrix kernels.
    """
    total = len(observations)
    if total < 8:
        raise UserError("the self-check needs at least 8 noisy observations.")
    whole = to_numpy(base(observations))
    if whole.shape[0] != total:
        raise UserError("the base map must give one output for each observation.")
    if not np.isfinite(whole).all():
        raise UserError(
            "the agent's outputs contain NaN or infinite values: nothing can be certified about it."
        )
    flipped = np.arange(total)[::-1].copy()
    trials = {
        "1": np.concatenate([to_numpy(base(observations[i : i + 1])) for i in range(2)]),
        "7": to_numpy(base(observations[:7])),
        "all, reversed": to_numpy(base(observations[flipped]))[::-1],
    }
    for batch, found in trials.items():
        expected = whole[: len(found)]
        if not np.allclose(found, expected, rtol=rtol, atol=atol, equal_nan=False):
            raise UserError(
                f"the agent's output at one observation changes with its batch (batch of {batch} against "
                f"{total}, largest difference {np.abs(found - expected).max():.3g}): noisy copies are not "
                "independent, so nothing can be certified. Put the network in eval mode, and look for batch "
                "statistics or randomness in it."
            )


def refuse_live_normaliser(normaliser: Any) -> None:
    """Refuse a normaliser that still learns: it lets un-noised observations steer the agent.

    Looks at the switch the normaliser has: `training`, `live`, `updating` (must be false) or `frozen`
    (must be true).
    """
    live = any(getattr(normaliser, name, False) is True for name in ("training", "live", "updating"))
    if live or getattr(normaliser, "frozen", True) is False:
        raise UserError(
            "the observation normaliser is still updating, so the agent reads observations without noise: "
            "freeze it before certifying."
        )
