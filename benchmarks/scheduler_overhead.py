"""What the scheduler of studies itself costs: a thousand jobs that do nothing, planned, run and recorded.

    python benchmarks/scheduler_overhead.py [--jobs 1000] [--quick]

Two jobs of three need the one before them. Worker processes are started, every job is a folder with its
record on the disk, and the same plan is run once more to see what finding everything done costs."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from common import record

from smoothrl.studies.local import Local
from smoothrl.studies.plan import JobSpec, Plan
from smoothrl.studies.runner import Run
from smoothrl.studies.store import Store
from smoothrl.studies.work import Settings

TARGET = 20.0


def planned(jobs: int) -> Plan:
    graph, previous = Plan(), ""
    for i in range(jobs):
        previous = graph.add(JobSpec("nothing", {"i": i}, {"before": previous} if i % 3 else {}))
    return graph


def run(jobs: int, folder: Path, workers: int) -> float:
    started = time.perf_counter()
    graph = planned(jobs)
    outcome = Run(graph, Store(folder), Local(str(folder), Settings(), workers)).go()
    assert outcome.complete, outcome.failures
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a hundred jobs, nothing kept")
    options = parser.parse_args()
    jobs = 100 if options.quick else options.jobs
    with tempfile.TemporaryDirectory() as name:
        took = run(jobs, Path(name), options.workers)
        again = run(jobs, Path(name), options.workers)
    detail = {"jobs": jobs, "workers": options.workers, "milliseconds_a_job": round(1000 * took / jobs, 2)}
    detail["seconds_when_all_is_done"] = round(again, 3)
    if options.quick:
        print(detail)
        return
    what = f"{jobs} jobs that do nothing, planned, run on {options.workers} processes and recorded"
    record("scheduler_overhead", what, took, f"< {TARGET:g}", took < TARGET, detail, unit="s")


if __name__ == "__main__":
    main()
