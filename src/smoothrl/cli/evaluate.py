"""`smoothrl evaluate AGENT...`: play episodes, clean, with any smoothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from smoothrl.cli.common import EvaluationOptions, load_agents, parse, progress_bar, say, write_json


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
    with progress_bar() as bar:
        for path, agent in load_agents(options):
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
            note = f"interrupted after {int(result.complete.sum())} episodes" if result.interrupted else ""
            row = rollout.result_row(
                agent,
                result,
                "clean",
                options.seed,
                environment=options.env,
                protocol="",
                note=note,
                command=command,
            )
            rows.append(row)
            say(
                f"{path}  {row.agent} on {row.environment}, smoothing {agent.smoothing}: "
                f"{row.mean:.1f} [{row.low:.1f}, {row.high:.1f}] "
                f"(mean of {row.episodes} episodes, 95% interval; std {row.std or 0:.1f}; "
                f"{result.lengths.sum() / result.wall_time:,.0f} steps/s)",
                options.json,
            )
            if result.interrupted:
                interrupted = True
                break
    write_json(json_rows(rows), options.json)
    if options.json not in (None, "-"):
        say(f"results: {options.json}")
    return 130 if interrupted else 0
