"""`smoothrl evaluate AGENT...`: play episodes, clean, with any smoothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smoothrl.cli.common import EvaluationOptions, load_agents, parse, progress_bar, say, write_json

if TYPE_CHECKING:
    from smoothrl.results import ResultRow
    from smoothrl.rollout import EpisodeResults


@dataclass(frozen=True)
class Options(EvaluationOptions):
    """Play clean episodes and report the returns with their interval."""

    env: str | None = None
    """Environment; the one the agent was trained on where not given."""
    max_steps: int | None = None
    """Stop every episode after this many steps; cut episodes do not count in the results."""


def main(argv: Sequence[str]) -> int:
    options = parse(Options, argv, "smoothrl evaluate", "Play clean episodes and report the returns.")
    command = "smoothrl evaluate " + shlex.join(argv)
    from smoothrl import rollout
    from smoothrl.results import json_rows

    rows, interrupted = [], False
    agents = load_agents(options)
    with progress_bar() as bar:
        for path, agent in agents:
            bar.start(f"{path.name} ({agent.name})", options.episodes)
            result = rollout.evaluate(
                agent,
                options.env,
                options.episodes,
                options.seed,
                lanes=options.lanes,
                max_steps=options.max_steps,
                progress=lambda done, step: bar.update(done, f"step {step:,}"),
            )
            interrupted = result.interrupted
            if interrupted and not result.complete.any():
                break
            row = rollout.result_row(
                agent,
                result,
                "clean",
                options.seed,
                environment=options.env,
                protocol="",
                note=_unfinished(result),
                command=command,
            )
            rows.append(row)
            say(
                f"{path}  {row.agent} on {row.environment}, smoothing {agent.smoothing}: {_figure(row)}; "
                f"{result.lengths.sum() / result.wall_time:,.0f} steps/s)",
                options.json,
            )
            if interrupted:
                break
    write_json(json_rows(rows), options.json)
    if options.json not in (None, "-"):
        say(f"results: {options.json}")
    if interrupted:
        say(f"interrupted; {len(rows)} of {len(agents)} agents have results", options.json)
    return 130 if interrupted else 0


def _figure(row: ResultRow) -> str:
    if row.low is None or row.high is None:
        return f"{row.mean:.1f} (one episode, which has no interval"
    return (
        f"{row.mean:.1f} [{row.low:.1f}, {row.high:.1f}] "
        f"(mean of {row.episodes} episodes, 95% interval; std {row.std:.1f}"
    )


def _unfinished(result: EpisodeResults) -> str:
    """Short episodes end first, so the mean of the finished ones alone is that of the shorter ones."""
    if result.complete.all():
        return ""
    why = "interrupted" if result.interrupted else "cut by --max-steps"
    return f"{why}: {int(result.complete.sum())} of {result.complete.size} episodes, the shorter ones"
