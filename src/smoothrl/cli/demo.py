"""`smoothrl demo`: the whole story in minutes: train, attack, certify, report."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smoothrl.cli.common import parse, say
from smoothrl.cli.study import Display, duration, summary
from smoothrl.errors import UserError


@dataclass(frozen=True)
class Options:
    """Train PPO and S-PPO on a small MuJoCo task, S-DQN on MinAtar; attack and certify them; make the page.

    What is done is kept: a second run goes on where the first one was.
    """

    out: Path = Path("runs") / "demo"
    """Folder of the demo."""
    workers: int | None = None
    """Jobs at a time (default: one a core)."""


STORY = """smoothrl demo: six methods, two environments, attacks, certificates; some six minutes on two cores.
  1. train   PPO and S-PPO (InvertedPendulum), DQN and S-DQN (MinAtar Breakout)
  2. attack  what they see: random, FGSM, MAD, PGD
  3. certify returns, actions and radii that no attack can break
  4. report  one page with all of it"""


def main(argv: Sequence[str]) -> int:
    options = parse(Options, argv, "smoothrl demo", Options.__doc__)
    if options.workers is not None and options.workers < 1:
        raise UserError("--workers starts at 1")
    from smoothrl.studies.api import run_study
    from smoothrl.studies.predefined import find_study
    from smoothrl.studies.work import Settings

    say(STORY)
    command = shlex.join(["smoothrl", "demo", *argv])
    folder, page = options.out / "study", options.out / "report.html"
    display = Display()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcome = run_study(
            find_study("demo"),
            folder,
            workers=options.workers,
            settings=Settings(command=command),
            on_change=display.show,
            on_finished=display.finished,
        )
    finally:
        display.close()
    say(f"{summary(outcome.outlook)}, in {duration(outcome.wall_time)}")
    for label, why in outcome.failures.items():
        say(f"failed: {label}: {why}")
    if outcome.interrupted:
        say("interrupted; the same command goes on where it was")
        return 130
    from smoothrl.report import charts, html
    from smoothrl.report.data import gather
    from smoothrl.storage import write_atomically

    data = gather([folder])
    write_atomically(page, html.render(data, "Smoothed agents in minutes", command).encode())
    for h in charts.headlines(data):
        if h.clean and h.worst:
            say(
                f"  {h.agent:8} on {h.environment:20} clean {h.clean.mean:8.1f}   "
                f"worst {h.worst.mean:8.1f} ({h.worst.metric} at {h.worst.epsilon:g})"
            )
    say(f"results: {folder / 'results.csv'}")
    say(f"the page: {page.resolve().as_uri()}")
    return 0 if outcome.complete else 1
