"""The page of the study `released-hopper`: the paper's own Hopper agents, published and measured."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smoothrl.certificates import return_bound
from smoothrl.certificates.files import decode
from smoothrl.results import ResultRow, paper_value, read_rows, write_rows
from smoothrl.statistics import statistic_estimate
from smoothrl.studies.predefined import BOUND_PPO, RELEASED

HORIZON = 1000
EARLIEST_STOP = 12
"""Episodes after which the released script could stop an attack and average what it had."""
Floats = npt.NDArray[np.float64]
Key = tuple[str, str, float | None]


@dataclass(frozen=True)
class Table:
    """The rows of one study folder by agent, metric and epsilon."""

    rows: dict[Key, ResultRow]
    counts: dict[Key, float] = field(default_factory=dict)
    """Distance of each published return bound, counted in episodes (`count_distance`)."""

    @classmethod
    def kept(cls, rows: Path, protocol: str) -> Table:
        """What an earlier page wrote of this protocol; the certificates' episodes are not in it."""
        return cls({(r.agent, r.metric, r.epsilon): r for r in read_rows(rows) if r.protocol == protocol})

    @classmethod
    def read(cls, folder: Path) -> Table:
        """The results of a study, the interval of each return bound added from its certificate's returns."""
        found = {(r.agent, r.metric, r.epsilon): r for r in read_rows(folder / "results.csv")}
        counts: dict[Key, float] = {}
        for record in _return_records(folder):
            _add_intervals(found, counts, record)
        return cls(found, counts)

    def with_exact_bounds(self, folder: Path) -> Table:
        """The exact return bounds from the episodes that another study of the same agents kept."""
        rows = dict(self.rows)
        for record in _return_records(folder):
            data, parameters = record["data"], record["parameters"]
            assert isinstance(data, dict)
            assert isinstance(parameters, dict)
            exact = return_bound(decode(data["returns"]), **{**parameters, "mode": "exact"})
            like = {r.agent_hash: r for r in rows.values() if r.sigma is not None}.get(
                str(record["agent_hash"])
            )
            for epsilon, bound, claim in zip(BOUND_PPO, exact.bound, exact.claims, strict=True):
                if like is not None:
                    key = (like.agent, "reward_lower_bound", epsilon)
                    rows[key] = _bound_row(like, epsilon, float(bound), exact.episodes, claim)
        return Table(rows)

    def get(self, agent: str, metric: str, epsilon: float | None = None) -> ResultRow | None:
        return self.rows.get((agent, metric, epsilon))


def _bound_row(like: ResultRow, epsilon: float, bound: float, episodes: int, claim: str) -> ResultRow:
    return replace(
        like,
        metric="reward_lower_bound",
        epsilon=epsilon,
        mean=bound,
        std=None,
        low=bound,
        high=None,
        samples=1,
        norm="l2",
        episodes=episodes,
        note=claim,
        wall_time=None,
        returns=(),
    )


def _return_records(folder: Path) -> Iterator[dict[str, object]]:
    for path in sorted(folder.glob("jobs/*/certificate.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("kind") == "return":
            yield record


def _add_intervals(rows: dict[Key, ResultRow], counts: dict[Key, float], record: dict[str, object]) -> None:
    """A bootstrap interval over episodes for the bound as a number: how far it would move on a repetition."""
    data, parameters = record["data"], record["parameters"]
    assert isinstance(data, dict)
    assert isinstance(parameters, dict)
    returns = np.asarray(decode(data["returns"]), np.float64)
    levels = return_bound(returns, **parameters).level
    for i, epsilon in enumerate(BOUND_PPO):
        for key, row in list(rows.items()):
            if key[1:] == ("reward_lower_bound", epsilon) and row.agent_hash == record["agent_hash"]:
                low, high = _bound_interval(returns, parameters, i)
                rows[key] = replace(row, low=low, high=high, level=0.95)
                theirs = published(row)
                if theirs is not None:
                    counts[key] = count_distance(returns, theirs, float(levels[i]))


def count_distance(returns: Floats, theirs: float, level: float) -> float:
    """How many more of our episodes lie below the published percentile than should, in standard errors.

    Returns cluster, so a percentile may jump where a few episodes more or fewer fall; their number does not.
    Both numbers are samples of as many episodes.
    """
    share = float((returns < theirs).mean())
    return (share - level) / math.sqrt(2.0 * level * (1.0 - level) / len(returns))


def _bound_interval(returns: Floats, parameters: dict[str, object], at: int) -> tuple[float, float]:
    def bounds(samples: Floats) -> Floats:
        return np.array([return_bound(row, **parameters).bound[at] for row in samples])  # type: ignore[arg-type]

    found = statistic_estimate([returns], bounds, np.random.default_rng(0), resamples=300)
    return found.low, found.high


def agent_names() -> list[str]:
    """The eighteen agents of the paper's table, plain ones before their smoothed versions."""
    plain = [m for m in RELEASED if not m.startswith("s-")]
    return [*plain, *(f"{m}+rs" for m in plain), *(m for m in RELEASED if m.startswith("s-"))]


# ---------------------------------------------------------------------------------------- comparing


def published(row: ResultRow) -> float | None:
    """The paper's number for this row."""
    found = paper_value(row)
    return None if found is None else found.mean


def distance(row: ResultRow, theirs: float) -> float:
    """How far apart the two measurements are, in standard errors of their difference.

    The paper's number is a sample as well: of as many episodes as ours, except that its MAD averages could
    stop after twelve.
    """
    if row.low is None or row.high is None:
        return math.nan
    error = (row.high - row.low) / (2 * 1.96)
    other = error
    if row.metric == "mad" and row.std is not None:
        other = row.std / math.sqrt(EARLIEST_STOP)
    total = math.hypot(error, other)
    return (row.mean - theirs) / total if total > 0 else math.inf


def number(value: float, metric: str) -> str:
    return f"{value:.3f}" if metric == "adiv" else f"{value:.0f}"


def measured(row: ResultRow | None) -> str:
    if row is None:
        return "-"
    text = number(row.mean, row.metric)
    if row.low is None or row.high is None:
        return text
    return f"{text} [{number(row.low, row.metric)}, {number(row.high, row.metric)}]"


def pair(row: ResultRow | None) -> str:
    """`ours [interval] (published, distance)`."""
    if row is None:
        return "- | - | -"
    theirs = published(row)
    if theirs is None:
        return f"- | {measured(row)} | -"
    far = distance(row, theirs)
    shown = "-" if math.isnan(far) else f"{far:+.1f}"
    return f"{number(theirs, row.metric)} | {measured(row)} | {shown}"


def returns_table(table: Table, metric: str, epsilon: float | None = None) -> list[str]:
    lines = ["| agent | paper | measured | distance |", "|---|---|---|---|"]
    for agent in agent_names():
        row = table.get(agent, metric, epsilon)
        if row is not None:
            lines.append(f"| {agent} | {pair(row)} |")
    return lines


def bounds_table(table: Table) -> list[str]:
    """Published above measured, a column a budget."""
    head = " | ".join(f"{e:g}" for e in BOUND_PPO)
    lines = [f"| agent | | {head} |", "|---|---|" + "---|" * len(BOUND_PPO)]
    for agent in agent_names():
        rows = [table.get(agent, "reward_lower_bound", e) for e in BOUND_PPO]
        if all(r is None for r in rows):
            continue
        theirs = [published(r) if r is not None else None for r in rows]
        lines.append(
            f"| {agent} | paper | " + " | ".join("-" if t is None else f"{t:.0f}" for t in theirs) + " |"
        )
        lines.append("| | measured | " + " | ".join(measured(r) for r in rows) + " |")
        far = [table.counts.get((agent, "reward_lower_bound", e)) for e in BOUND_PPO]
        lines.append("| | distance | " + " | ".join("-" if d is None else f"{d:+.1f}" for d in far) + " |")
    return lines


def long_table(rows: Sequence[ResultRow]) -> list[str]:
    """What fifty episodes can give at all: the spread of their mean, from many more episodes."""
    head = f"mean of {rows[0].episodes} | 95 % of the means of 50 | means of 50 below the paper's"
    lines = [f"| agent | paper | {head} |", "|---|---|---|---|---|"]
    generator = np.random.default_rng(0)
    for row in sorted(rows, key=lambda r: agent_names().index(r.agent)):
        theirs = published(row)
        returns = np.asarray(row.returns)
        means = generator.choice(returns, (20_000, 50)).mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        below = "-" if theirs is None else f"{100 * float((means < theirs).mean()):.1f} %"
        shown = "-" if theirs is None else f"{theirs:.0f}"
        lines.append(f"| {row.agent} | {shown} | {row.mean:.0f} | [{low:.0f}, {high:.0f}] | {below} |")
    return lines


def sound_table(paper: Table, sound: Table) -> list[str]:
    """What changes when the question is answered correctly."""
    lines = [
        "| agent | clean | MAD, paper | MAD, sound | ADIV, paper | ADIV, sound |",
        "|---|---|---|---|---|---|",
    ]
    for agent in agent_names():
        cells = [
            measured(paper.get(agent, "clean")),
            measured(paper.get(agent, "mad", 0.075)),
            measured(sound.get(agent, "mad", 0.075)),
            measured(paper.get(agent, "adiv")),
            measured(sound.get(agent, "adiv")),
        ]
        lines.append(f"| {agent} | " + " | ".join(cells) + " |")
    return lines


def sound_bounds(paper: Table, sound: Table) -> list[str]:
    head = " | ".join(f"{e:g}" for e in BOUND_PPO)
    lines = [f"| agent | | {head} |", "|---|---|" + "---|" * len(BOUND_PPO)]
    for agent in agent_names():
        for name, table in (("paper", paper), ("sound", sound)):
            rows = [table.get(agent, "reward_lower_bound", e) for e in BOUND_PPO]
            if any(r is not None for r in rows):
                cells = " | ".join("-" if r is None else f"{r.mean:.0f}" for r in rows)
                lines.append(f"| {agent if name == 'paper' else ''} | {name} | {cells} |")
    return lines


Section = Callable[[Table, Table], list[str]]
SECTIONS: dict[str, Section] = {
    "clean": lambda p, s: returns_table(p, "clean"),
    "mad": lambda p, s: returns_table(p, "mad", 0.075),
    "adiv": lambda p, s: returns_table(p, "adiv"),
    "bounds": lambda p, s: bounds_table(p),
    "sound": sound_table,
    "sound-bounds": sound_bounds,
}


def filled(text: str, tables: dict[str, list[str]]) -> str:
    """The page with each table put between its `<!-- name -->` and `<!-- /name -->` marks."""
    for name, lines in tables.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start in text and end in text:
            before, rest = text.split(start, 1)
            _, after = rest.split(end, 1)
            text = "\n".join([before + start, "", *lines, "", end + after])
    return text


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m smoothrl.studies.released_hopper",
        description="Fill the tables of docs/results/released-hopper.md from two study folders.",
    )
    parser.add_argument(
        "paper", type=Path, help="folder of the study under protocol paper, or the page's own .csv"
    )
    parser.add_argument(
        "sound", type=Path, help="folder under protocol sound; with the .csv, what replaces its rows"
    )
    parser.add_argument(
        "page", type=Path, help="Markdown page whose tables are replaced; its .csv lies beside"
    )
    parser.add_argument(
        "--long", type=Path, nargs="*", default=[], help="rows of `evaluate --episodes 500 --json`"
    )
    options = parser.parse_args(argv)
    sections = dict(SECTIONS)
    if options.paper.is_file():
        paper, sound = Table.kept(options.paper, "paper"), Table.kept(options.paper, "sound")
        sound.rows.update(Table.read(options.sound).rows)
        del sections["bounds"]
    else:
        paper = Table.read(options.paper)
        sound = Table.read(options.sound).with_exact_bounds(options.paper)
    tables = {name: section(paper, sound) for name, section in sections.items()}
    long = [row for path in options.long for row in read_rows(path)]
    if long:
        tables["long"] = long_table(long)
    page = filled(options.page.read_text(encoding="utf-8"), tables)
    options.page.write_text(page, encoding="utf-8")
    rows = [*paper.rows.values(), *sound.rows.values()]
    short = [
        replace(
            row,
            returns=row.returns if (row.episodes or 0) <= 50 else (),
            command=f"smoothrl study run released-hopper --files DIR --protocol {row.protocol}",
        )
        for row in rows
    ]
    sys.stdout.write(f"{write_rows(short, options.page.with_suffix('.csv'))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
