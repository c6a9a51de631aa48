"""A real two-node Ray cluster on loopback: the same results, a killed node, an address that is dead."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smoothrl.errors import UserError
from smoothrl.studies.local import Inline
from smoothrl.studies.plan import Plan
from smoothrl.studies.runner import Outcome, Run
from smoothrl.studies.store import Store
from smoothrl.studies.work import Settings
from studies.test_runner import TESTS, chain, run, slow_graph, values

RAY = Path(sys.executable).with_name("ray")
needs_ray = pytest.mark.skipif(not RAY.exists(), reason='Ray is not installed: pip install "smoothrl[ray]"')
QUIET = {"RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(TESTS)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A head without processors and workers with one each, so that jobs run on the workers alone."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._folder = folder
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._start(
            "--head", f"--port={self.address.partition(':')[2]}", "--num-cpus=0", "--include-dashboard=false"
        )
        self._wait_for_head()
        self.add_worker()

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        log = (self._folder / f"node-{len(self.nodes)}.log").open("wb")
        node = subprocess.Popen(
            [
                str(RAY),
                "start",
                "--block",
                "--node-ip-address=127.0.0.1",
                "--object-store-memory=80000000",
                *options,
            ],
            env={**os.environ, **QUIET},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.nodes.append(node)
        return node

    def _wait_for_head(self) -> None:
        host, _, port = self.address.partition(":")
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                time.sleep(0.2)
        raise TimeoutError("the Ray head did not start")

    def add_worker(self) -> None:
        self._start(f"--address={self.address}", "--num-cpus=1")

    def kill_worker(self, number: int) -> None:
        """kill -9 of a whole node: its raylet and all its workers."""
        stop(self.nodes[number])

    def close(self) -> None:
        for node in reversed(self.nodes):
            stop(node)


def stop(node: subprocess.Popen[bytes]) -> None:
    if node.poll() is None:
        listed = subprocess.run(
            ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
        ).stdout
        parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
        family = [node.pid]
        for member in family:
            family += [pid for pid, parent in parents if parent == member]
        for pid in family[1:] + family[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    node.wait(20)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("ray"))
    yield made
    made.close()
    shutil.rmtree("/tmp/ray/session_latest", ignore_errors=True)


def run_on(cluster: Cluster, graph: Plan, folder: Path) -> Outcome:
    from smoothrl.studies.ray_backend import RayBackend

    os.environ.update(QUIET)
    backend = RayBackend(str(folder), Settings(), address=cluster.address, slots=2)
    return Run(graph, Store(folder), backend, poll=0.2).go()


@needs_ray
def test_same_results_as_without_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    graph = chain()
    outcome = run_on(cluster, graph, tmp_path / "ray")
    assert outcome.complete, outcome.failures
    assert run(graph, tmp_path / "inline", Inline(str(tmp_path / "inline"), Settings())).complete
    assert values(graph, tmp_path / "ray") == values(graph, tmp_path / "inline")


@needs_ray
def test_a_killed_node_loses_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The only working node is killed in the middle; another joins; the study ends complete."""
    graph = slow_graph(0.5)
    killed: list[int] = []

    def interfere() -> None:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("jobs/*/done.json"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        killed.append(len(list(tmp_path.glob("jobs/*/done.json"))))
        cluster.kill_worker(1)
        cluster.add_worker()

    thread = threading.Thread(target=interfere)
    thread.start()
    outcome = run_on(cluster, graph, tmp_path)
    thread.join()
    assert 3 <= killed[0] < len(graph)
    assert outcome.complete, outcome.failures


def test_an_address_that_does_not_answer() -> None:
    pytest.importorskip("ray")
    from smoothrl.studies.ray_backend import RayBackend

    started = time.monotonic()
    with pytest.raises(UserError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        RayBackend("/tmp", Settings(), address="127.0.0.1:1")
    with pytest.raises(UserError, match="expected auto, HOST:PORT"):
        RayBackend("/tmp", Settings(), address="nonsense")
    assert time.monotonic() - started < 10.0


def test_without_ray_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from smoothrl.studies.ray_backend import load_ray

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"smoothrl\[ray\]"):
        load_ray()
