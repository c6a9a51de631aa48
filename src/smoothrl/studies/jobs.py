"""The kinds of jobs."""

from __future__ import annotations

from smoothrl.results import ResultRow
from smoothrl.studies.plan import JobSpec
from smoothrl.studies.work import Context, JobFunction


def nothing(job: JobSpec, context: Context) -> list[ResultRow]:
    """Does nothing: for measuring what the scheduler itself costs."""
    return []


JOBS: dict[str, JobFunction] = {"nothing": nothing}
