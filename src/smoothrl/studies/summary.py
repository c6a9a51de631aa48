"""From the rows of single agents to the table of a study: pools summarised, the paper's numbers beside."""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from smoothrl import statistics
from smoothrl.results import ResultRow, paper_environment, paper_value

BOUNDS = ("reward_lower_bound",)
"""Metrics that are bounds, not means of what was seen: no bootstrap over their episodes."""


@dataclass(frozen=True)
class SummaryRow:
    """One number of a study: a pool (or the selected agent) under one evaluation."""

    environment: str
    agent: str
    metric: str
    epsilon: float | None
    norm: str
    sigma: float | None
    samples: int | None
    protocol: str
    agents: int
    """Agents behind the number."""
    episodes: int
    """Episodes in all."""
    mean: float
    """Mean over agents of the mean over episodes; a bound's median over agents."""
    low: float | None
    high: float | None
    level: float | None
    iqm: float | None
    """Interquartile mean over the agents' means."""
    median: float
    """Median over the agents' values, which is what the paper reports."""
    selected: float | None
    """Value of the selected agent."""
    paper: float | None
    """The published number."""
    paper_std: float | None
    same_environment: bool | None
    """Whether ours is the paper's environment, physics included."""
    units: str
    wall_time: float
    """Seconds in all."""
    note: str


SUMMARY_COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(SummaryRow))
Key = tuple[str, str, str, float, str, float, int, str]


def key_of(row: ResultRow) -> Key:
    """What makes two rows answers to one question."""
    return (
        row.environment,
        row.agent,
        row.metric,
        row.epsilon or 0.0,
        row.norm,
        row.sigma or 0.0,
        row.samples or 0,
        row.protocol,
    )


def summarise(rows: Iterable[ResultRow], selected: Iterable[str] = (), seed: int = 0) -> list[SummaryRow]:
    """One row for each question; `selected` holds the digests of selected agents."""
    groups: dict[Key, list[ResultRow]] = {}
    for row in rows:
        groups.setdefault(key_of(row), []).append(row)
    chosen = set(selected)
    return [_summary(members, chosen, seed) for members in groups.values()]


def _summary(rows: list[ResultRow], selected: set[str], seed: int) -> SummaryRow:
    unique = list({(r.agent_hash, r.agent_seed): r for r in rows}.values())
    first, means = unique[0], [r.mean for r in unique]
    chosen = [r.mean for r in unique if r.agent_hash in selected] if len(unique) > 1 else means
    estimate = _estimate(unique, seed)
    published, place = paper_value(first), paper_environment(first.environment)
    return SummaryRow(
        environment=first.environment,
        agent=first.agent,
        metric=first.metric,
        epsilon=first.epsilon,
        norm=first.norm,
        sigma=first.sigma,
        samples=first.samples,
        protocol=first.protocol,
        agents=len(unique),
        episodes=sum(r.episodes or 0 for r in unique),
        mean=float(np.mean(means)),
        low=estimate[0],
        high=estimate[1],
        level=estimate[2],
        iqm=statistics.iqm(means),
        median=float(np.median(means)),
        selected=chosen[0] if chosen else None,
        paper=published.mean if published else None,
        paper_std=published.std if published else None,
        same_environment=place[1] if place else None,
        units=first.units,
        wall_time=sum(r.wall_time or 0.0 for r in unique),
        note="; ".join(dict.fromkeys(r.note for r in unique if r.note)),
    )


def _estimate(rows: Sequence[ResultRow], seed: int) -> tuple[float | None, float | None, float | None]:
    """Hierarchical interval where there are episodes; a single row keeps its own."""
    if len(rows) == 1 and rows[0].low is not None:
        return rows[0].low, rows[0].high, rows[0].level
    bound = rows[0].metric in BOUNDS
    groups = [[r.mean] if bound or not r.returns else list(r.returns) for r in rows]
    if len(groups) == 1 and len(groups[0]) == 1:
        return None, None, None
    generator = np.random.default_rng([seed, zlib.crc32(repr(key_of(rows[0])).encode())])
    estimate = statistics.mean_estimate(groups, generator)
    return estimate.low, estimate.high, estimate.level


def summary_csv(rows: Iterable[SummaryRow]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(SUMMARY_COLUMNS)
    for row in rows:
        values = [getattr(row, name) for name in SUMMARY_COLUMNS]
        writer.writerow(["" if v is None else repr(v) if isinstance(v, float) else v for v in values])
    return stream.getvalue()
