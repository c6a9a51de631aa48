"""Confidence bounds for one probability, one mean, one distribution: everything the certificates stand on.

All functions are one-sided, take arrays where that makes sense, and hold at every sample size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from smoothrl.certificates.claims import FloatArray, IntArray, check_alpha
from smoothrl.errors import UserError

JEFFREYS = (0.5, 0.5)


def hoeffding_delta(samples: int, alpha: float) -> float:
    """Hoeffding: P(mean of m [0, 1]-valued samples exceeds its expectation by Delta) <= alpha."""
    return math.sqrt(math.log(1.0 / alpha) / (2.0 * samples))


def _counts(k: npt.ArrayLike, n: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    successes, trials = np.broadcast_arrays(np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64))
    if successes.size and (
        bool((trials < 1).any()) or bool((successes < 0).any()) or bool((successes > trials).any())
    ):
        raise UserError("counts must satisfy 0 <= k <= n with n >= 1: check how the votes were counted.")
    return successes, trials


def cp_lower(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> FloatArray:
    """Clopper-Pearson: for k ~ Bin(n, p), P(cp_lower(k, n, alpha) > p) <= alpha for every p."""
    successes, trials = _counts(k, n)
    inverse = special.betaincinv(np.maximum(successes, 1.0), trials - successes + 1.0, alpha)
    return np.asarray(np.where(successes == 0.0, 0.0, inverse), dtype=np.float64)


def cp_upper(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> FloatArray:
    """Clopper-Pearson: for k ~ Bin(n, p), P(cp_upper(k, n, alpha) < p) <= alpha for every p."""
    successes, trials = _counts(k, n)
    inverse = special.betainccinv(successes + 1.0, np.maximum(trials - successes, 1.0), alpha)
    return np.asarray(np.where(successes == trials, 1.0, inverse), dtype=np.float64)


def binomial_tail(k: npt.ArrayLike, n: npt.ArrayLike, p: npt.ArrayLike) -> FloatArray:
    """P(Bin(n, p) >= k), accurate in both tails."""
    successes, trials = np.broadcast_arrays(np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64))
    inside = special.betainc(np.maximum(successes, 1.0), np.maximum(trials - successes + 1.0, 1.0), p)
    return np.asarray(
        np.where(successes <= 0.0, 1.0, np.where(successes > trials, 0.0, inside)), dtype=np.float64
    )


def rank_pvalue(k1: npt.ArrayLike, k2: npt.ArrayLike) -> FloatArray:
    """Rank verification (Hung and Fithian 2019): p-value of "the leading category is the unique best".

    For multinomial counts with leader k1 and runner-up k2, rejecting when the value is <= alpha names a
    category that is not the unique most probable one with probability <= alpha, for any number of
    categories and without adjustment.
    """
    first, second = np.broadcast_arrays(np.asarray(k1, dtype=np.float64), np.asarray(k2, dtype=np.float64))
    return np.minimum(1.0, 2.0 * binomial_tail(first, first + second, 0.5))


# --- confidence sequences -------------------------------------------------------------------------


def log_e_value(
    k: npt.ArrayLike, n: npt.ArrayLike, p0: npt.ArrayLike, prior: tuple[float, float] = JEFFREYS
) -> FloatArray:
    """log E_n(p0), evidence against p <= p0 after k successes in n trials.

    E_n mixes the likelihood ratio p'/p0 over the Beta(prior) restricted to p' > p0. It is a test
    supermartingale under every p <= p0, so P(E_n >= 1/alpha for some n) <= alpha (Ville): one may look
    after every sample.
    """
    a, b = prior
    k_arr, n_arr, p_arr = np.broadcast_arrays(
        np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64), np.asarray(p0, dtype=np.float64)
    )
    posterior = special.betaln(a + k_arr, b + n_arr - k_arr) + _log_upper_beta(
        a + k_arr, b + n_arr - k_arr, p_arr
    )
    normaliser = special.betaln(a, b) + _log_upper_beta(np.full_like(p_arr, a), np.full_like(p_arr, b), p_arr)
    likelihood = special.xlogy(k_arr, p_arr) + special.xlog1py(n_arr - k_arr, -p_arr)
    return np.asarray(posterior - normaliser - likelihood, dtype=np.float64)


def _log_upper_beta(a: FloatArray, b: FloatArray, x: FloatArray) -> FloatArray:
    """log P(Beta(a, b) > x), finite far beyond where the probability itself underflows."""
    tail = np.asarray(special.betaincc(a, b, x), dtype=np.float64)
    far = tail <= 1e-290
    result = np.array(np.log(np.where(far, 1.0, tail)))
    if bool(far.any()):
        result[far] = _log_far_beta(a[far], b[far], x[far])
    return np.asarray(result, dtype=np.float64)


def _log_far_beta(a: FloatArray, b: FloatArray, x: FloatArray) -> FloatArray:
    """y^b x^a / (b B(a, b)) sum_j prod_{i<j} y (a+b+i)/(b+1+i), y = 1 - x: all ratios are below 1."""
    y = 1.0 - x
    total = term = np.ones_like(x)
    j = 0
    while bool((term > 1e-17 * total).any()):
        term = term * y * (a + b + j) / (b + 1.0 + j)
        total, j = total + term, j + 1
    front = special.xlogy(b, y) + special.xlogy(a, x) - np.log(b) - special.betaln(a, b)
    return np.asarray(front + np.log(total), dtype=np.float64)


def cs_lower(
    k: npt.ArrayLike, n: npt.ArrayLike, alpha: float, prior: tuple[float, float] = JEFFREYS
) -> FloatArray:
    """Lower confidence sequence: P(cs_lower(k_n, n, alpha) > p for some n) <= alpha.

    It is sup{p0: E_n(p0) >= 1/alpha}. For the Jeffreys prior and alpha <= 0.49 the set is an interval
    starting at 0: where E >= 1/alpha the score exceeds the hazard of the prior, so E decreases in p0
    (derivation in docs/certificates/anytime.md), and bisection finds its end.
    """
    k_arr, n_arr = _counts(k, n)
    low = np.zeros(k_arr.shape)
    high = k_arr / n_arr
    level = math.log(1.0 / alpha)
    for _ in range(45):
        middle = 0.5 * (low + high)
        inside = log_e_value(k_arr, n_arr, np.clip(middle, 1e-300, 1.0 - 1e-16), prior) >= level
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.asarray(np.where(k_arr == 0, 0.0, low), dtype=np.float64)


# --- means of bounded variables -------------------------------------------------------------------


def betting_lower(samples: npt.ArrayLike, alpha: float, truncation: float = 0.5) -> FloatArray:
    """Lower bound for the mean of iid [0, 1] variables along axis 0 by betting (Waudby-Smith and Ramdas).

    The capital prod_i (1 + lambda_i (x_i - m)) with predictable stakes lambda_i in [0, truncation/m] is a
    test supermartingale when the mean is <= m, and it decreases in m, so the largest m it refutes at
    1/alpha (at any time up to n) is below the mean with probability >= 1 - alpha.
    """
    x = np.asarray(samples, dtype=np.float64)
    stakes = _predictable_stakes(x, alpha)
    low, high = np.zeros(x.shape[1:]), np.clip(x.mean(axis=0), 0.0, 1.0)
    level = math.log(1.0 / alpha)
    for _ in range(40):
        middle = 0.5 * (low + high)
        stake = np.minimum(stakes, truncation / np.maximum(middle, 1e-12))
        capital = np.cumsum(np.log1p(stake * (x - middle)), axis=0).max(axis=0)
        refuted = capital >= level
        low, high = np.where(refuted, middle, low), np.where(refuted, high, middle)
    return np.asarray(low, dtype=np.float64)


def _predictable_stakes(x: FloatArray, alpha: float) -> FloatArray:
    """lambda_i = sqrt(2 ln(1/alpha) / (n v_{i-1})), v the regularised running variance before sample i."""
    n = x.shape[0]
    index = np.arange(1, n + 1, dtype=np.float64).reshape((n,) + (1,) * (x.ndim - 1))
    mean = (0.5 + np.cumsum(x, axis=0)) / (index + 1.0)
    variance = (0.25 + np.cumsum((x - mean) ** 2, axis=0)) / (index + 1.0)
    before = np.concatenate([np.full_like(variance[:1], 0.25), variance[:-1]])
    return np.asarray(np.sqrt(2.0 * math.log(1.0 / alpha) / (n * before)), dtype=np.float64)


def empirical_bernstein_lower(samples: npt.ArrayLike, alpha: float) -> FloatArray:
    """Maurer and Pontil (2009): mean - sqrt(2 V ln(2/alpha)/n) - 7 ln(2/alpha)/(3(n-1)), along axis 0."""
    x = np.asarray(samples, dtype=np.float64)
    n = x.shape[0]
    if n < 2:
        return np.zeros(x.shape[1:])
    log_term = math.log(2.0 / alpha)
    slack = np.sqrt(2.0 * x.var(axis=0, ddof=1) * log_term / n) + 7.0 * log_term / (3.0 * (n - 1))
    return np.asarray(np.maximum(0.0, x.mean(axis=0) - slack), dtype=np.float64)


# --- order statistics and bands -------------------------------------------------------------------


def lower_index(n: int, p: float, alpha: float) -> int | None:
    """0-based index i with P(x_(i) > q_p) <= alpha for n iid samples sorted upwards, the largest such i.

    q_p = sup{r: P(X <= r) <= p}. Atoms only help: x_(i) > q_p needs at most i samples <= q_p, and
    P(X <= q_p) >= p. None: no sample is low enough, the bound is -inf.
    """
    if p <= 0.0 or n < 1:
        return None
    if p >= 1.0:
        return n - 1
    rank = int(stats.binom.ppf(alpha, n, p))
    while rank > 0 and stats.binom.cdf(rank - 1, n, p) > alpha:
        rank -= 1
    while rank < n and stats.binom.cdf(rank, n, p) <= alpha:
        rank += 1
    return rank - 1 if rank >= 1 else None


def upper_index(n: int, p: float, alpha: float, complement: float | None = None) -> int | None:
    """0-based index i with P(x_(i) < q_p) <= alpha, the smallest such i; None: the bound is +inf.

    `complement` is 1 - p where the caller knows it more accurately.
    """
    mirrored = lower_index(n, 1.0 - p if complement is None else complement, alpha)
    return None if mirrored is None else n - 1 - mirrored


def min_samples(p: float, alpha: float) -> int:
    """The fewest samples for which `lower_index(n, p, alpha)` exists: (1-p)^n <= alpha."""
    if p <= 0.0:
        raise UserError("no number of samples bounds a quantile at level 0: lower the budget or raise sigma.")
    if p >= 1.0:
        return 1
    return max(1, math.ceil(math.log(alpha) / math.log1p(-p) - 1e-9))


def fewest(enough: Callable[[int], bool], limit: int = 2**40) -> int | None:
    """The least n >= 1 with enough(n), for a condition that more samples never undo; None beyond `limit`."""
    low, high = 0, 1
    while not enough(high):
        low, high = high, 2 * high
        if high > limit:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def noncrossing(boundary: npt.ArrayLike) -> float:
    """P(U_(i) <= b_i for all i) for n uniform order statistics and an increasing boundary b.

    The count of points below b_i must reach i. Points are a Poisson process of rate n conditioned on n
    points: propagate the law of the count from b_i to b_{i+1}, dropping what has fallen below the line
    (Moscovich and Nadler 2017; states and kernel entries below 1e-25 are dropped, which can only lower
    the result).
    """
    b = np.minimum(np.asarray(boundary, dtype=np.float64), 1.0)
    n = b.shape[0]
    first, law, position = 0, np.ones(1), 0.0
    for i in range(n):
        law = np.convolve(law, _poisson_kernel(n * (b[i] - position)))[: n + 1 - first]
        position = float(b[i])
        if first < i + 1:
            law, first = law[i + 1 - first :], i + 1
        keep = np.flatnonzero(law > 1e-25)
        if keep.size == 0:
            return 0.0
        law = law[: keep[-1] + 1]
    states = first + np.arange(law.shape[0])
    rest = n * (1.0 - position)
    finish = special.xlogy(n - states, rest) - rest - special.gammaln(n - states + 1.0)
    total = special.xlogy(n, n) - n - special.gammaln(n + 1.0)
    return float(np.clip((law * np.exp(finish - total)).sum(), 0.0, 1.0))


def _poisson_kernel(mean: float) -> FloatArray:
    size = int(mean + 12.0 * math.sqrt(mean) + 25.0)
    steps = np.arange(size, dtype=np.float64)
    return np.asarray(np.exp(special.xlogy(steps, mean) - mean - special.gammaln(steps + 1.0)))


def berk_jones_boundary(n: int, gamma: float) -> FloatArray:
    """b_i = BetaInv(1 - gamma; i, n - i + 1): each U_(i) exceeds its b_i with probability gamma."""
    ranks = np.arange(1, n + 1, dtype=np.float64)
    return np.asarray(special.betainccinv(ranks, n - ranks + 1.0, gamma), dtype=np.float64)


@lru_cache(maxsize=256)
def berk_jones_gamma(n: int, alpha: float) -> float:
    """The per-rank level gamma at which P(U_(i) <= b_i for all i) = 1 - alpha."""
    check_alpha(alpha)
    if n < 1:
        raise UserError("a Berk-Jones band needs at least one sample.")
    if n == 1:
        return alpha

    def excess(log_gamma: float) -> float:
        return noncrossing(berk_jones_boundary(n, math.exp(log_gamma))) - (1.0 - alpha)

    root = optimize.brentq(excess, math.log(alpha / n), math.log(alpha), xtol=1e-10, rtol=1e-12)
    return math.exp(float(root))


@lru_cache(maxsize=64)
def _band(kind: str, n: int, alpha: float) -> FloatArray:
    ranks = np.arange(1, n + 1, dtype=np.float64)
    if kind == "dkw":
        levels = np.minimum(1.0, (ranks - 1.0) / n + hoeffding_delta(n, alpha))
    else:
        levels = berk_jones_boundary(n, berk_jones_gamma(n, alpha))
    levels.setflags(write=False)
    return levels


def band_levels(kind: str, n: int, alpha: float) -> FloatArray:
    """Levels b_1 <= ... <= b_n with P(for all i: P(X < x_(i)) <= b_i) >= 1 - alpha, sorted samples x.

    `dkw`: b_i = (i-1)/n + sqrt(ln(1/alpha)/2n), Massart's one-sided constant, for alpha <= 1/2.
    `berk-jones`: b_i as in `berk_jones_boundary`, exact for continuous laws, conservative with atoms;
    much tighter in the left tail, which is where a budget looks.
    """
    if kind not in ("dkw", "berk-jones"):
        raise UserError(f"unknown band {kind!r}: choose dkw or berk-jones.")
    return _band(kind, int(n), check_alpha(alpha))


def band_index(kind: str, n: int, p: float, alpha: float) -> int | None:
    """0-based index i with x_(i) <= q_p, for all p at once with probability >= 1 - alpha; None: -inf."""
    count = int(np.searchsorted(band_levels(kind, n, alpha), p, side="right"))
    return count - 1 if count >= 1 else None


def binomial_quantile(level: float, n: int, p: float) -> int:
    """The smallest v with P(Bin(n, p) <= v) >= level."""
    return int(stats.binom.ppf(level, n, p))


def by_unique(values: IntArray) -> tuple[IntArray, IntArray]:
    """Unique counts and where each came from: a whole episode has few different counts."""
    unique, inverse = np.unique(values, return_inverse=True)
    return unique.astype(np.int64), inverse.reshape(values.shape).astype(np.int64)
