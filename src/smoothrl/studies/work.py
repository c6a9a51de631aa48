"""Doing one job: the same function in a local process, on a Ray node, or in the calling process."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from smoothrl.errors import UserError, unknown
from smoothrl.results import ResultRow
from smoothrl.studies.plan import JobSpec, job_from
from smoothrl.studies.store import Store, Ticker, disk_full


@dataclass(frozen=True)
class Settings:
    """What a job may use without its result depending on it."""

    threads: int = 1
    """Threads of one job."""
    device: str = "cpu"
    """Where networks run."""
    files: str = ""
    """Folder with agents trained elsewhere."""
    adopt: tuple[str, ...] = ()
    """Folders with finished trainings that a training job may take over."""
    command: str = ""
    """The command that makes the study's numbers, for the results."""


@dataclass(frozen=True)
class Context:
    """What a job function is given beside its specification."""

    folder: Path
    """Its own folder; what it writes there stays."""
    inputs: Mapping[str, Path]
    """Role -> folder of the job that plays it."""
    tick: Callable[..., None]
    """tick(done, total, note): how far it is."""
    settings: Settings = field(default_factory=Settings)
    artefacts: dict[str, Any] = field(default_factory=dict)
    """Small facts for later jobs and for the report, kept in done.json."""
    needs_done: Callable[[str], Mapping[str, Any]] = lambda role: {}
    """Role -> content of that job's done.json."""


JobFunction = Callable[[JobSpec, Context], list[ResultRow]]


@dataclass(frozen=True)
class Finished:
    """How a job ended."""

    key: str
    status: str
    """done, failed, disk (nothing can be written) or lost (its process died)."""
    error: str = ""
    wall_time: float = 0.0


def resolve(kind: str) -> JobFunction:
    """The function of a job kind: a name in `jobs.JOBS`, or `module:function`."""
    module, _, name = kind.rpartition(":")
    if module:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    from smoothrl.studies.jobs import JOBS

    if kind not in JOBS:
        raise unknown("kind of job", kind, JOBS)
    return JOBS[kind]


def execute(data: Mapping[str, Any], root: str, settings: Settings) -> Finished:
    """Do one job and record it; a job that is done already is left alone. Never raises an `Exception`."""
    job = job_from(data)
    key, store = job.key, Store(root)
    started = time.monotonic()
    try:
        done = store.done(key)
        if done is not None:
            return Finished(key, "done", wall_time=float(done["wall_time"]))
        folder = store.folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.json").write_text(json.dumps(job.data()), encoding="utf-8")
        inputs = {role: store.folder(need) for role, need in job.needs.items()}
        needs = dict(job.needs)
        context = Context(
            folder,
            inputs,
            Ticker(folder),
            settings,
            needs_done=lambda role: store.done(needs[role]) or {},
        )
        rows = resolve(job.kind)(job, context)
        wall_time = time.monotonic() - started
        store.finish(key, rows, wall_time, context.artefacts)
        return Finished(key, "done", wall_time=wall_time)
    except Exception as error:
        return _failed(job, store, error, time.monotonic() - started)


def _failed(job: JobSpec, store: Store, error: Exception, wall_time: float) -> Finished:
    full = disk_full(error)
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    folder = store.folder(job.key)
    try:
        (folder / "progress.json").unlink(missing_ok=True)
        content = {"error": text, "label": job.label, "traceback": traceback.format_exc()}
        (folder / "failed.json").write_text(json.dumps(content), encoding="utf-8")
    except OSError as second:
        full = full or disk_full(second)
    return Finished(job.key, "disk" if full else "failed", text, wall_time)


def pin_threads(threads: int) -> None:
    """One job, so many threads: set before any numerical library is loaded."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
