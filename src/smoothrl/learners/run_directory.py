"""The run directory: config.json, the agents, progress.csv, TensorBoard events, and the state for resuming.

Everything is written atomically, nothing is pickled. The state keeps two generations: a run killed at any
moment finds the last whole one.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_save
from torch import Tensor

from smoothrl.agents import Agent, save_agent
from smoothrl.errors import UserError
from smoothrl.storage import write_atomically

State = tuple[dict[str, Tensor], dict[str, Any]]
_STATE, _PREVIOUS = "state.safetensors", "previous.safetensors"


class RunDirectory:
    """One training run on disk; make it with `RunDirectory.open`."""

    def __init__(self, path: Path, config: dict[str, Any], lock: IO[str], tensorboard: bool) -> None:
        self.path, self.config = path, config
        self._lock, self._tensorboard = lock, tensorboard
        self._columns: list[str] = []
        self._csv: IO[str] | None = None
        self._events: Any = None
        self._start = 0

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        resume: bool = False,
        *,
        free: Sequence[str] = (),
        tensorboard: bool = True,
    ) -> RunDirectory:
        """Start or resume a run. A resumed run must have the same config, except for the keys in `free`."""
        target, wanted = Path(path), _plain(config)
        if target.exists() and not target.is_dir():
            raise UserError(f"{target} is a file; name a folder for the run")
        found = target / "config.json"
        if target.is_dir() and any(target.iterdir()) and not resume:
            hint = "--resume continues it, or name another folder with --out"
            kind = "holds a run already" if found.is_file() else "is not empty and holds no run of smoothrl"
            raise UserError(f"{target} {kind}; {hint if found.is_file() else 'name another folder'}")
        (target / "state").mkdir(parents=True, exist_ok=True)
        lock = _locked(target)
        if found.is_file():
            _compare(target, _read_config(found), wanted, free)
        write_atomically(found, json.dumps(wanted, indent=2, sort_keys=True).encode() + b"\n")
        run = cls(target, wanted, lock, tensorboard)
        run._cut_progress()
        return run

    # ------------------------------------------------------------------------------------ progress

    def log(self, step: int, row: Mapping[str, float | int | str]) -> None:
        """One row of progress.csv, and its numbers to TensorBoard."""
        full = {"step": step, **row}
        fresh = [k for k in full if k not in self._columns]
        if fresh:
            self._widen(fresh)
        assert self._csv is not None
        writer = csv.DictWriter(self._csv, self._columns, restval="")
        writer.writerow({k: f"{v:.7g}" if isinstance(v, float) else v for k, v in full.items()})
        self._csv.flush()
        self._to_tensorboard(step, row)

    def progress(self) -> list[dict[str, str]]:
        """The rows of progress.csv so far."""
        return _read_rows(self.path / "progress.csv")

    def _widen(self, fresh: Sequence[str]) -> None:
        target = self.path / "progress.csv"
        rows = _read_rows(target)
        self._columns += fresh
        self._write_rows(rows)

    def _write_rows(self, rows: Sequence[Mapping[str, str]]) -> None:
        if self._csv is not None:
            self._csv.close()
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
        target = self.path / "progress.csv"
        write_atomically(target, text.getvalue().encode())
        self._csv = target.open("a", newline="")

    def _cut_progress(self) -> None:
        """Forget rows past the state that a resumed run starts from."""
        state = self.load_state()
        self._start = int(state[1].get("step", 0)) if state else 0
        rows = _read_rows(self.path / "progress.csv")
        if rows:
            self._columns = list(rows[0])
            self._write_rows([r for r in rows if int(r["step"]) <= self._start])

    def _to_tensorboard(self, step: int, row: Mapping[str, float | int | str]) -> None:
        if not self._tensorboard:
            return
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            purge = self._start + 1 if self._start else None
            self._events = SummaryWriter(str(self.path / "events"), purge_step=purge)
        for key, value in row.items():
            if not isinstance(value, str) and np.isfinite(value):
                self._events.add_scalar(key, value, step)

    # --------------------------------------------------------------------------------------- state

    def save_state(self, tensors: Mapping[str, Tensor | npt.NDArray[Any]], meta: Mapping[str, Any]) -> None:
        """Keep what resuming needs; `meta` is JSON and should have `step`. The last state stays beside it."""
        plain = {
            k: (v.detach().cpu() if isinstance(v, Tensor) else torch.from_numpy(np.asarray(v))).contiguous()
            for k, v in tensors.items()
        }
        text = json.dumps(_plain(meta), sort_keys=True)
        header = {"smoothrl-state": text, "sha256": _checksum(plain, text)}
        folder = self.path / "state"
        current = folder / _STATE
        if current.is_file():
            _keep(current, folder / _PREVIOUS)
        write_atomically(current, safetensors_save(plain, header))

    def load_state(self) -> State | None:
        """The newest whole state, or None; damaged generations are passed over."""
        damaged = []
        for name in (_STATE, _PREVIOUS):
            path = self.path / "state" / name
            if not path.is_file():
                continue
            state = _read_state(path)
            if state is not None:
                return state
            damaged.append(name)
        if damaged:
            raise UserError(
                f"{self.path}/state: no readable state ({', '.join(damaged)} damaged), nothing to resume; "
                "start the run again in another folder"
            )
        return None

    # -------------------------------------------------------------------------------------- agents

    def agent_path(self, member: int | None = None) -> Path:
        return self.path / ("agent.safetensors" if member is None else f"agent-{member}.safetensors")

    def save_agent(self, agent: Agent, member: int | None = None) -> Path:
        """agent.safetensors, or agent-SEED.safetensors for a member of a pool."""
        return save_agent(agent, self.agent_path(member))

    def close(self) -> None:
        for stream in (self._csv, self._events, self._lock):
            if stream is not None:
                stream.close()
        self._csv = self._events = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plain(value: Any) -> Any:
    """The value as JSON would read it back."""
    return json.loads(json.dumps(value, sort_keys=True, default=str))


def _locked(target: Path) -> IO[str]:
    lock = (target / "state" / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UserError(
            f"{target}: another process is training into this folder; wait for it or use another --out"
        ) from error
    return lock


def _read_config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: unreadable ({error}); the run cannot be resumed") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: not a run's config")
    return found


def _compare(target: Path, found: dict[str, Any], wanted: dict[str, Any], free: Sequence[str]) -> None:
    keys = sorted((set(found) | set(wanted)) - set(free), key=lambda k: (k != "method", k))
    different = [k for k in keys if found.get(k) != wanted.get(k)]
    if different:
        shown = "; ".join(f"{k}: {found.get(k)!r} there, {wanted.get(k)!r} now" for k in different[:3])
        more = f" (and {len(different) - 3} more)" if len(different) > 3 else ""
        raise UserError(
            f"{target} was started with other settings and cannot be resumed with these: {shown}{more}; "
            "give the same options or another --out"
        )


def _read_rows(path: Path) -> list[dict[str, str]]:
    """Whole rows only: a line cut off by a kill is dropped."""
    if not path.is_file():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    rows = list(csv.DictReader(io.StringIO(whole, newline="")))
    return [r for r in rows if None not in r and None not in r.values() and r.get("step", "").isdigit()]


def _keep(current: Path, previous: Path) -> None:
    """Make `previous` another name of `current` (or a copy where links are not to be had), atomically."""
    temporary = previous.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(current, temporary)
    except OSError:
        shutil.copyfile(current, temporary)
    os.replace(temporary, previous)


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        sha.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        sha.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return sha.hexdigest()


def _read_state(path: Path) -> State | None:
    try:
        with safe_open(str(path), framework="pt") as stream:
            header = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        text = header["smoothrl-state"]
        if _checksum(tensors, text) != header["sha256"]:
            return None
        return tensors, json.loads(text)
    except (SafetensorError, OSError, ValueError, KeyError, OverflowError):
        return None
