"""The scheduler: order, resuming, failures, dying processes, a full disk, the lock, and its own cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smoothrl.errors import UserError
from smoothrl.studies.local import Backend, Inline, Local
from smoothrl.studies.plan import JobSpec, Plan
from smoothrl.studies.runner import Outcome, Run, look
from smoothrl.studies.store import DiskFullError, Store
from smoothrl.studies.work import Finished, Settings, execute

TOY = f"{__package__}.toy_jobs"
TESTS = Path(__file__).parents[1]


def toy(name: str, seed: int = 0, needs: dict[str, str] | None = None, **params: object) -> JobSpec:
    return JobSpec(
        f"{TOY}:{name}", {"seed": seed, **params}, needs or {}, f"{name} {seed}", tags={"agent": "toy"}
    )


def chain(count: int = 6) -> Plan:
    graph = Plan()
    first = graph.add(toy("draw", 0))
    middle = {f"m{i}": graph.add(toy("draw", i, {"before": first})) for i in range(1, count - 1)}
    graph.add(toy("draw", count - 1, middle))
    return graph


def run(graph: Plan, folder: Path, backend: Backend | None = None) -> Outcome:
    return Run(graph, Store(folder), backend or Inline(str(folder), Settings()), poll=0.05).go()


def values(graph: Plan, folder: Path) -> list[object]:
    return [(Store(folder).done(key) or {}).get("rows") for key in graph.jobs]


def test_keys_name_what_the_result_depends_on() -> None:
    job = toy("draw", 1)
    assert job.key == toy("draw", 1).key
    assert job.key == JobSpec(job.kind, job.params, {}, "another label", 9.0, {"agent": "x"}).key
    assert job.key != toy("draw", 2).key
    assert toy("draw", 1, {"before": "a"}).key != toy("draw", 1, {"before": "b"}).key
    with pytest.raises(ValueError, match="not planned before"):
        Plan([toy("draw", 1, {"before": "nobody"})])


def test_same_results_on_every_backend(tmp_path: Path) -> None:
    graph = chain()
    assert run(graph, tmp_path / "inline").complete
    assert run(graph, tmp_path / "local", Local(str(tmp_path / "local"), Settings(), 2)).complete
    found = values(graph, tmp_path / "inline")
    assert found == values(graph, tmp_path / "local")
    assert all(found)


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    graph = chain()
    run(graph, tmp_path)
    stamps = [p.stat().st_mtime_ns for p in sorted(tmp_path.glob("jobs/*/done.json"))]
    again = run(graph, tmp_path)
    assert again.complete
    assert stamps == [p.stat().st_mtime_ns for p in sorted(tmp_path.glob("jobs/*/done.json"))]
    bigger = chain(7)
    assert len(set(bigger.jobs) & set(graph.jobs)) == 5
    assert run(bigger, tmp_path).complete


def test_a_failure_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    graph = Plan()
    bad = graph.add(toy("refuse"))
    blocked = graph.add(toy("draw", 1, {"before": bad}))
    graph.add(toy("draw", 2, {"before": blocked}))
    graph.add(toy("draw", 3))
    graph.add(toy("crash", 4))
    outcome = run(graph, tmp_path)
    assert (outcome.outlook.done, outcome.outlook.failed, outcome.outlook.blocked) == (1, 2, 2)
    assert outcome.failures["refuse 0"] == "this job never works"
    assert "ZeroDivisionError" in outcome.failures["crash 4"]
    seen = look(graph, Store(tmp_path))
    assert (seen.done, seen.failed, seen.blocked, seen.left) == (1, 2, 2, 0)
    record = json.loads((tmp_path / "jobs" / bad / "failed.json").read_text())
    assert "UserError" in record["traceback"]


def test_a_job_whose_process_dies_is_tried_again(tmp_path: Path) -> None:
    graph = Plan([toy("die_once", 1), toy("draw", 2)])
    assert run(graph, tmp_path, Local(str(tmp_path), Settings(), 2)).complete


def test_a_job_that_always_dies_is_given_up(tmp_path: Path) -> None:
    graph = Plan([toy("die"), toy("draw", 2)])
    outcome = run(graph, tmp_path, Local(str(tmp_path), Settings(), 1))
    assert outcome.outlook.done == 1
    assert "exit code -9" in outcome.failures["die 0"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk_keeps_what_is_finished(tmp_path: Path) -> None:
    graph = Plan([toy("draw", 1), toy("full", 2), toy("draw", 3)])
    with pytest.raises(DiskFullError, match=r"disk is full.*1 finished jobs are kept"):
        run(graph, tmp_path)
    mended = Plan([toy("draw", 1), toy("draw", 3)])
    assert run(mended, tmp_path).complete


def test_full_disk_when_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record itself cannot be written: no half record, and a clear end."""

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    graph = chain()
    with monkeypatch.context() as patch:
        patch.setattr("smoothrl.studies.store.os.fsync", refuse)
        with pytest.raises(DiskFullError, match="Free some space"):
            run(graph, tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))
    assert run(graph, tmp_path).complete


def test_lock_names_who_holds_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.lock():
        assert store.locked()
        with pytest.raises(UserError, match=f"process {os.getpid()} on"), Store(tmp_path).lock():
            pass
    assert not store.locked()
    with store.lock():
        pass


def test_interruption_keeps_what_is_finished(tmp_path: Path) -> None:
    class Interrupted(Inline):
        def wait(self, timeout: float) -> list[Finished]:
            out = super().wait(timeout)
            if Store(tmp_path).is_done(keys[2]):
                raise KeyboardInterrupt
            return out

    graph = chain()
    keys = list(graph.jobs)
    outcome = run(graph, tmp_path, Interrupted(str(tmp_path), Settings()))
    assert outcome.interrupted
    assert 1 < look(graph, Store(tmp_path)).done < 6
    assert run(graph, tmp_path).complete


def test_killed_study_goes_on(tmp_path: Path) -> None:
    """kill -9 of the whole process group in the middle; then the same results as unbroken."""
    code = (
        "import sys; from pathlib import Path\n"
        "from studies.test_runner import slow_graph, run, Local, Settings\n"
        "if __name__ == '__main__':\n"
        "    folder = Path(sys.argv[1]); run(slow_graph(), folder, Local(str(folder), Settings(), 2))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    folder = tmp_path / "study"
    process = subprocess.Popen([sys.executable, str(script), str(folder)], env=env, start_new_session=True)
    deadline = time.monotonic() + 60.0
    while len(list(folder.glob("jobs/*/done.json"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    graph = slow_graph()
    finished = look(graph, Store(folder)).done
    assert 4 <= finished < len(graph)
    assert run(graph, folder).complete
    assert run(graph, tmp_path / "unbroken").complete
    assert values(graph, folder) == values(graph, tmp_path / "unbroken")


def slow_graph(sleep: float = 0.1) -> Plan:
    return Plan(toy("draw", i, sleep=sleep) for i in range(16))


def test_execute_is_idempotent(tmp_path: Path) -> None:
    job = toy("draw", 5)
    first = execute(job.data(), str(tmp_path), Settings())
    (tmp_path / "jobs" / job.key / "value.txt").unlink()
    assert execute(job.data(), str(tmp_path), Settings()) == first
    assert not (tmp_path / "jobs" / job.key / "value.txt").exists()


def test_unknown_kind_is_a_failure_not_a_crash(tmp_path: Path) -> None:
    finished = execute(JobSpec("trian").data(), str(tmp_path), Settings())
    assert finished.status == "failed"
    assert "did you mean 'train'" in finished.error


def test_a_thousand_jobs_in_seconds(tmp_path: Path) -> None:
    """Planned, run on two processes and recorded; 20 s is the bound, about 1 s is measured."""
    started = time.monotonic()
    graph, previous = Plan(), ""
    for i in range(1000):
        previous = graph.add(JobSpec("nothing", {"i": i}, {"before": previous} if i % 3 else {}))
    outcome = run(graph, tmp_path, Local(str(tmp_path), Settings(), 2))
    assert outcome.complete
    assert time.monotonic() - started < 20.0
