"""Running, watching and reading studies: what the command line and the report call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from smoothrl.errors import UserError
from smoothrl.results import ResultRow, write_rows
from smoothrl.studies.declare import Study, restricted, study_from
from smoothrl.studies.local import Backend, Inline, Local
from smoothrl.studies.plan import JobSpec, Plan, plan
from smoothrl.studies.runner import Outcome, Outlook, Run, look
from smoothrl.studies.store import DiskFullError, Store, disk_full
from smoothrl.studies.summary import SummaryRow, averages, summarise, summary_csv
from smoothrl.studies.work import Finished, Settings

DEFAULT_FOLDER = Path("runs") / "studies"


def default_workers() -> int:
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def make_backend(
    name: Literal["local", "ray", "inline"],
    root: Path,
    settings: Settings,
    workers: int | None = None,
    address: str | None = None,
) -> Backend:
    """The place where jobs run."""
    if address is not None and name != "ray":
        raise UserError("--address names a Ray cluster; it goes with --backend ray")
    if name == "ray":
        from smoothrl.studies.ray_backend import RayBackend

        return RayBackend(str(root.resolve()), settings, address=address, slots=workers)
    if name == "inline":
        return Inline(str(root), settings)
    return Local(str(root), settings, workers or default_workers())


def run_study(
    study: Study,
    out: str | Path,
    *,
    only: Sequence[str] = (),
    backend: Literal["local", "ray", "inline"] = "local",
    workers: int | None = None,
    address: str | None = None,
    settings: Settings | None = None,
    on_change: Callable[[Outlook], None] | None = None,
    on_finished: Callable[[JobSpec, Finished], None] | None = None,
) -> Outcome:
    """Run what is not done yet, then write the tables; whatever happens, finished jobs stay.

    With `only`, just the named methods, environments or metrics are run; the tables keep what else is done.
    """
    graph, settings = plan(restricted(study, only)), settings or Settings()
    store = Store(out)
    store.check(study)
    with store.lock():
        Store.create(out, study, settings.command, only)
        place = make_backend(backend, store.path, settings, workers, address)
        try:
            outcome = Run(graph, store, place, on_change=on_change, on_finished=on_finished).go()
        finally:
            tabulate(plan(study), store)
    return outcome


def tabulate(graph: Plan, store: Store) -> list[SummaryRow]:
    """Write results.csv and summary.csv from the finished jobs."""
    rows = study_rows(graph, store)
    summary = summarise(rows, selected_agents(graph, store))
    try:
        write_rows(rows, store.path / "results.csv")
        (store.path / "summary.csv").write_text(summary_csv(summary + averages(summary)), encoding="utf-8")
    except (OSError, UserError) as error:
        if disk_full(error):
            raise DiskFullError(
                f"{store.path}: the disk is full; the finished jobs are kept. Free some space and run the "
                "same command again"
            ) from error
        raise
    return summary


def study_rows(graph: Plan, store: Store) -> list[ResultRow]:
    """Every row of the finished jobs, in the order of the plan."""
    return [row for (key, _), labels in graph.rows.items() for row in store.rows(key, labels)]


def selected_agents(graph: Plan, store: Store) -> list[str]:
    """Digests of the agents that stand for their methods."""
    done = (store.done(key) for key, job in graph.jobs.items() if job.kind == "select")
    return [str(d["artefacts"]["digest"]) for d in done if d is not None and "digest" in d["artefacts"]]


def open_study(folder: str | Path) -> tuple[Study, Plan, Store, str]:
    """The study in a folder, its graph, and the command that ran it."""
    store = Store(folder)
    data = store.declaration()
    if data is None:
        raise UserError(f"{folder}: no study here; `smoothrl study run NAME --out {folder}` makes one")
    study = study_from(data["study"], f"{folder}/study.json")
    return study, plan(study), store, str(data.get("command", ""))


def asked_for(store: Store) -> list[str]:
    """What the last run in the folder was restricted to."""
    return [str(token) for token in (store.declaration() or {}).get("only", [])]


def study_status(folder: str | Path) -> tuple[Study, Outlook, bool]:
    """The study in a folder, how far it is, and whether a run is at work."""
    study, _, store, _ = open_study(folder)
    return study, look(plan(restricted(study, asked_for(store))), store), store.locked()


def study_failures(folder: str | Path) -> dict[str, str]:
    """Label -> why, for the jobs of the study that failed."""
    _, graph, store, _ = open_study(folder)
    found = {
        job.label or key: store.failure(key) for key, job in graph.jobs.items() if not store.is_done(key)
    }
    return {label: why for label, why in found.items() if why is not None}
