"""What evaluate, attack and certify share: their options, progress, and where results go."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeVar

import tyro

from smoothrl.errors import UserError

if TYPE_CHECKING:
    from smoothrl.agents import Agent, Smoothing

T = TypeVar("T")
SmoothKind = Literal["median", "vote", "mean", "none"]


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of every command that plays episodes."""

    agents: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="AGENT...")]
    """Agent files, or run folders (all agents in them)."""
    episodes: int = 50
    """Episodes an agent."""
    smooth: SmoothKind | None = None
    """Smoothing at test time; what the agent was trained with where not given."""
    sigma: float | None = None
    """Standard deviation of the smoothing noise, in units of the normalised observation."""
    samples: int | None = None
    """Noise samples of one decision (100 where nothing else is said)."""
    seed: int = 0
    """Seed of the episodes; the same seed gives the same numbers on the same machine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the networks run."""
    lanes: int | None = None
    """Episodes side by side; changes the speed, never the numbers."""
    json: str | None = None
    """Write the result rows to this file as JSON ('-': standard output, and nothing else there)."""


def parse(options: type[T], argv: Sequence[str], prog: str, description: str | None = None) -> T:
    """The options as a dataclass; tyro explains what is wrong and exits with 2."""
    config = (tyro.conf.FlagCreatePairsOff,)
    return tyro.cli(options, args=list(argv), prog=prog, description=description, config=config)


def pick_device(name: str) -> str:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: this torch sees no CUDA device; use --device cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def expand_agents(paths: Sequence[Path]) -> list[Path]:
    """Agent files as named; a run folder stands for its agent files."""
    if not paths:
        raise UserError("name at least one agent file (or run folder)")
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("agent*.safetensors")) or sorted(path.glob("*/agent*.safetensors"))
            if not inside:
                raise UserError(f"{path}: no agent*.safetensors in this folder; has the training saved one?")
            found += inside
        else:
            found.append(path)
    return found


def smoothing_of(
    trained: Smoothing, discrete: bool, smooth: str | None, sigma: float | None, samples: int | None
) -> Smoothing:
    """The smoothing the options ask for: unsaid parts come from training, then from the paper."""
    from smoothrl.agents import Smoothing

    natural = "vote" if discrete else "median"
    if smooth is None:
        kind = trained.kind if trained.kind != "none" else (natural if sigma is not None else "none")
    else:
        kind = smooth
    if kind == "none":
        if sigma is not None and smooth == "none":
            raise UserError("--smooth none takes no --sigma; drop one of them")
        return Smoothing()
    chosen = sigma if sigma is not None else trained.sigma
    if trained.kind == "none" and sigma is None:
        raise UserError(
            f"--smooth {kind} on an agent trained without noise needs --sigma "
            "(the paper takes 0.2 for MuJoCo, 0.1 for Pong and Freeway)"
        )
    count = samples if samples is not None else (trained.samples if trained.kind != "none" else 100)
    return Smoothing(kind, chosen, count)  # type: ignore[arg-type]


def load_agents(options: EvaluationOptions) -> list[tuple[Path, Agent]]:
    """The agents named by the options, with the smoothing they ask for."""
    from smoothrl.agents import load_agent

    device = pick_device(options.device)
    loaded = []
    for path in expand_agents(options.agents):
        agent = load_agent(path, device=device)
        smooth = smoothing_of(
            agent.info.trained_with, agent.discrete, options.smooth, options.sigma, options.samples
        )
        loaded.append((path, agent.with_smoothing(smooth)))
    return loaded


class Progress:
    """A live bar on a terminal; elsewhere a plain line, soon and then every `interval` seconds."""

    def __init__(self, stream: TextIO, interval: float = 10.0) -> None:
        self.stream, self.interval = stream, interval
        self._bar: Any = None
        self._task: Any = None
        self._start = self._last = time.monotonic()
        self._label, self._total, self._done, self._unit = "", 0.0, 0.0, ""

    def start(self, label: str, total: float, unit: str = "episodes") -> None:
        """Begin (or go on with) one piece of work."""
        self._label, self._total, self._done, self._unit = label, total, 0.0, unit
        self._start = time.monotonic()
        self._last = self._start - 0.8 * self.interval
        if self.stream.isatty():
            self._start_bar(label, total, unit)

    def _start_bar(self, label: str, total: float, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        if self._bar is None:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
                TextColumn("{task.fields[unit]}"),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(file=self.stream),
                transient=True,
            )
            self._bar.start()
        self._task = self._bar.add_task(label, total=total, unit=unit, rate="")

    def update(self, done: float, note: str = "") -> None:
        self._done = done
        now = time.monotonic()
        rate = done / max(now - self._start, 1e-9)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, rate=f"{rate:,.1f}/s {note}")
        elif now - self._last >= self.interval:
            self._last = now
            left = (self._total - done) / rate if rate > 0 else float("inf")
            self.stream.write(
                f"{self._label}: {done:,.0f}/{self._total:,.0f} {self._unit}, {rate:,.1f}/s, "
                f"{left:,.0f} s left {note}".rstrip()
                + "\n"
            )
            self.stream.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Progress on standard error, so that standard output keeps results alone."""
    bar = Progress(sys.stderr)
    try:
        yield bar
    finally:
        bar.close()


def to_json(value: Any) -> Any:
    """Plain JSON data; numbers that are not finite become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(asdict(value))
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    if isinstance(value, float) and not (value == value and abs(value) != float("inf")):
        return None
    return str(value) if isinstance(value, Path) else value


def write_json(data: Any, target: str | None) -> None:
    """Result rows to a file, or to standard output for '-'."""
    if target is None:
        return
    text = jsonlib.dumps(to_json(data), indent=1, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    from smoothrl.storage import write_atomically

    write_atomically(Path(target), text.encode())


def say(text: str, json: str | None = None) -> None:
    """A line for the person at the terminal; on standard error where standard output is JSON."""
    (sys.stderr if json == "-" else sys.stdout).write(text + "\n")
