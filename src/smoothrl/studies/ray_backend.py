"""Backend `ray`: the same jobs on a Ray cluster whose machines share the study's folder.

A job whose machine dies is lost and tried again elsewhere by the runner, like one whose local process died.
"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path
from typing import Any

from smoothrl.errors import UserError
from smoothrl.studies.plan import JobSpec
from smoothrl.studies.work import Finished, Settings, execute, pin_threads

CONNECT_SECONDS = 5.0


def load_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError('the ray backend needs the extra: pip install "smoothrl[ray]"') from error
    return ray


def check_address(address: str) -> None:
    """A clear sentence within seconds, instead of minutes of retries, where nothing answers."""
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--address {address!r}: expected auto, HOST:PORT or ray://HOST:PORT")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS):
            pass
    except OSError as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); is the head running "
            "(`ray start --head`), and is the port reachable from here?"
        ) from error


def connect(address: str | None) -> Any:
    """Ray, connected to the cluster (or to a fresh local one where no address is given)."""
    ray = load_ray()
    if address is not None:
        check_address(address)
    if ray.is_initialized():
        return ray
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(
            address=None if address in (None, "local") else address,
            include_dashboard=False if address in (None, "local") else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        raise UserError(f"cannot join the Ray cluster at {address}: {str(error).splitlines()[0]}") from error
    return ray


def _task(data: dict[str, Any], root: str, settings: Settings, token: str) -> Finished:
    pin_threads(settings.threads)
    if not (Path(root) / token).exists():
        return Finished(str(data["key"]), "failed", f"the machine {socket.gethostname()} does not see {root}")
    return execute(data, root, settings)


class RayBackend:
    """Jobs as Ray tasks."""

    def __init__(
        self, root: str, settings: Settings, *, address: str | None = None, slots: int | None = None
    ) -> None:
        self._ray = connect(address)
        self._root, self._settings, self._fixed = root, settings, slots
        Path(root).mkdir(parents=True, exist_ok=True)
        self._token = f".visible-{uuid.uuid4().hex}"
        (Path(root) / self._token).touch()
        self._run = self._ray.remote(_task)
        self._refs: dict[Any, JobSpec] = {}

    @property
    def slots(self) -> int:
        """As many jobs as the cluster has processors for now (machines may come and go)."""
        if self._fixed is not None:
            return self._fixed
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)) // max(1, self._settings.threads))

    def submit(self, job: JobSpec) -> None:
        task = self._run.options(
            num_cpus=self._settings.threads,
            max_retries=0,
            name=job.label or job.key,
            scheduling_strategy="SPREAD",
        )
        ref = task.remote({**job.data(), "key": job.key}, self._root, self._settings, self._token)
        self._refs[ref] = job

    def wait(self, timeout: float) -> list[Finished]:
        if not self._refs:
            return []
        ready, _ = self._ray.wait(list(self._refs), num_returns=1, timeout=timeout)
        if ready:
            more, _ = self._ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0)
            ready = list({*ready, *more})
        return [self._collect(ref) for ref in ready]

    def _collect(self, ref: Any) -> Finished:
        job = self._refs.pop(ref)
        try:
            finished: Finished = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            return Finished(job.key, "lost", f"its machine or process died ({type(error).__name__})")
        return finished

    def close(self) -> None:
        for ref in self._refs:
            self._ray.cancel(ref, force=True)
        self._refs = {}
        (Path(self._root) / self._token).unlink(missing_ok=True)
        self._ray.shutdown()
