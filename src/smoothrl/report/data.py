"""What a report shows, read from files alone: study folders, run folders, results files."""

from __future__ import annotations

import base64
import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from smoothrl.errors import UserError
from smoothrl.results import ResultRow, read_rows
from smoothrl.studies.api import asked_for, open_study, selected_agents, study_failures, study_rows
from smoothrl.studies.declare import restricted
from smoothrl.studies.plan import plan
from smoothrl.studies.runner import look
from smoothrl.studies.summary import SummaryRow, summarise

MOST_FILMS = 24
RESULTS_FILE = "results file"
MEDIA = {".gif": "image/gif", ".webp": "image/webp", ".png": "image/png"}


@dataclass(frozen=True)
class Source:
    """Where numbers came from."""

    name: str
    title: str
    command: str
    facts: str
    """Scale, protocol, how far it is."""


@dataclass(frozen=True)
class Curve:
    """A curve that is not a result row: certified steps, or the learning of one agent."""

    environment: str
    agent: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Film:
    """A short looping picture of an agent at work."""

    environment: str
    agent: str
    title: str
    caption: str
    source: str
    """A data URI."""


@dataclass
class ReportData:
    """Everything a page is made of."""

    sources: list[Source] = field(default_factory=list)
    rows: list[ResultRow] = field(default_factory=list)
    summary: list[SummaryRow] = field(default_factory=list)
    certified: list[Curve] = field(default_factory=list)
    learning: list[Curve] = field(default_factory=list)
    films: list[Film] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds of the jobs that give no rows (training, fitting)."""
    claims: list[tuple[str, str]] = field(default_factory=list)
    """(what, sentence) of the certificates."""


def gather(paths: Sequence[Path], films: int = MOST_FILMS) -> ReportData:
    """Read every source, with at most so many films; each kind of wrong path gives one sentence."""
    if not paths:
        raise UserError("name at least one study folder, run folder or results file")
    loose = ReportData()
    parts = {"files": loose}
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        if path.is_file():
            rows = read_rows(path)
            loose.rows += rows
            command = next((r.command for r in rows if r.command), "")
            loose.sources.append(Source(path.name, RESULTS_FILE, command, f"{len(rows)} rows"))
        elif (path / "study.json").exists():
            part = ReportData()
            _study(path, part)
            name = part.sources[0].name
            parts[str(path) if name in parts else name] = part
        elif (path / "progress.csv").exists() or list(path.glob("*/progress.csv")):
            _run(path, loose)
        else:
            raise UserError(f"{path}: neither a study folder, a run folder nor a results file")
    loose.summary = summarise(loose.rows)
    data = ReportData()
    for part in _told_apart(
        {name: part for name, part in parts.items() if part is not loose} | {"files": loose}
    ):
        for f in fields(ReportData):
            mine, new = getattr(data, f.name), getattr(part, f.name)
            setattr(data, f.name, mine | new if isinstance(mine, dict) else mine + new)
    data.films = data.films[:films]
    if not data.rows and not data.learning:
        raise UserError("there is nothing to report yet: no finished job, no results, no training progress")
    return data


def _told_apart(parts: Mapping[str, ReportData]) -> list[ReportData]:
    """Where two sources mean different agents by one name, `ppo` becomes `ppo @SOURCE` in both."""
    known = {name: _digests(part) for name, part in parts.items()}
    out = []
    for name, part in parts.items():
        lists: dict[str, Any]
        twice = {
            key
            for key, mine in known[name].items()
            for other, theirs in known.items()
            if other != name and key in theirs and not mine & theirs[key]
        }

        def named(items: list[Any], name: str = name, twice: set[tuple[str, str]] = twice) -> list[Any]:
            return [
                replace(item, agent=f"{item.agent} @{name}")
                if (item.environment, item.agent) in twice
                else item
                for item in items
            ]

        lists = {
            key: named(getattr(part, key)) for key in ("rows", "summary", "certified", "learning", "films")
        }
        out.append(replace(part, **lists))
    return out


def _digests(part: ReportData) -> dict[tuple[str, str], set[str]]:
    """(environment, name) -> digests of the agents of that name."""
    found: dict[tuple[str, str], set[str]] = {}
    for row in part.rows:
        if row.agent_hash:
            found.setdefault((row.environment, row.agent), set()).add(row.agent_hash)
    return found


def headline(data: ReportData) -> str:
    """A title for the page where none is given."""
    titles = [s.title for s in data.sources if s.title not in ("", RESULTS_FILE)] or ["Results"]
    return " and ".join(dict.fromkeys(titles[:2]))


def _study(path: Path, data: ReportData) -> None:
    study, graph, store, command = open_study(path)
    outlook = look(plan(restricted(study, asked_for(store))), store)
    facts = f"{study.scale}; protocol {study.protocol}; {outlook.done} of {outlook.total} jobs done"
    rows = study_rows(graph, store)
    data.sources.append(Source(study.name, study.title or study.name, command, facts))
    data.rows += rows
    data.summary += summarise(rows, selected_agents(graph, store))
    data.failures |= study_failures(path)
    shown = {(key, name): labels for (key, name), labels in graph.rows.items() if store.is_done(key)}
    for (key, name), labels in shown.items():
        artefacts = (store.done(key) or {}).get("artefacts", {})
        folder, place = store.folder(key), labels.get("environment", "")
        if "curve" in artefacts:
            data.certified += _certified(folder / str(artefacts["curve"]), place, name)
        for sentence in artefacts.get("summary", []):
            data.claims.append((f"{name} on {place}", str(sentence)))
        for film in artefacts.get("films", []):
            data.films += _film(folder, film, place, name)
    for key, job in graph.jobs.items():
        done = store.done(key)
        if done is not None and job.kind in ("train", "fit"):
            name = "training" if job.kind == "train" else "fitting attacks"
            data.spent[name] = data.spent.get(name, 0.0) + float(done["wall_time"])
        if job.kind == "train" and done is not None:
            for run in sorted(store.folder(key).glob("run/**/progress.csv")):
                data.learning += _learning(run, job.params["environment"], job.params["method"])


def _run(path: Path, data: ReportData) -> None:
    for progress in [path / "progress.csv", *sorted(path.glob("*/progress.csv"))]:
        if not progress.exists():
            continue
        config = _object(progress.parent / "config.json")
        place = str(config.get("env_id") or config.get("env") or "")
        method = str(config.get("method", progress.parent.name))
        data.learning += _learning(progress, place, method)
        data.sources.append(
            Source(str(progress.parent), f"training of {method} on {place}", "", "run folder")
        )


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _learning(path: Path, place: str, method: str) -> list[Curve]:
    """The pool's return over training; thinned to what a picture can show."""
    points = []
    with path.open(encoding="utf-8") as stream:
        for line in csv.DictReader(stream):
            value = _float(line.get("return")) if line.get("return") else _float(line.get("eval_return"))
            step = _float(line.get("step"))
            if value is not None and step is not None:
                points.append((step, value))
    if len(points) < 2:
        return []
    stride = max(1, len(points) // 150)
    kept = points[::stride] + ([points[-1]] if (len(points) - 1) % stride else [])
    return [Curve(place, method, tuple(p[0] for p in kept), tuple(p[1] for p in kept))]


def _float(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _certified(path: Path, place: str, name: str) -> list[Curve]:
    found = _object(path)
    x, y = found.get("grid"), found.get("curve")
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y) or not x:
        return []
    return [Curve(place, name, tuple(map(float, x)), tuple(map(float, y)))]


def _film(folder: Path, film: dict[str, Any], place: str, name: str) -> list[Film]:
    path = folder / str(film.get("file", ""))
    kind = MEDIA.get(path.suffix)
    if kind is None or not path.is_file():
        return []
    encoded = base64.b64encode(path.read_bytes()).decode("ascii")
    source = f"data:{kind};base64,{encoded}"
    return [Film(place, name, str(film.get("title", "")), str(film.get("caption", "")), source)]
