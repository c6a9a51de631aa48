"""Backend `local`: worker processes with pinned threads; a worker that dies is replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from smoothrl.studies.plan import JobSpec
from smoothrl.studies.work import Finished, Settings, execute, pin_threads


class Backend(Protocol):
    """What the runner needs: places to put jobs, and news of how they ended."""

    @property
    def slots(self) -> int:
        """Jobs it can hold at a time."""
        ...

    def submit(self, job: JobSpec) -> None: ...

    def wait(self, timeout: float) -> list[Finished]:
        """Jobs that ended since the last call; at most `timeout` seconds if none has."""
        ...

    def close(self) -> None:
        """Stop what is running, at once."""
        ...


class Inline:
    """No processes: jobs are done in the calling one. For debugging and for tests."""

    slots = 1

    def __init__(self, root: str, settings: Settings) -> None:
        self._root, self._settings = root, settings
        self._queue: list[JobSpec] = []

    def submit(self, job: JobSpec) -> None:
        self._queue.append(job)

    def wait(self, timeout: float) -> list[Finished]:
        jobs, self._queue = self._queue, []
        return [execute(job.data(), self._root, self._settings) for job in jobs]

    def close(self) -> None:
        self._queue = []


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: JobSpec | None = None


def _follow(parent: int) -> None:
    """End with the study's own process, however that ended: nobody else may write into its folder."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _serve(pipe: Connection, root: str, settings: Settings, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    pin_threads(settings.threads)
    while True:
        try:
            data = pipe.recv()
        except (EOFError, OSError):
            return
        if data is None:
            return
        pipe.send(execute(data, root, settings))


@contextmanager
def _pinned(threads: int) -> Iterator[None]:
    """Children inherit the thread limits; the parent's own environment is put back."""
    before = dict(os.environ)
    pin_threads(threads)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Local:
    """`workers` processes, started when first needed and kept for many jobs."""

    def __init__(self, root: str, settings: Settings, workers: int) -> None:
        self._root, self._settings, self._count = root, settings, max(1, workers)
        self._workers: list[_Worker] = []
        self._context = multiprocessing.get_context("spawn")

    @property
    def slots(self) -> int:
        return self._count

    def submit(self, job: JobSpec) -> None:
        worker = next((w for w in self._workers if w.job is None), None) or self._start()
        worker.job = job
        try:
            worker.pipe.send(job.data())
        except OSError:
            worker.pipe.close()

    def wait(self, timeout: float) -> list[Finished]:
        busy = [w for w in self._workers if w.job is not None]
        if not any(w.pipe.closed for w in busy):
            wait([w.pipe for w in busy], timeout)
        collected = [self._collect(worker) for worker in busy]
        return [finished for finished in collected if finished is not None]

    def _collect(self, worker: _Worker) -> Finished | None:
        assert worker.job is not None
        try:
            if not worker.pipe.closed and not worker.pipe.poll():
                return None
            finished: Finished = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(5.0)
            code = worker.process.exitcode
            worker.pipe.close()
            self._workers.remove(worker)
            return Finished(worker.job.key, "lost", f"its process ended with exit code {code}")
        worker.job = None
        return finished

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, self._root, self._settings, os.getpid()), daemon=False
        )
        with _pinned(self._settings.threads):
            process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        for worker in self._workers:
            if worker.job is None and not worker.pipe.closed:
                try:
                    worker.pipe.send(None)
                except OSError:
                    worker.process.terminate()
            else:
                worker.process.terminate()
        for worker in self._workers:
            worker.process.join(5.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers = []
