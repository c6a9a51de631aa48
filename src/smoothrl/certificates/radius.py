"""Certified radius of a vote: how far an observation may be moved before the smoothed action can change.

Counts come in, arrays over states come out. `counts[s, a]` is how often action a won among n noisy copies
of state s; only the counts matter, so a whole episode costs a few microseconds a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from smoothrl.certificates.claims import (
    IDEAL,
    UNITS,
    BoolArray,
    Claim,
    FloatArray,
    IntArray,
    check_alpha,
    check_sigma,
    deployed,
    plain,
)
from smoothrl.certificates.intervals import (
    JEFFREYS,
    binomial_tail,
    by_unique,
    cp_lower,
    cp_upper,
    cs_lower,
    fewest,
    rank_pvalue,
)
from smoothrl.errors import UserError, unknown

RadiusMode = Literal["paper", "cohen", "majority", "rank", "anytime"]
RADIUS_MODES: tuple[RadiusMode, ...] = ("paper", "cohen", "majority", "rank", "anytime")
MAJORITY_SPLIT = (0.1, 0.9)
RANK_SPLIT = (0.02, 0.90, 0.08)
ABSTAIN = -1


@dataclass(frozen=True)
class RadiusResult:
    """Certificates of one action at each of several states."""

    certified: BoolArray
    """(S,) whether a certificate was issued."""
    action: IntArray
    """(S,) the certified action; -1 where there is none."""
    radius: FloatArray
    """(S,) l2 radius, 0 where there is none. The claim is for perturbations strictly shorter."""
    p_lower: FloatArray
    """(S,) lower bound on the winner's probability."""
    p_upper: FloatArray
    """(S,) upper bound on every other action's probability."""
    pvalue: FloatArray
    """(S,) p-value of the gate that names the winner (1 where the mode has no gate)."""
    samples: IntArray
    """(S,) noise samples behind each certificate."""
    sigma: float
    """Standard deviation of the noise."""
    alpha: float
    """Failure probability of each state's certificate."""
    mode: str
    """paper, cohen, majority, rank or anytime."""
    claim: Claim
    """What is claimed of each state."""

    @property
    def mean_radius(self) -> float:
        """Mean radius with abstentions counted as 0, the paper's metric."""
        return float(self.radius.mean())

    @property
    def fraction_certified(self) -> float:
        """Share of states with a certificate."""
        return float(self.certified.mean())

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a state."""
        columns = ("certified", "action", "radius", "p_lower", "p_upper", "samples")
        return [
            {"step": step, **{name: plain(getattr(self, name)[step]) for name in columns}}
            for step in range(self.radius.shape[0])
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON data, with the two summary numbers."""
        data: dict[str, Any] = plain(self)
        return data | {"mean_radius": self.mean_radius, "fraction_certified": self.fraction_certified}


def default_mode(actions: int) -> RadiusMode:
    """Majority where the runner-up has nearly all the rest (K <= 3), rank where it need not (K >= 4)."""
    return "majority" if actions <= 3 else "rank"


def radius(
    counts: npt.ArrayLike,
    sigma: float,
    alpha: float = 0.05,
    mode: str | None = None,
    *,
    split: tuple[float, ...] | None = None,
    selection_counts: npt.ArrayLike | None = None,
    action: npt.ArrayLike | None = None,
    prior: tuple[float, float] = JEFFREYS,
) -> RadiusResult:
    """Certified radii from vote counts.

    Guarantee (every mode but paper), for each state s fixed before its noise: with probability at least
    1 - alpha over the noise samples, either no certificate is issued, or the returned action is the
    ideal smoothed action at s and at every s + Delta with ||Delta||_2 < radius.

    - `majority`: gate CPL(k1, a_s) > 1/2; R = sigma z(CPL(k1, a_e)); a_s + a_e = alpha, a_s <= alpha/2.
      All samples serve both choice and bound. Default for K <= 3.
    - `rank`: gate rank p-value <= a_s; R = sigma/2 (z(pl) - z(pu)), pl = CPL(k1, a_A),
      pu = min(1 - pl, CPU(k2, a_B)); a_s + a_A + a_B = alpha. Default for K >= 4.
    - `cohen`: the action is fixed by `selection_counts` or `action` on other samples;
      R = sigma z(CPL(k, alpha)).
    - `anytime`: as cohen with a confidence sequence instead of CPL: holds at every sample size at once, so
      sampling may stop when it likes. Without a fixed action all K sequences run at alpha/K.
    - `paper`: sigma/2 (z(q1 - D) - z(q2 + D)) with D = sqrt(ln(1/alpha)/2m) (Theorem 2); its proof has
      gaps (two bounds at alpha each, actions chosen on the same data), its slack covers them
      (worst violation 2.2 % at alpha = .05, m >= 10), and it cannot exceed sigma z(1 - D).

    `split` sets the shares of alpha (majority: 2, rank: 3; they must sum to at most 1).
    """
    votes = _checked_counts(counts)
    check_sigma(sigma), check_alpha(alpha)
    chosen_mode = default_mode(votes.shape[1]) if mode is None else mode
    if chosen_mode not in RADIUS_MODES:
        raise unknown("radius mode", chosen_mode, RADIUS_MODES)
    total = votes.sum(axis=1)
    if bool((total < 1).any()):
        raise UserError("a state without votes cannot be certified: draw at least one noise sample for each.")
    fixed = _fixed_action(votes, selection_counts, action)
    if chosen_mode == "cohen" and fixed is None:
        raise UserError(
            "cohen mode needs the action chosen on other samples: pass selection_counts or action, "
            "or use majority or rank, which let the same samples do both."
        )
    if fixed is not None and chosen_mode in ("paper", "majority", "rank"):
        raise UserError(f"{chosen_mode} mode chooses the action itself: drop selection_counts and action.")
    if chosen_mode == "paper":
        parts = _paper(votes, total, alpha)
    elif chosen_mode == "majority":
        parts = _majority(votes, total, alpha, split or MAJORITY_SPLIT)
    elif chosen_mode == "rank":
        parts = _rank(votes, total, alpha, split or RANK_SPLIT)
    elif chosen_mode == "cohen":
        assert fixed is not None
        parts = _from_lower(fixed, _cp_by_count(_pick(votes, fixed), total, alpha))
    else:
        parts = _anytime(votes, total, alpha, fixed, prior)
    winner, pl, pu, pvalue, gate = parts
    return _issue(winner, pl, pu, pvalue, gate, total, sigma, alpha, chosen_mode)


_Parts = tuple[IntArray, FloatArray, FloatArray, FloatArray, BoolArray]


def _paper(votes: IntArray, total: IntArray, alpha: float) -> _Parts:
    k1, k2, winner = top_two(votes)
    delta = np.sqrt(np.log(1.0 / alpha) / (2.0 * total))
    pl, pu = k1 / total - delta, k2 / total + delta
    return winner, pl, pu, np.ones(len(total)), pl >= pu


def _majority(votes: IntArray, total: IntArray, alpha: float, split: tuple[float, ...]) -> _Parts:
    alpha_s, alpha_e = _shares(split, 2, alpha)
    if alpha_s > alpha / 2:
        raise UserError("majority mode needs its gate's share to be at most half of alpha.")
    k1, _, winner = top_two(votes)
    pvalue = binomial_tail(k1, total, 0.5)
    pl = _cp_by_count(k1, total, alpha_e)
    return winner, pl, 1.0 - pl, pvalue, pvalue < alpha_s


def _rank(votes: IntArray, total: IntArray, alpha: float, split: tuple[float, ...]) -> _Parts:
    alpha_s, alpha_a, alpha_b = _shares(split, 3, alpha)
    k1, k2, winner = top_two(votes)
    pvalue = rank_pvalue(k1, k2)
    pl = _cp_by_count(k1, total, alpha_a)
    pu = np.minimum(1.0 - pl, _cp_by_count(k2, total, alpha_b, upper=True))
    return winner, pl, pu, pvalue, pvalue <= alpha_s


def _anytime(
    votes: IntArray, total: IntArray, alpha: float, fixed: IntArray | None, prior: tuple[float, float]
) -> _Parts:
    winner = votes.argmax(axis=1) if fixed is None else fixed
    level = alpha / votes.shape[1] if fixed is None else alpha
    k = _pick(votes, winner)
    pl = np.zeros(len(total))
    for n in np.unique(total):
        rows = total == n
        unique, inverse = by_unique(k[rows])
        pl[rows] = cs_lower(unique, int(n), level, prior)[inverse]
    return _from_lower(winner, pl)


def _from_lower(winner: IntArray, pl: FloatArray) -> _Parts:
    return winner, pl, 1.0 - pl, np.ones(len(pl)), pl > 0.5


def _issue(
    winner: IntArray,
    pl: FloatArray,
    pu: FloatArray,
    pvalue: FloatArray,
    gate: BoolArray,
    total: IntArray,
    sigma: float,
    alpha: float,
    mode: str,
) -> RadiusResult:
    with np.errstate(invalid="ignore"):
        raw = 0.5 * sigma * (special.ndtri(pl) - special.ndtri(pu))
    certified = gate & (raw >= 0.0 if mode == "paper" else raw > 0.0)
    return RadiusResult(
        certified=certified,
        action=np.where(certified, winner, ABSTAIN).astype(np.int64),
        radius=np.where(certified, raw, 0.0),
        p_lower=pl,
        p_upper=pu,
        pvalue=pvalue,
        samples=total,
        sigma=sigma,
        alpha=alpha,
        mode=mode,
        claim=_claim(alpha, mode),
    )


def _claim(alpha: float, mode: str) -> Claim:
    notes = {
        "paper": "published formula: its proof gives 1 - 2 alpha at best, its slack keeps it above 1 - alpha",
        "cohen": "the action was chosen on other samples",
        "anytime": "holds at every stopping time",
    }
    return Claim(
        text=(
            "the smoothed agent's action at this state is the same under every perturbation of the "
            "observation strictly shorter than the radius"
        ),
        agent=IDEAL,
        adversary="static: any perturbation of this observation chosen before the noise is drawn",
        norm="l2",
        units=UNITS,
        confidence=1.0 - alpha,
        random="the noise samples of the certificate, for each state by itself",
        note=notes.get(mode, ""),
    )


def top_two(votes: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Largest count, second largest count and the (first) action with the largest, along axis 1."""
    winner = votes.argmax(axis=1)
    k1 = _pick(votes, winner)
    rest = votes.copy()
    np.put_along_axis(rest, winner[:, None], -1, axis=1)
    return k1, rest.max(axis=1), winner


def _pick(votes: IntArray, action: IntArray) -> IntArray:
    return np.take_along_axis(votes, action[:, None], axis=1)[:, 0]


def _cp_by_count(k: IntArray, n: IntArray, alpha: float, upper: bool = False) -> FloatArray:
    """Clopper-Pearson at each (k, n), computed once for every different pair."""
    code, inverse = by_unique(k * (int(n.max()) + 1) + n)
    different_k, different_n = np.divmod(code, int(n.max()) + 1)
    bound = cp_upper if upper else cp_lower
    return np.asarray(bound(different_k, different_n, alpha)[inverse], dtype=np.float64)


def _shares(split: tuple[float, ...], count: int, alpha: float) -> tuple[float, ...]:
    if len(split) != count or min(split) <= 0.0 or sum(split) > 1.0 + 1e-9:
        raise UserError(
            f"this mode splits alpha in {count} positive shares that sum to at most 1, not {split}."
        )
    return tuple(share * alpha for share in split)


def _checked_counts(counts: npt.ArrayLike) -> IntArray:
    raw = np.atleast_2d(np.asarray(counts))
    if raw.ndim != 2 or raw.shape[1] < 2:
        raise UserError(
            f"counts of shape {np.shape(counts)}: a radius needs (states, actions) with at least two actions."
        )
    if raw.dtype.kind == "f":
        if raw.dtype.itemsize < 8 and bool((np.abs(raw) >= 2**24).any()):
            raise UserError("counts of 2^24 and more in float32 have lost votes: count in integers.")
        if not bool(np.isfinite(raw).all()) or bool((raw != np.round(raw)).any()):
            raise UserError("counts must be whole numbers: pass votes, not frequencies.")
    if bool((raw < 0).any()):
        raise UserError("counts must not be negative: check how the votes were counted.")
    return raw.astype(np.int64)


def _fixed_action(
    votes: IntArray, selection_counts: npt.ArrayLike | None, action: npt.ArrayLike | None
) -> IntArray | None:
    if selection_counts is not None and action is not None:
        raise UserError("pass selection_counts or action, not both.")
    if selection_counts is not None:
        return np.asarray(_checked_counts(selection_counts).argmax(axis=1), dtype=np.int64)
    if action is None:
        return None
    fixed = np.broadcast_to(np.asarray(action, dtype=np.int64), (votes.shape[0],))
    if bool((fixed < 0).any()) or bool((fixed >= votes.shape[1]).any()):
        raise UserError(f"action must be between 0 and {votes.shape[1] - 1}.")
    return fixed


# --- the agent that really acts -------------------------------------------------------------------


def vote_level(samples: int, eta: float) -> float:
    """pi_eta: an action with probability at least pi_eta wins more than half of m votes w.p. >= 1 - eta."""
    if samples < 1:
        raise UserError("the deployed agent votes with at least one sample.")
    return float(cp_upper(samples // 2, samples, check_alpha(eta, "eta")))


@dataclass(frozen=True)
class DeployedRadiusResult:
    """Reliability radii of the agent that votes with finitely many samples."""

    radius: FloatArray
    """(S,) r_eta, 0 where the ideal certificate is too short to cover the vote's own randomness."""
    action: IntArray
    """(S,) the action it takes with probability >= 1 - eta; -1 where there is no statement."""
    level: float
    """pi_eta, the probability an action needs to win the vote reliably."""
    samples: int
    """Noise samples of the deployed vote."""
    eta: float
    """Failure probability of one deployed vote."""
    claim: Claim
    """What is claimed of each state."""

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a state."""
        return [
            {"step": i, "radius": float(r), "action": int(a)}
            for i, (r, a) in enumerate(zip(self.radius, self.action, strict=True))
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON data."""
        data: dict[str, Any] = plain(self)
        return data


def deployed_radius(result: RadiusResult, samples: int, eta: float = 0.001) -> DeployedRadiusResult:
    """r_eta = sigma (z(p_lower) - z(pi_eta)), the reliability radius of the m-vote agent.

    Guarantee: with probability >= 1 - alpha over the certificate's samples, for every
    ||Delta||_2 <= r_eta the deployed agent, voting with m fresh samples at s + Delta, takes `action` with
    probability >= 1 - eta (the adversary does not see those samples).
    """
    level = vote_level(samples, eta)
    pl = result.p_lower
    raw = np.where(result.certified, result.sigma * (special.ndtri(pl) - special.ndtri(level)), -np.inf)
    certified = raw >= 0.0
    claim = Claim(
        text=(
            f"under every perturbation of the observation up to the radius the deployed agent takes this "
            f"action with probability at least {1.0 - eta:g} at each vote"
        ),
        agent=deployed(samples),
        adversary="static: any perturbation of this observation chosen before the vote's noise is drawn",
        norm="l2",
        units=UNITS,
        confidence=result.claim.confidence,
        random="the noise samples of the certificate; the vote's own samples are inside the statement",
        valid=result.claim.valid and result.mode != "paper",
        note="" if result.mode != "paper" else "p_lower from the published Hoeffding bound",
    )
    return DeployedRadiusResult(
        radius=np.where(certified, raw, 0.0),
        action=np.where(certified, result.action, ABSTAIN).astype(np.int64),
        level=level,
        samples=samples,
        eta=eta,
        claim=claim,
    )


# --- what is reachable ----------------------------------------------------------------------------


def largest_radius(samples: int, sigma: float, alpha: float, mode: str = "majority") -> float:
    """The radius of a unanimous vote: no state can be certified further with this many samples."""
    unanimous = np.array([[samples, 0]])
    picked = {"action": 0} if mode in ("cohen", "anytime") else {}
    return float(radius(unanimous, sigma, alpha, mode, **picked).radius[0])  # type: ignore[arg-type]


def samples_needed(target: float, sigma: float, alpha: float, mode: str = "majority") -> int:
    """The fewest samples with which a unanimous vote certifies `target`."""
    check_sigma(sigma)

    def enough(samples: int) -> bool:
        reached = largest_radius(samples, sigma, alpha, mode)
        return reached >= target and reached > 0.0

    needed = fewest(enough)
    if needed is None:
        raise UserError(f"radius {target} at sigma {sigma} is out of reach of any number of samples.")
    return needed


def refuse_hopeless(
    samples: int, sigma: float, alpha: float, mode: str = "majority", target: float = 0.0
) -> None:
    """Refuse, before any sampling, a certificate that even a unanimous vote cannot give."""
    if samples < 1:
        raise UserError("a certificate needs at least one noise sample.")
    reach = largest_radius(samples, sigma, alpha, mode)
    if reach <= 0.0 or reach < target:
        needed = samples_needed(target, sigma, alpha, mode)
        raise UserError(
            f"{samples} samples can never certify "
            + (f"radius {target:g}" if target > 0.0 else "anything")
            + f" at alpha = {alpha:g} ({mode} mode): the largest certificate reachable is {reach:.4g}. "
            f"Use at least {needed} samples or a larger alpha."
        )
