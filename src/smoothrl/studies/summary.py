"""From the rows of single agents to the table of a study: pools summarised, the paper's numbers beside."""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from smoothrl import statistics
from smoothrl.results import ResultRow, paper_environment, paper_rows, paper_value
from smoothrl.studies.declare import METRICS

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


RETURNS = ("clean", *(m.name for m in METRICS.values() if m.kind in ("attack", "suite")))
DETAILED = {"ppo": "ppo_reward", "dqn": "dqn_reward"}
"""The paper's tables of returns that its tables of averages are made of."""


def averages(rows: Sequence[SummaryRow]) -> list[SummaryRow]:
    """The paper's summary tables: normalised returns averaged over environments, ours and the published.

    In each environment 1 is the best return of the table, clean or attacked, and 0 is no return, or the worst
    one where returns are negative. A method counts where it was measured in every environment of its family.
    """
    groups: dict[tuple[str, str], list[SummaryRow]] = {}
    for row in rows:
        if row.metric in RETURNS:
            groups.setdefault(("dqn" if "dqn" in row.agent else "ppo", row.protocol), []).append(row)
    return [line for (family, _), group in groups.items() for line in _averages(family, group)]


def _averages(family: str, rows: list[SummaryRow]) -> list[SummaryRow]:
    places = list(dict.fromkeys(r.environment for r in rows))
    if len(places) < 2:
        return []
    ours = {p: _reach([r.mean for r in rows if r.environment == p]) for p in places}
    theirs = {p: _reach(_published_returns(p, DETAILED[family])) for p in places}
    columns: dict[tuple[str, str, float], list[SummaryRow]] = {}
    for row in rows:
        columns.setdefault((row.agent, row.metric, row.epsilon or 0.0), []).append(row)
    out = []
    for members in columns.values():
        if sorted(r.environment for r in members) != sorted(places):
            continue
        shares = [_share(r.mean, ours[r.environment]) for r in members]
        published = [_share(r.paper, theirs[r.environment]) for r in members if r.paper is not None]
        whole = len(published) == len(members)
        out.append(
            replace(
                members[0],
                environment="average",
                sigma=members[0].sigma if len({r.sigma for r in members}) == 1 else None,
                agents=min(r.agents for r in members),
                episodes=sum(r.episodes for r in members),
                mean=float(np.mean(shares)),
                median=float(np.mean([_share(r.median, ours[r.environment]) for r in members])),
                low=None,
                high=None,
                level=None,
                iqm=None,
                selected=None,
                paper=float(np.mean(published)) if whole else None,
                paper_std=None,
                same_environment=all(r.same_environment for r in members) if whole else None,
                wall_time=sum(r.wall_time for r in members),
                note="normalised return, average of " + ", ".join(r.environment for r in members),
            )
        )
    return out + [worst for agent in dict.fromkeys(r.agent for r in out) for worst in _worst(agent, out)]


def _worst(agent: str, averaged: Sequence[SummaryRow]) -> list[SummaryRow]:
    """The least average over the attacks at the largest budget, where there are several."""
    budget = max((r.epsilon or 0.0 for r in averaged), default=0.0)
    under = [r for r in averaged if r.agent == agent and r.epsilon == budget and r.metric != "clean"]
    if len(under) < 2:
        return []
    published = [r.paper for r in under if r.paper is not None]
    paper = min(published) if len(published) == len(under) else None
    return [replace(min(under, key=lambda r: r.mean), metric="worst", paper=paper)]


def _published_returns(environment: str, table: str) -> list[float]:
    place = paper_environment(environment)
    return [p.mean for p in paper_rows() if place and (p.environment, p.table) == (place[0], table)]


def _reach(returns: Sequence[float]) -> tuple[float, float]:
    return min([0.0, *returns]), max([0.0, *returns])


def _share(value: float, reach: tuple[float, float]) -> float:
    low, high = reach
    return (value - low) / (high - low) if high > low else 0.0


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
