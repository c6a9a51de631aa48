"""Jobs that the runner's tests are played with: `studies.toy_jobs:NAME`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from smoothrl.errors import UserError
from smoothrl.results import ResultRow
from smoothrl.studies.plan import JobSpec
from smoothrl.studies.work import Context


def draw(job: JobSpec, context: Context) -> list[ResultRow]:
    """Numbers that depend on the seed and on the jobs it needs."""
    before = sum(float((folder / "value.txt").read_text()) for folder in context.inputs.values())
    returns = np.random.default_rng(job.params["seed"]).normal(before, 1.0, 5)
    (context.folder / "value.txt").write_text(repr(float(returns.mean())))
    time.sleep(float(job.params.get("sleep", 0.0)))
    context.tick(1, 2, "half")
    return [ResultRow("Toy-v0", "toy", "clean", float(returns.mean()), returns=tuple(returns.tolist()))]


def refuse(job: JobSpec, context: Context) -> list[ResultRow]:
    raise UserError("this job never works")


def crash(job: JobSpec, context: Context) -> list[ResultRow]:
    return [ResultRow("Toy-v0", "toy", "clean", 1.0 / (job.params["seed"] * 0))]


def full(job: JobSpec, context: Context) -> list[ResultRow]:
    """A real 'no space left on device'."""
    with Path("/dev/full").open("w") as stream:
        stream.write("x" * 100_000)
    return []


def die_once(job: JobSpec, context: Context) -> list[ResultRow]:
    """Its process is killed the first time."""
    mark = context.folder / "tried"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(job, context)


def die(job: JobSpec, context: Context) -> list[ResultRow]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []
