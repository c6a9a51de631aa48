"""`smoothrl study run|status|show NAME|FILE`: parsing and printing; the work is in `smoothrl.studies`."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from smoothrl.cli.common import parse, say
from smoothrl.errors import UserError, unknown

if TYPE_CHECKING:
    from smoothrl.studies.declare import Study
    from smoothrl.studies.plan import JobSpec
    from smoothrl.studies.runner import Outlook
    from smoothrl.studies.work import Finished


@dataclass(frozen=True)
class ShowOptions:
    """What a study trains and measures, without running anything."""

    study: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FILE")]
    """A predefined study (`smoothrl list studies`), or a TOML file."""
    only: Annotated[str, tyro.conf.arg(metavar="A,B,...")] = ""
    """Only these methods, environments or metrics."""
    steps: int | None = None
    """Environment steps of each training (the scale knob)."""
    seeds: int | None = None
    """Agents a pool."""
    episodes: int | None = None
    """Episodes an evaluation."""
    bound_episodes: int | None = None
    """One-draw episodes of a return bound."""
    fit: Literal["tiny", "quick", "full", "paper"] | None = None
    """How much is spent on fitting a learned attack."""
    samples: int | None = None
    """Noise samples of one decision at test time."""
    protocol: Literal["sound", "paper"] | None = None
    """Corrected, or exactly as published."""


@dataclass(frozen=True)
class RunOptions(ShowOptions):
    """Run a study: what is done already in its folder is not done again."""

    out: Path | None = None
    """The study's folder (default: runs/studies/NAME)."""
    backend: Literal["local", "ray", "inline"] = "local"
    """Processes here, a Ray cluster (extra `ray`), or this process alone."""
    workers: int | None = None
    """Jobs at a time (default: one a core, or all the cluster has)."""
    threads: int = 1
    """Threads of one job."""
    address: str | None = None
    """Ray: auto, HOST:PORT or ray://HOST:PORT of a running cluster; a fresh one here where not given."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where networks run when agents are measured."""
    files: Path | None = None
    """Folder with agents trained elsewhere, for studies that measure such."""
    adopt: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR...")] = ()
    """Run folders of finished trainings with the study's own settings: taken over instead of trained."""


@dataclass(frozen=True)
class StatusOptions:
    """How far a study is."""

    study: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|FOLDER")]
    """The study's folder, or its name where it is in runs/studies."""


def main(argv: Sequence[str]) -> int:
    commands = {"run": _run, "status": _status, "show": _show}
    if not argv or argv[0] in ("-h", "--help"):
        say("usage: smoothrl study run|status|show NAME|FILE [options]   (each with --help for its options)")
        return 0
    what, *rest = argv
    if what not in commands:
        raise unknown("study command", what, commands)
    return commands[what](rest)


def _declared(options: ShowOptions) -> Study:
    from smoothrl.studies.declare import scaled
    from smoothrl.studies.predefined import find_study

    return scaled(
        find_study(options.study),
        steps=options.steps,
        seeds=options.seeds,
        episodes=options.episodes,
        bound_episodes=options.bound_episodes,
        fit=options.fit,
        samples=options.samples,
        protocol=options.protocol,
    )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _show(argv: Sequence[str]) -> int:
    options = parse(ShowOptions, argv, "smoothrl study show", ShowOptions.__doc__)
    from smoothrl.studies.declare import restricted
    from smoothrl.studies.plan import plan

    study = restricted(_declared(options), _parts(options.only))
    say(f"{study.name}: {study.title}")
    say(f"  scale         {study.scale}; protocol {study.protocol}")
    say(f"  methods       {', '.join(e.name for e in study.methods)}")
    say(f"  environments  {', '.join(study.environments)}")
    for evaluation in study.evaluations:
        budget = (
            f" at epsilon {', '.join(f'{e:g}' for e in evaluation.epsilon)}" if evaluation.epsilon else ""
        )
        where = f" on {', '.join(evaluation.environments)}" if evaluation.environments else ""
        whom = "the selected agent" if evaluation.on == "selected" else "every agent"
        say(f"  measures      {evaluation.metric}{budget}{where}, {whom}")
    if study.tables:
        say(f"  the paper's   {', '.join(study.tables)}")
    counts: dict[str, int] = {}
    for job in plan(study).jobs.values():
        counts[job.kind] = counts.get(job.kind, 0) + 1
    say(f"  jobs          {sum(counts.values())}: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
    return 0


def _status(argv: Sequence[str]) -> int:
    options = parse(StatusOptions, argv, "smoothrl study status", StatusOptions.__doc__)
    from smoothrl.studies.api import DEFAULT_FOLDER, study_failures, study_status

    folder = Path(options.study)
    if not (folder / "study.json").exists() and (DEFAULT_FOLDER / options.study / "study.json").exists():
        folder = DEFAULT_FOLDER / options.study
    study, outlook, running = study_status(folder)
    say(f"{study.name} in {folder} ({study.scale}): {'running' if running else 'not running'}")
    say(f"  {summary(outlook)}")
    for label in outlook.running if running else ():
        say(f"  running: {label}")
    for label, why in study_failures(folder).items():
        say(f"  failed:  {label}: {why}")
    return 0


def _run(argv: Sequence[str]) -> int:
    options = parse(RunOptions, argv, "smoothrl study run", RunOptions.__doc__)
    study = _declared(options)
    from smoothrl.studies.api import DEFAULT_FOLDER, run_study
    from smoothrl.studies.work import Settings

    if options.threads < 1 or (options.workers is not None and options.workers < 1):
        raise UserError("--threads and --workers start at 1")
    out = options.out or DEFAULT_FOLDER / study.name
    settings = Settings(
        threads=options.threads,
        device=options.device,
        files="" if options.files is None else str(options.files.resolve()),
        adopt=tuple(str(path.resolve()) for path in options.adopt),
        command="smoothrl study run " + shlex.join(argv),
    )
    display = Display()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcome = run_study(
            study,
            out,
            only=_parts(options.only),
            backend=options.backend,
            workers=options.workers,
            address=options.address,
            settings=settings,
            on_change=display.show,
            on_finished=display.finished,
        )
    finally:
        display.close()
    say(f"{summary(outcome.outlook)}, in {duration(outcome.wall_time)}")
    for label, why in list(outcome.failures.items())[:10]:
        say(f"failed: {label}: {why}")
    say(
        f"results: {out / 'results.csv'}, {out / 'summary.csv'}; "
        f"page: smoothrl report {out} --out report.html"
    )
    if outcome.interrupted:
        say("interrupted; the same command goes on where it was")
        return 130
    return 0 if outcome.complete else 1


def summary(outlook: Outlook) -> str:
    """One line: done, running, left, failed, and the estimate."""
    text = f"{outlook.done} of {outlook.total} jobs done"
    if outlook.failed:
        text += f", {outlook.failed} failed"
    if outlook.blocked:
        text += f", {outlook.blocked} cannot run because of them"
    if outlook.left:
        text += f", {outlook.left} left"
        if outlook.seconds_left is not None:
            text += f" (about {duration(outlook.seconds_left)})"
    return text


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class Display:
    """A live block on a terminal; elsewhere a line for each finished job, at most one a second."""

    def __init__(self) -> None:
        self._live: Any = None
        self._last, self._outlook = 0.0, None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()

    def show(self, outlook: Outlook) -> None:
        now = time.monotonic()
        if now - self._last < (0.25 if self._live is not None else 15.0):
            return
        self._last = now
        if self._live is not None:
            self._live.update(_block(outlook))
        else:
            running = f"; running: {', '.join(outlook.running)}" if outlook.running else ""
            sys.stderr.write(f"{summary(outlook)}{running}\n")
            sys.stderr.flush()

    def finished(self, job: JobSpec, finished: Finished) -> None:
        how = f"{finished.wall_time:.1f} s" if finished.status == "done" else f"FAILED ({finished.error})"
        line = f"{job.label or job.key}: {how}"
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def _block(outlook: Outlook) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    bar = ProgressBar(total=max(1, outlook.total), completed=outlook.done, width=60)
    return Group(bar, Text(summary(outlook)), *(Text(f"  running: {label}") for label in outlook.running))
