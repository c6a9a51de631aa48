"""Honest summaries of episode returns: seeds above episodes, every interval from an explicit generator.

The data of one method is a list of groups: one array of episode returns for each training seed. The unit
that varies between laboratories is the seed, so a bootstrap draws seeds first and episodes within them
second. Percentile intervals are too narrow with few units; `Interval` asks for the expanded percentile
(alpha' = 2 Phi(-t_{n-1, 1-alpha/2} sqrt(n / (n-1)))), whose coverage a test measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from smoothrl.errors import UserError

Floats = npt.NDArray[np.float64]
Groups = Sequence[npt.ArrayLike]
"""One array of episode returns for each seed; the arrays may differ in length."""

RESAMPLES = 4000
BLOCK = 1 << 21
"""At most this many numbers are drawn at once: memory does not grow with the number of resamples."""


@dataclass(frozen=True)
class Estimate:
    """A statistic with its interval."""

    value: float
    low: float
    high: float
    level: float
    """Nominal coverage, 0.95 unless asked otherwise."""
    seeds: int
    """Top-level units the interval speaks about; with one seed it speaks about that agent's episodes only."""
    episodes: int
    """Episodes in all."""

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def iqm(values: npt.ArrayLike) -> float:
    """Interquartile mean: the mean after floor(n/4) values are cut at either end."""
    return float(iqm_rows(_flat(values)[None])[0])


def iqm_rows(rows: Floats) -> Floats:
    """Interquartile mean of each row of (r, n)."""
    cut = rows.shape[1] // 4
    if cut == 0:
        return np.asarray(rows.mean(axis=1), dtype=np.float64)
    part = np.partition(rows, (cut, rows.shape[1] - cut - 1), axis=1)
    return np.asarray(part[:, cut : rows.shape[1] - cut].mean(axis=1), dtype=np.float64)


def mean_estimate(
    groups: Groups,
    generator: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Mean over seeds of the mean over episodes, each seed with equal weight, with its interval."""
    arrays = _groups(groups)
    value = float(np.mean([a.mean() for a in arrays]))
    draws = bootstrap_means(arrays, generator, resamples=resamples)
    return _estimate(value, draws, arrays, level)


def iqm_estimate(
    groups: Groups,
    generator: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Interquartile mean over the seeds' means, with its interval (over episodes where there is one seed)."""
    return statistic_estimate(groups, iqm_rows, generator, level=level, resamples=resamples)


def median_estimate(
    groups: Groups,
    generator: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Median over the seeds' means, with its interval (over episodes where there is one seed)."""
    return statistic_estimate(groups, _median_rows, generator, level=level, resamples=resamples)


def statistic_estimate(
    groups: Groups,
    statistic: Callable[[Floats], Floats],
    generator: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Any statistic of the seeds' means: `statistic` maps rows (r, seeds) to (r,) values."""
    arrays = _groups(groups)
    if len(arrays) == 1:
        units = arrays[0]
        index = generator.integers(0, units.size, (resamples, units.size))
        draws = statistic(units[index])
    else:
        units = np.array([a.mean() for a in arrays])
        draws = statistic(_bootstrap_seed_means(arrays, generator, resamples))
    return _estimate(float(statistic(units[None])[0]), draws, arrays, level)


def bootstrap_means(groups: Groups, generator: np.random.Generator, *, resamples: int = RESAMPLES) -> Floats:
    """Hierarchical bootstrap draws of the mean: seeds with replacement, then episodes within each."""
    return np.asarray(
        _bootstrap_seed_means(_groups(groups), generator, resamples).mean(axis=1), dtype=np.float64
    )


def paired_difference(
    first: Mapping[int, npt.ArrayLike],
    second: Mapping[int, npt.ArrayLike],
    generator: np.random.Generator,
    *,
    paired_episodes: bool = False,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Mean difference `first - second` over the seeds both have.

    With `paired_episodes` episode i of both was played with the same seed, and the differences of the
    pairs are resampled; otherwise the episodes of the two are drawn independently within the common seed.
    """
    common = sorted(set(first) & set(second))
    if not common:
        raise UserError("the two methods have no seed in common, so no paired difference exists")
    a, b = _groups([first[s] for s in common]), _groups([second[s] for s in common])
    if paired_episodes:
        for seed, x, y in zip(common, a, b, strict=True):
            if x.size != y.size:
                raise UserError(
                    f"seed {seed} has {x.size} and {y.size} episodes; paired episodes need as many in both"
                )
        return mean_estimate(
            [x - y for x, y in zip(a, b, strict=True)], generator, level=level, resamples=resamples
        )
    chosen = _seed_draws(len(common), generator, resamples)
    draws = _episode_means(a, chosen, generator) - _episode_means(b, chosen, generator)
    value = float(np.mean([x.mean() - y.mean() for x, y in zip(a, b, strict=True)]))
    return _estimate(value, draws.mean(axis=1), a, level)


def improvement(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """P(X > Y) + P(X = Y) / 2 over all pairs (Mann-Whitney U / (n m))."""
    return float(_improvement_rows(_flat(x)[None], _flat(y)[None])[0])


def probability_of_improvement(
    first: Sequence[npt.ArrayLike],
    second: Sequence[npt.ArrayLike],
    generator: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Chance that a run of `first` beats a run of `second` on the same task, averaged over tasks.

    Entry k of either holds one score for each run on task k; runs are resampled within each task.
    """
    if len(first) != len(second) or not first:
        raise UserError(f"{len(first)} and {len(second)} tasks: both methods need scores on the same tasks")
    a, b = _groups(first), _groups(second)
    draws = np.zeros(resamples)
    for x, y in zip(a, b, strict=True):
        xs = x[generator.integers(0, x.size, (resamples, x.size))]
        ys = y[generator.integers(0, y.size, (resamples, y.size))]
        draws += _improvement_rows(xs, ys)
    value = float(np.mean([improvement(x, y) for x, y in zip(a, b, strict=True)]))
    units = min(min(x.size for x in a), min(y.size for y in b))
    low, high = expanded_percentiles(draws / len(a), units, level)
    episodes = sum(x.size for x in a) + sum(y.size for y in b)
    return Estimate(value, max(0.0, min(low, value)), min(1.0, max(high, value)), level, units, episodes)


def performance_profile(groups: Groups, thresholds: npt.ArrayLike) -> Floats:
    """Share of the seeds' episodes above each threshold, every seed with equal weight."""
    tau = np.asarray(thresholds, dtype=np.float64)
    return np.asarray(
        np.mean([(a[:, None] > tau[None]).mean(axis=0) for a in _groups(groups)], axis=0), dtype=np.float64
    )


def expanded_percentiles(draws: npt.ArrayLike, units: int, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap draws, expanded for a small number of top-level units."""
    if not 0.0 < level < 1.0:
        raise UserError(f"a confidence level lies between 0 and 1, got {level}")
    tail = (1.0 - level) / 2.0
    if units > 1:
        factor = np.sqrt(units / (units - 1.0))
        tail = float(stats.norm.cdf(-stats.t.ppf(1.0 - tail, units - 1) * factor))
    low, high = np.quantile(np.asarray(draws, dtype=np.float64), [tail, 1.0 - tail])
    return float(low), float(high)


def _estimate(value: float, draws: Floats, arrays: list[Floats], level: float) -> Estimate:
    episodes = sum(a.size for a in arrays)
    units = len(arrays) if len(arrays) > 1 else episodes
    low, high = expanded_percentiles(draws, units, level)
    return Estimate(value, min(low, value), max(high, value), level, len(arrays), episodes)


def _bootstrap_seed_means(arrays: list[Floats], generator: np.random.Generator, resamples: int) -> Floats:
    """Bootstrap draws of the seeds' means, (resamples, seeds)."""
    return _episode_means(arrays, _seed_draws(len(arrays), generator, resamples), generator)


def _seed_draws(seeds: int, generator: np.random.Generator, resamples: int) -> npt.NDArray[np.int64]:
    return generator.integers(0, seeds, (resamples, seeds))


def _episode_means(
    arrays: list[Floats], chosen: npt.NDArray[np.int64], generator: np.random.Generator
) -> Floats:
    """For each chosen seed the mean of as many episodes as it has, drawn with replacement."""
    counts = np.array([a.size for a in arrays])
    longest = int(counts.max())
    table = np.zeros((len(arrays), longest))
    for row, values in zip(table, arrays, strict=True):
        row[: values.size] = values
    flat = chosen.ravel()
    out = np.empty(flat.size)
    step = max(1, BLOCK // longest)
    for start in range(0, flat.size, step):
        part = flat[start : start + step]
        n = counts[part][:, None]
        index = (generator.random((part.size, longest)) * n).astype(np.int64)
        drawn = np.where(np.arange(longest) < n, table[part[:, None], index], 0.0)
        out[start : start + step] = drawn.sum(axis=1) / n[:, 0]
    return out.reshape(chosen.shape)


def _improvement_rows(xs: Floats, ys: Floats) -> Floats:
    """Mann-Whitney statistic of every row pair: (r, n), (r, m) -> (r,)."""
    n, m = xs.shape[1], ys.shape[1]
    ranks = stats.rankdata(np.concatenate([xs, ys], axis=1), axis=1)[:, :n].sum(axis=1)
    return np.asarray((ranks - n * (n + 1) / 2.0) / (n * m), dtype=np.float64)


def _median_rows(rows: Floats) -> Floats:
    return np.asarray(np.median(rows, axis=1), dtype=np.float64)


def _flat(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise UserError("a statistic of no episodes does not exist; give at least one return")
    if not np.isfinite(array).all():
        raise UserError("returns must be finite numbers; one is NaN or infinite")
    return array


def _groups(groups: Groups) -> list[Floats]:
    if len(groups) == 0:
        raise UserError("a statistic of no seeds does not exist; give the returns of at least one")
    return [_flat(g) for g in groups]
