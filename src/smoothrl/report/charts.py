"""Which pictures a report has, made from its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from smoothrl.report import look, svg
from smoothrl.report.data import Curve, ReportData
from smoothrl.results import ResultRow, paper_value
from smoothrl.studies.summary import SummaryRow

T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One picture with its words."""

    title: str
    caption: str
    picture: str
    """SVG text."""
    keys: str = ""
    """Legend, in HTML."""
    wide: bool = False
    """Takes a whole row; scrolls on a phone."""


@dataclass(frozen=True)
class Headline:
    """Clean and worst return of one method in one environment."""

    agent: str
    environment: str
    protocol: str
    clean: SummaryRow | None
    worst: SummaryRow | None
    paper_clean: float | None
    paper_worst: float | None


def hues(data: ReportData) -> look.Palette:
    """One palette for the whole page."""
    return look.palette([r.agent for r in data.summary] + [c.agent for c in data.learning])


def headlines(data: ReportData) -> list[Headline]:
    """Clean and worst at the largest budget that attacks were tried at, for each method and place."""
    out = []
    for place, protocol in _questions(data):
        here = [r for r in data.summary if _belongs(r, place, protocol)]
        attacked = [r for r in here if r.metric in look.ATTACKS and r.epsilon]
        budget = max((r.epsilon or 0.0 for r in attacked), default=0.0)
        for agent in _unique(r.agent for r in here):
            clean = _first(r for r in here if r.agent == agent and r.metric == "clean")
            under = [r for r in attacked if r.agent == agent and r.epsilon == budget]
            worst = min(under, key=lambda r: (r.mean, r.metric == "suite")) if under else None
            if clean is None and worst is None:
                continue
            published = _published(under[0], budget, {r.metric for r in under}) if under else None
            out.append(
                Headline(agent, place, protocol, clean, worst, clean.paper if clean else None, published)
            )
    return out


def _questions(data: ReportData) -> list[tuple[str, str]]:
    """Places and protocols with a clean return."""
    found = []
    for row in data.summary:
        if row.metric == "clean":
            there = _unique(
                r.protocol for r in data.summary if r.environment == row.environment and r.protocol
            )
            found += [(row.environment, p) for p in ([row.protocol] if row.protocol or not there else there)]
    return _unique(found)


def _belongs(row: SummaryRow, place: str, protocol: str) -> bool:
    """A clean return of no protocol, as `smoothrl evaluate` writes it, belongs to every one."""
    free = row.metric == "clean" and not row.protocol
    return row.environment == place and (row.protocol == protocol or free)


def _published(h: SummaryRow, budget: float, attacks: set[str]) -> float | None:
    """The paper's worst return of this agent at this budget, over the attacks that were tried here too."""
    wanted = look.ATTACKS if "suite" in attacks else sorted(attacks)
    asked = ResultRow(h.environment, h.agent, "", 0.0, epsilon=budget, sigma=h.sigma)
    found = [paper_value(replace(asked, metric=metric)) for metric in wanted]
    return min((p.mean for p in found if p is not None), default=None)


def headline_figures(data: ReportData) -> list[Figure]:
    """A span chart for each environment and protocol."""
    found, hue = headlines(data), hues(data)
    figures = []
    for place, protocol in _unique((h.environment, h.protocol) for h in found):
        here = [h for h in found if (h.environment, h.protocol) == (place, protocol)]
        spans = [_span(h, hue) for h in here]
        if not any(s.worst is not None for s in spans) and len(spans) < 2:
            continue
        budget = next((h.worst.epsilon for h in here if h.worst), None)
        caption = "Full dot: clean. Ring: worst attack" + (f" at epsilon {budget:g}" if budget else "")
        if any(s.paper_clean is not None for s in spans):
            caption += ". Small rings above: the published numbers, worst over the same attacks"
        protocols = _unique(h.protocol for h in found)
        title = place + (f", protocol {protocol}" if len(protocols) > 1 else "")
        figures.append(
            Figure(title, caption + ". Thin lines: 95 % intervals.", svg.span_chart(spans, "return"))
        )
    return figures


def _span(h: Headline, hue: look.Palette) -> svg.Span:
    c, w = h.clean, h.worst
    return svg.Span(
        h.agent,
        hue(h.agent),
        c.mean if c else None,
        w.mean if w else None,
        c.low if c else None,
        c.high if c else None,
        w.low if w else None,
        w.high if w else None,
        h.paper_clean,
        h.paper_worst,
        look.metric_name(w.metric) if w else "",
    )


def trade_off(data: ReportData) -> list[Figure]:
    """The paper's first figure: normalised clean and worst return, averaged over environments."""
    found = headlines(data)
    figures = []
    for family, word in (("ppo", "PPO"), ("dqn", "DQN")):
        for protocol in _unique(h.protocol for h in found):
            mine = [
                h for h in found if h.protocol == protocol and f"{family}" in h.agent and h.clean and h.worst
            ]
            bars = _bars(mine, hues(data))
            if len(bars) > 1:
                places = ", ".join(_unique(h.environment for h in mine))
                caption = (
                    f"Clean (full) and worst (pale) return, as a share of the best clean return in {places}; "
                    "marks: the same of the published numbers, under the same attacks."
                )
                title = f"{word} agents: what robustness costs" + (
                    f" (protocol {protocol})" if len(_unique(h.protocol for h in found)) > 1 else ""
                )
                figures.append(
                    Figure(title, caption, svg.bar_chart(bars, "normalised return"), wide=len(bars) > 8)
                )
    return figures


def _bars(found: Sequence[Headline], hue: look.Palette) -> list[svg.Bar]:
    """Averages over the environments that all of these methods were measured in."""
    places = _unique(h.environment for h in found)
    agents = [a for a in _unique(h.agent for h in found) if sum(h.agent == a for h in found) == len(places)]
    whole = [h for h in found if h.agent in agents]
    ours = {p: _bounds([v for h in whole if h.environment == p for v in _values(h)]) for p in places}
    theirs = {p: _bounds([v for h in whole if h.environment == p for v in _paper(h)]) for p in places}
    bars = []
    for agent in sorted(agents, key=_group_order):
        mine = [h for h in whole if h.agent == agent]
        clean, worst = (
            float(np.mean([_share(_values(h)[i], ours[h.environment]) for h in mine])) for i in (0, 1)
        )
        published = [_paper(h) for h in mine]
        paper: list[float | None] = [None, None]
        if all(len(p) == 2 for p in published):
            paper = [
                float(
                    np.mean(
                        [_share(p[i], theirs[h.environment]) for h, p in zip(mine, published, strict=True)]
                    )
                )
                for i in (0, 1)
            ]
        bars.append(svg.Bar(agent, hue(agent), clean, worst, paper[0], paper[1]))
    return bars


def _group_order(agent: str) -> tuple[int, str]:
    return list(look.GROUPS).index(look.group(agent)), agent


def _values(h: Headline) -> tuple[float, ...]:
    assert h.clean is not None
    assert h.worst is not None
    return h.clean.mean, h.worst.mean


def _paper(h: Headline) -> tuple[float, ...]:
    if h.paper_clean is None or h.paper_worst is None:
        return ()
    return h.paper_clean, h.paper_worst


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """0 (or the lowest return where returns are negative) and the best return."""
    return (min(0.0, *values), max(values)) if values else (0.0, 1.0)


def _share(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return (value - low) / (high - low) if high > low else 0.0


def lower_bounds(data: ReportData) -> list[Figure]:
    """Certified returns over the budget, ours and the paper's."""
    return _by_place(
        data,
        lambda r: r.metric == "reward_lower_bound" and bool(r.epsilon),
        "l2 budget a step",
        "certified lower bound of the return",
        "No attack within the budget brings the median return of the one-draw agent below the line.",
    )


def robustness(data: ReportData) -> list[Figure]:
    """Return over epsilon, an attack a picture, starting from the clean return."""
    figures = []
    attacks = _unique(r.metric for r in data.summary if r.metric in look.ATTACKS and r.epsilon)
    for attack in attacks:
        budgets = {r.epsilon for r in data.summary if r.metric == attack}
        if len(budgets) < 2:
            continue
        figures += _by_place(
            data,
            lambda r, attack=attack: r.metric == attack and r.epsilon is not None,  # type: ignore[misc]
            "epsilon",
            f"return under {look.metric_name(attack)}",
            "Bands: 95 % intervals, seeds above episodes.",
            clean=True,
            about=f", {look.metric_name(attack)}",
        )
    return figures


def _by_place(
    data: ReportData,
    keep: Callable[[SummaryRow], bool],
    x_label: str,
    y_label: str,
    caption: str,
    *,
    clean: bool = False,
    about: str = "",
) -> list[Figure]:
    rows = [r for r in data.summary if keep(r)]
    several = len(_unique(r.protocol for r in rows)) > 1
    figures = []
    for place, protocol in _unique((r.environment, r.protocol) for r in rows):
        lines = {}
        for agent in _unique(r.agent for r in rows if (r.environment, r.protocol) == (place, protocol)):
            question = (place, protocol, agent)
            mine = [r for r in rows if (r.environment, r.protocol, r.agent) == question]
            start = [
                r
                for r in data.summary
                if clean and r.metric == "clean" and r.agent == agent and _belongs(r, place, protocol)
            ]
            lines[agent] = start[:1] + sorted(mine, key=lambda r: r.epsilon or 0.0)
        reach = [v for line in lines.values() for r in line for v in (r.mean, r.paper) if v is not None]
        for name, agents in _panels(list(lines)):
            title = place + about + (f", protocol {protocol}" if several else "")
            title += f": {name}" if name else ""
            chosen = {a: lines[a] for a in agents}
            if any(len(line) > 1 for line in chosen.values()):
                figures.append(_panel(title, caption, chosen, x_label, y_label, reach, hues(data)))
    return figures


def _panels(agents: list[str]) -> list[tuple[str, list[str]]]:
    """One picture for up to six methods; above, one for each way of smoothing, on the same scale."""
    if len(agents) <= 6:
        return [("", agents)]
    grouped = {g: [a for a in agents if look.group(a) == g] for g in look.GROUPS}
    return [(look.GROUPS[g], found) for g, found in grouped.items() if found]


def _panel(
    title: str,
    caption: str,
    lines: Mapping[str, Sequence[SummaryRow]],
    x_label: str,
    y_label: str,
    reach: Sequence[float],
    hue: look.Palette,
) -> Figure:
    series, keys = [], []
    for agent, line in lines.items():
        series.append(_series(agent, line, hue))
        keys.append((agent, hue(agent), look.dash(agent), False))
        published = [(r.epsilon or 0.0, r.paper) for r in line if r.paper is not None]
        if len(published) > 1:
            x, y = zip(*published, strict=True)
            series.append(svg.Series(f"{agent}, published", x, y, hue(agent), look.dash(agent), hollow=True))
    if any(s.hollow for s in series):
        keys.append(("published", "var(--soft)", "", True))
    return Figure(title, caption, svg.line_chart(series, x_label, y_label, reach=reach), svg.legend(keys))


def _series(agent: str, rows: Sequence[SummaryRow], hue: look.Palette) -> svg.Series:
    bound = rows[-1].metric == "reward_lower_bound"
    return svg.Series(
        agent,
        [r.epsilon or 0.0 for r in rows],
        [r.mean for r in rows],
        hue(agent),
        look.dash(agent),
        () if bound else [r.low for r in rows],
        () if bound else [r.high for r in rows],
    )


def certified_steps(data: ReportData) -> list[Figure]:
    """Share of visited states certified at each radius."""
    return _curves(
        data.certified,
        hues(data),
        "l2 radius",
        "share of states certified",
        "Of the states met in clean play, the share whose action is certified within the radius.",
        step=True,
    )


def learning(data: ReportData) -> list[Figure]:
    """Return over training."""
    return _curves(
        data.learning,
        hues(data),
        "environment steps",
        "return in training",
        "As the run folders recorded it.",
        step=False,
    )


def _curves(
    curves: Sequence[Curve], hue: look.Palette, x_label: str, y_label: str, caption: str, *, step: bool
) -> list[Figure]:
    figures = []
    for place in _unique(c.environment for c in curves):
        here = [c for c in curves if c.environment == place]
        series = [
            svg.Series(c.agent, c.x, c.y, hue(c.agent), look.dash(c.agent), step=step, points=False)
            for c in here
        ]
        keys = [(a, hue(a), look.dash(a), False) for a in _unique(c.agent for c in here)]
        figures.append(
            Figure(place, caption, svg.line_chart(series, x_label, y_label, zero=step), svg.legend(keys))
        )
    return figures


def flags(data: ReportData) -> list[str]:
    """What speaks against trusting a number; published numbers outside our intervals are in `gaps`."""
    found = []
    for row in data.rows:
        for piece in row.note.split("; "):
            if piece.startswith("flag:"):
                found.append(f"{_where(row)}: {piece.removeprefix('flag:').strip()}")
    found += _invalid_bounds(data.rows)
    for h in headlines(data):
        found += _headline_flags(h)
    found += [f"{what}: {why}" for what, why in data.failures.items()]
    return list(dict.fromkeys(found))


def _invalid_bounds(rows: Sequence[ResultRow]) -> list[str]:
    """Which published bounds do not reach their confidence; agents with the same budgets share a line."""
    budgets: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if "not a valid bound" in row.note:
            at = f"{row.epsilon:g}" if row.epsilon else "any budget"
            where = f"on {row.environment}, protocol {row.protocol}"
            budgets.setdefault((look.metric_name(row.metric), where, row.agent), []).append(at)
    lines: dict[str, list[str]] = {}
    for (metric, where, agent), values in budgets.items():
        line = f"{metric} {where}: not a valid bound at {', '.join(_unique(values))}"
        lines.setdefault(line, []).append(agent)
    why = "the published formula claims more confidence than its samples give"
    return [f"{line} ({why}), of {', '.join(agents)}" for line, agents in lines.items()]


def _where(row: ResultRow) -> str:
    budget = f" at {row.epsilon:g}" if row.epsilon else ""
    seed = "" if row.agent_seed is None else f", seed {row.agent_seed}"
    return f"{look.metric_name(row.metric)}{budget} of {row.agent} on {row.environment}{seed}"


def _headline_flags(h: Headline) -> list[str]:
    c, w = h.clean, h.worst
    if c is None or w is None or c.high is None or w.low is None:
        return []
    if w.low > c.high:
        return [
            f"{h.agent} on {h.environment}: the worst attack ({look.metric_name(w.metric)}) ends above the "
            "clean return; the attack does not work on this agent, its number is no evidence of robustness"
        ]
    return []


def gaps(rows: Sequence[SummaryRow]) -> list[str]:
    """Numbers whose published value lies outside their interval."""
    out = []
    for row in rows:
        if row.paper is None or row.low is None or row.high is None or row.metric == "reward_lower_bound":
            continue
        if not row.low <= row.paper <= row.high:
            side = "above" if row.mean > row.paper else "below"
            budget = f" at {row.epsilon:g}" if row.epsilon else ""
            other = "" if row.same_environment else " (another version of the environment)"
            out.append(
                f"{look.metric_name(row.metric)}{budget} of {row.agent} on {row.environment}{other}: "
                f"{svg.number(row.mean)} [{svg.number(row.low)}, {svg.number(row.high)}] lies {side} the "
                f"published {svg.number(row.paper)}"
            )
    return out


def _unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _first(rows: Iterable[T]) -> T | None:
    return next(iter(rows), None)
