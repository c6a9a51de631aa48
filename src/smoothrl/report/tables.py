"""The summary as tables: for the page, for Markdown, for LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smoothrl.report import look
from smoothrl.report.svg import number
from smoothrl.studies.summary import SummaryRow

COLUMNS = (
    "environment", "agent", "metric", "epsilon", "sigma", "m", "protocol",
    "mean", "95 % interval", "median", "selected", "published", "ratio", "agents", "episodes", "cost",
)  # fmt: skip
NUMERIC = {
    "epsilon",
    "sigma",
    "m",
    "mean",
    "median",
    "selected",
    "published",
    "ratio",
    "agents",
    "episodes",
    "cost",
}


@dataclass(frozen=True)
class Cell:
    """What is shown, and what it is sorted by."""

    text: str
    key: float | str
    kind: str = ""
    """CSS class."""
    tip: str = ""


def cells(row: SummaryRow) -> list[Cell]:
    """One table line, in the order of COLUMNS."""
    bound = row.metric == "reward_lower_bound"
    ratio = row.mean / row.paper if row.paper else None
    inside = (
        row.paper is not None
        and row.low is not None
        and row.high is not None
        and row.low <= row.paper <= row.high
    )
    interval = (
        "" if row.low is None or row.high is None or bound else f"{number(row.low)} – {number(row.high)}"
    )
    published = _optional(row.paper)
    if row.paper is not None and not row.same_environment:
        published = Cell(
            published.text + "*", published.key, tip="another version of the paper's environment"
        )
    return [
        Cell(row.environment, row.environment),
        Cell(row.agent, row.agent, "agent"),
        Cell(look.metric_name(row.metric), row.metric, tip=row.note),
        Cell("" if not row.epsilon else f"{row.epsilon:g} {row.norm}", row.epsilon or 0.0, "number"),
        _optional(row.sigma),
        _optional(row.samples),
        Cell(row.protocol, row.protocol),
        Cell(number(row.mean), row.mean, "number lead"),
        Cell(interval, row.low if row.low is not None else row.mean, "number"),
        Cell(number(row.median), row.median, "number"),
        _optional(row.selected),
        published,
        Cell("" if ratio is None else f"{ratio:.2f}", ratio or 0.0, "number good" if inside else "number"),
        _optional(row.agents),
        _optional(row.episodes),
        Cell(seconds(row.wall_time), row.wall_time, "number"),
    ]


def _optional(value: float | None) -> Cell:
    return Cell("", float("-inf"), "number") if value is None else Cell(number(value), float(value), "number")


def seconds(value: float) -> str:
    """A duration a person can read."""
    if value < 99.5:
        return f"{value:.3g} s"
    return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"


def markdown(rows: Iterable[SummaryRow]) -> str:
    """The table in Markdown."""
    right = ["---:" if name in NUMERIC else "---" for name in COLUMNS]
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "|".join(right) + "|"]
    lines += ["| " + " | ".join(c.text.replace("|", "\\|") for c in cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--",
}  # fmt: skip


def escape_latex(text: str) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def latex(rows: Sequence[SummaryRow]) -> str:
    """A booktabs table for each environment and protocol; published numbers in brackets."""
    parts = []
    for place, protocol in dict.fromkeys((r.environment, r.protocol) for r in rows):
        parts.append(_latex_table([r for r in rows if (r.environment, r.protocol) == (place, protocol)]))
    return "\n\n".join(parts) + "\n"


def _latex_table(rows: Sequence[SummaryRow]) -> str:
    first = rows[0]
    columns = list(dict.fromkeys(_latex_column(r, rows) for r in rows))
    heads = [
        escape_latex(look.metric_name(metric))
        + (f" $\\epsilon={epsilon:g}$" if epsilon else "")
        + (f" $m={samples}$" if samples else "")
        for metric, epsilon, samples in columns
    ]
    body = []
    for agent in dict.fromkeys(r.agent for r in rows):
        mine = {_latex_column(r, rows): r for r in rows if r.agent == agent}
        body.append(" & ".join([escape_latex(agent), *(_latex_cell(mine.get(c)) for c in columns)]) + r" \\")
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{escape_latex(first.environment)}, protocol "
            rf"{escape_latex(first.protocol or 'none')}: mean with 95\,\% interval; "
            "published numbers in brackets.}",
            rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
            r"\toprule",
            " & ".join(["agent", *heads]) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _latex_column(row: SummaryRow, rows: Sequence[SummaryRow]) -> tuple[str, float, int]:
    """Metric, budget, and the number of samples where one agent was measured with several."""
    same = {r.samples for r in rows if (r.agent, r.metric, r.epsilon) == (row.agent, row.metric, row.epsilon)}
    return row.metric, row.epsilon or 0.0, (row.samples or 0) if len(same) > 1 else 0


def _latex_cell(row: SummaryRow | None) -> str:
    if row is None:
        return "--"
    text = number(row.mean)
    if row.low is not None and row.high is not None and row.metric != "reward_lower_bound":
        text += rf" {{\scriptsize {number(row.low)}--{number(row.high)}}}"
    return text + (f" [{number(row.paper)}]" if row.paper is not None else "")
