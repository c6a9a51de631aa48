"""Runs the graph of a study on a backend: whatever is done stays done, whatever fails is named."""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smoothrl.studies.local import Backend
from smoothrl.studies.plan import JobSpec, Plan
from smoothrl.studies.store import DiskFullError, Store
from smoothrl.studies.work import Finished

RETRIES = 2
"""A job whose process died is tried so many times again."""


@dataclass(frozen=True)
class Outlook:
    """How far a study is."""

    total: int
    done: int
    failed: int
    blocked: int
    """Cannot run because a job they need has failed."""
    running: tuple[str, ...]
    """Labels, with progress where the job tells it."""
    seconds_left: float | None
    """Estimate; None where nothing is known yet."""

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed - self.blocked


@dataclass(frozen=True)
class Outcome:
    """How a run of a study ended."""

    outlook: Outlook
    failures: Mapping[str, str] = field(default_factory=dict)
    """Label -> why."""
    interrupted: bool = False
    wall_time: float = 0.0

    @property
    def complete(self) -> bool:
        return self.outlook.done == self.outlook.total


class Estimator:
    """Seconds left, from the plan's rough costs corrected by what finished jobs of each kind really took."""

    def __init__(self) -> None:
        self._took: dict[str, list[float]] = {}

    def learn(self, job: JobSpec, wall_time: float) -> None:
        entry = self._took.setdefault(self._kind(job), [0.0, 0.0])
        entry[0] += wall_time
        entry[1] += job.cost

    def seconds(self, job: JobSpec) -> float:
        took, cost = self._took.get(self._kind(job), (0.0, 0.0))
        if cost == 0.0:
            took, cost = (sum(v[i] for v in self._took.values()) for i in (0, 1))
        return job.cost * (took / cost if cost > 0.0 else 1.0)

    @staticmethod
    def _kind(job: JobSpec) -> str:
        return (
            f"{job.kind}/{job.params.get('metric') or job.params.get('attack') or job.params.get('method')}"
        )


class Run:
    """One run of a plan in a folder."""

    def __init__(
        self,
        graph: Plan,
        store: Store,
        backend: Backend,
        *,
        on_change: Callable[[Outlook], None] | None = None,
        on_finished: Callable[[JobSpec, Finished], None] | None = None,
        poll: float = 0.5,
    ) -> None:
        self.graph, self.store, self.backend = graph, store, backend
        self._on_change, self._on_finished, self._poll = on_change, on_finished, poll
        self._estimator = Estimator()
        self._running: dict[str, JobSpec] = {}
        self._done: set[str] = set()
        self._failed: dict[str, str] = {}
        self._blocked: set[str] = set()
        self._lost: Counter[str] = Counter()
        self._order = {key: i for i, key in enumerate(graph.jobs)}
        self._dependents: dict[str, list[str]] = {}
        self._missing: dict[str, int] = {}
        self._ready: list[tuple[int, str]] = []

    def go(self) -> Outcome:
        """Until all is done, or nothing more can be. Ctrl-C ends it cleanly; what is finished is kept."""
        started, interrupted = time.monotonic(), False
        self._prepare()
        self._tell()
        try:
            while self._ready or self._running:
                self._fill()
                for finished in self.backend.wait(self._poll):
                    self._settle(finished)
                self._tell()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self.backend.close()
        failures = {self.graph.jobs[k].label or k: why for k, why in self._failed.items()}
        return Outcome(self.outlook(), failures, interrupted, time.monotonic() - started)

    def outlook(self) -> Outlook:
        left = [
            j for k, j in self.graph.jobs.items() if k not in self._done | set(self._failed) | self._blocked
        ]
        seconds = sum(self._estimator.seconds(job) for job in left) / max(1, self.backend.slots)
        labels = tuple(describe(job, self.store.progress(key)) for key, job in self._running.items())
        return Outlook(
            len(self.graph), len(self._done), len(self._failed), len(self._blocked), labels, seconds
        )

    def _prepare(self) -> None:
        for key, job in self.graph.jobs.items():
            found = self.store.done(key)
            if found is not None:
                self._done.add(key)
                self._estimator.learn(job, float(found["wall_time"]))
        for key, job in self.graph.jobs.items():
            if key in self._done:
                continue
            missing = [need for need in set(job.needs.values()) if need not in self._done]
            self._missing[key] = len(missing)
            for need in missing:
                self._dependents.setdefault(need, []).append(key)
            if not missing:
                heapq.heappush(self._ready, (self._order[key], key))

    def _fill(self) -> None:
        while self._ready and len(self._running) < self.backend.slots:
            _, key = heapq.heappop(self._ready)
            job = self.graph.jobs[key]
            self._running[key] = job
            self.backend.submit(job)

    def _settle(self, finished: Finished) -> None:
        key = finished.key
        job = self._running.pop(key)
        if finished.status == "disk":
            raise DiskFullError(
                f"{self.store.path}: the disk is full ({finished.error}); {len(self._done)} finished jobs "
                "are kept. Free some space and run the same command again"
            )
        if finished.status == "lost":
            self._lost[key] += 1
            if self._lost[key] <= RETRIES:
                heapq.heappush(self._ready, (self._order[key], key))
                return
        if self._on_finished is not None:
            self._on_finished(job, finished)
        if finished.status == "done":
            self._done.add(key)
            self._estimator.learn(job, finished.wall_time)
            for dependent in self._dependents.get(key, ()):
                self._missing[dependent] -= 1
                if self._missing[dependent] == 0:
                    heapq.heappush(self._ready, (self._order[dependent], dependent))
        else:
            self._failed[key] = finished.error
            self._block(key)

    def _block(self, key: str) -> None:
        queue = deque(self._dependents.get(key, ()))
        while queue:
            dependent = queue.popleft()
            if dependent not in self._blocked:
                self._blocked.add(dependent)
                queue.extend(self._dependents.get(dependent, ()))

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change(self.outlook())


def look(graph: Plan, store: Store) -> Outlook:
    """How far a study is, from its folder alone; a run may be at work in it."""
    estimator, done, failed = Estimator(), set(), set()
    running = []
    for key, job in graph.jobs.items():
        data = store.done(key)
        if data is not None:
            done.add(key)
            estimator.learn(job, float(data["wall_time"]))
        elif store.failure(key) is not None:
            failed.add(key)
    for key, job in graph.jobs.items():
        progress = store.progress(key) if key not in done else None
        if progress is not None and time.time() - float(progress.get("time", 0.0)) < 300.0:
            running.append(describe(job, progress))
    blocked: set[str] = set()
    for key, job in graph.jobs.items():
        if key not in done and set(job.needs.values()) & (failed | blocked):
            blocked.add(key)
    left = [job for key, job in graph.jobs.items() if key not in done | failed | blocked]
    seconds = sum(estimator.seconds(job) for job in left) if done or not left else None
    return Outlook(len(graph), len(done), len(failed), len(blocked), tuple(running), seconds)


def describe(job: JobSpec, progress: Mapping[str, Any] | None) -> str:
    text = job.label or job.key
    if progress and progress.get("total"):
        text += f" {100.0 * progress['done'] / progress['total']:.0f} %"
        if progress.get("note"):
            text += f" ({progress['note']})"
    return text
