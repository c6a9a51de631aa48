"""One self-contained HTML page: no request leaves it, no picture can be missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment

from smoothrl import __version__
from smoothrl.report import charts, look, svg, tables
from smoothrl.report.charts import Figure
from smoothrl.report.data import ReportData
from smoothrl.studies.summary import averages


@dataclass(frozen=True)
class Section:
    """A heading with its pictures."""

    id: str
    title: str
    text: str
    figures: Sequence[Figure]


def sections(data: ReportData) -> list[Section]:
    """What the data have pictures for."""
    found = [
        Section(
            "headline", "Clean and worst return", "What each method earns, and what attackers leave of it.",
            charts.headline_figures(data),
        ),
        Section("trade-off", "The trade-off", "Averaged over environments.", charts.trade_off(data)),
        Section(
            "certified-returns", "Certified returns", "What no attack within the budget can take away.",
            charts.lower_bounds(data),
        ),
        Section(
            "certified-steps", "Certified steps", "How far from each state the action cannot change.",
            charts.certified_steps(data),
        ),
        Section("robustness", "Return over the budget", "", charts.robustness(data)),
        Section("learning", "Learning curves", "", charts.learning(data)),
    ]  # fmt: skip
    return [section for section in found if section.figures]


def render(data: ReportData, title: str, command: str) -> str:
    """The page as text."""
    place = files("smoothrl.report") / "page"
    page, css, js = ((place / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(page)
    parts = sections(data)
    lines = [tables.cells(row) for row in (*data.summary, *averages(data.summary))]
    contents = [(s.id, s.title) for s in parts]
    contents += [("films", "Watch them")] if data.films else []
    contents += [("numbers", "Numbers")] if lines else []
    contents += [("trust", "Caution"), ("cost", "Cost and commands")]
    return template.render(
        title=title,
        css=css,
        js=js,
        sources=data.sources,
        cards=cards(data),
        sections=parts,
        films=data.films,
        lines=lines,
        columns=tables.COLUMNS,
        numeric=tables.NUMERIC,
        choices=choices(data),
        flags=charts.flags(data),
        gaps=charts.gaps(data.summary),
        claims=claims(data),
        costs=costs(data),
        contents=contents,
        command=command,
        version=__version__,
    )


def choices(data: ReportData) -> list[tuple[str, list[str]]]:
    """The columns that can be filtered by one value."""
    columns: dict[str, list[str]] = {
        "environment": [r.environment for r in (*data.summary, *averages(data.summary))],
        "metric": [look.metric_name(r.metric) for r in data.summary],
        "protocol": [r.protocol for r in data.summary if r.protocol],
    }
    unique = {name: list(dict.fromkeys(values)) for name, values in columns.items()}
    return [(name, values) for name, values in unique.items() if len(values) > 1]


def claims(data: ReportData) -> list[tuple[str, list[str]]]:
    """Certified sentences, by agent."""
    grouped: dict[str, list[str]] = {}
    for what, sentence in data.claims:
        grouped.setdefault(what, []).append(sentence)
    return list(grouped.items())


def costs(data: ReportData) -> list[tuple[str, str, float]]:
    """(what, how long, share of the largest in per cent)."""
    spent: dict[str, float] = dict(data.spent)
    for row in data.summary:
        name = look.metric_name(row.metric)
        spent[name] = spent.get(name, 0.0) + row.wall_time
    ordered = sorted(((k, v) for k, v in spent.items() if v > 0.0), key=lambda kv: -kv[1])
    return [(k, tables.seconds(v), round(100.0 * v / ordered[0][1], 1)) for k, v in ordered]


@dataclass(frozen=True)
class Card:
    """One figure of the opening."""

    what: str
    value: str
    detail: str


def cards(data: ReportData) -> list[Card]:
    """The headline in a few numbers."""
    out = []
    found = [h for h in charts.headlines(data) if h.clean and h.worst]
    questions = list(dict.fromkeys((h.environment, h.protocol) for h in found))
    several = len({protocol for _, protocol in questions}) > 1
    for place, protocol in questions[:3]:
        here = [h for h in found if (h.environment, h.protocol) == (place, protocol)]
        best = max(here, key=lambda h: h.worst.mean if h.worst else 0.0)
        assert best.worst is not None
        assert best.clean is not None
        detail = f"{best.agent}, clean {svg.number(best.clean.mean)}, {look.metric_name(best.worst.metric)}"
        place += f", {protocol}" if several else ""
        out.append(Card(f"best worst return, {place}", svg.number(best.worst.mean), detail))
    radius = [r for r in data.summary if r.metric == "certified_radius"]
    if radius:
        top = max(radius, key=lambda r: r.mean)
        out.append(
            Card("largest mean certified radius", svg.number(top.mean), f"{top.agent}, {top.environment}")
        )
    agents = {row.agent_hash for row in data.rows if row.agent_hash}
    episodes = sum(row.episodes or 0 for row in data.rows)
    if data.rows:
        out.append(
            Card("measured", f"{len(agents)} agents", f"{episodes:,} episodes, {len(data.rows)} results")
        )
    return out


def write_options(data: ReportData, kinds: Sequence[str]) -> dict[str, Any]:
    """Texts of the other formats: markdown, latex, svg."""
    texts: dict[str, Any] = {}
    if "markdown" in kinds:
        texts["markdown"] = tables.markdown((*data.summary, *averages(data.summary)))
    if "latex" in kinds:
        texts["latex"] = tables.latex((*data.summary, *averages(data.summary)))
    if "svg" in kinds:
        figures = charts.trade_off(data) or charts.headline_figures(data) or charts.robustness(data)
        texts["svg"] = svg.standalone(figures[0].picture) if figures else None
    return texts
