"""A study's folder: what is done, who is at work in it, and the tables made from it.

study.json               the declaration, the format, the command
jobs/KEY/done.json       the rows of a finished job (written last, atomically)
jobs/KEY/progress.json   how far a running job is
jobs/KEY/failed.json     why a job failed
results.csv              every row, with the episode returns beside it
summary.csv              pools summarised, the paper's numbers joined
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smoothrl import __version__
from smoothrl.errors import UserError
from smoothrl.results import ResultRow, json_rows, row_from
from smoothrl.studies.declare import Study, study_data

FORMAT = 1


class DiskFullError(UserError):
    """Nothing more can be written."""


def disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that the disk (or the quota) is full."""
    while error is not None:
        if isinstance(error, DiskFullError) or (
            isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def write_json(path: Path, data: Any, *, sync: bool = True) -> None:
    """Atomically; `sync` waits for the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            json.dump(data, stream, allow_nan=False)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file, or None where it is absent or unreadable."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


class Store:
    """The folder of one study."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path, study: Study, command: str = "", only: Sequence[str] = ()) -> Store:
        """Start or go on in a folder; another study or another version there is refused."""
        store = cls(path)
        store.check(study)
        (store.path / "jobs").mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT,
            "software": __version__,
            "study": study_data(study),
            "command": command,
            "only": list(only),
        }
        write_json(store.path / "study.json", content)
        return store

    def check(self, study: Study) -> None:
        """Refuse a folder that is not this study's."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; name a folder for the study")
        found = self.declaration()
        if found is None and self.path.is_dir() and any(p.name != "lock" for p in self.path.iterdir()):
            raise UserError(f"{self.path} is not empty and holds no study; name another folder with --out")
        if found is not None and found["study"].get("name") != study.name:
            raise UserError(
                f"{self.path} holds the study {found['study'].get('name')!r}, not {study.name!r}; "
                "name another folder with --out"
            )

    def declaration(self) -> dict[str, Any] | None:
        """What study.json says; None where there is none."""
        target = self.path / "study.json"
        if not target.exists():
            return None
        data = read_json(target)
        if data is None or not isinstance(data.get("study"), dict):
            raise UserError(
                f"{target}: damaged; the finished jobs beside it are whole, restore or delete this file"
            )
        if data.get("format") != FORMAT:
            raise UserError(
                f"{self.path} was written by smoothrl {data.get('software', '?')} (study format "
                f"{data.get('format')!r}, this one uses {FORMAT}); use that version, or another --out"
            )
        return data

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one run at a time writes into the folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                stream.seek(0)
                holder = stream.read().strip() or "another process"
                raise UserError(
                    f"{self.path}: {holder} is running a study in this folder; wait for it, stop it, or use "
                    "another --out (`smoothrl study status` shows how far it is)"
                ) from error
            stream.seek(0)
            stream.truncate()
            stream.write(f"process {os.getpid()} on {socket.gethostname()}")
            stream.flush()
            yield
            stream.seek(0)
            stream.truncate()

    def locked(self) -> bool:
        """Whether a run is at work here now."""
        target = self.path / "lock"
        if not target.exists():
            return False
        with target.open("r") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def folder(self, key: str) -> Path:
        return self.path / "jobs" / key

    def done(self, key: str) -> dict[str, Any] | None:
        return read_json(self.folder(key) / "done.json")

    def is_done(self, key: str) -> bool:
        return (self.folder(key) / "done.json").exists()

    def failure(self, key: str) -> str | None:
        data = read_json(self.folder(key) / "failed.json")
        return str(data.get("error")) if data else None

    def progress(self, key: str) -> dict[str, Any] | None:
        return read_json(self.folder(key) / "progress.json")

    def finish(self, key: str, rows: list[ResultRow], wall_time: float, artefacts: Mapping[str, Any]) -> None:
        """Record a finished job; this file is what makes it finished."""
        folder = self.folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        content = {"rows": json_rows(rows), "wall_time": wall_time, "artefacts": dict(artefacts)}
        write_json(folder / "done.json", content)
        for name in ("failed.json", "progress.json"):
            (folder / name).unlink(missing_ok=True)

    def rows(self, key: str, labels: Mapping[str, str]) -> list[ResultRow]:
        """The rows of a finished job, labelled for this study."""
        data = self.done(key)
        if data is None:
            return []
        out = []
        for item in data["rows"]:
            row = {**item, **{k: v for k, v in labels.items() if k in ("agent", "environment")}}
            notes = [labels.get("scale", ""), str(item.get("note", ""))]
            row["note"] = "; ".join(n for n in notes if n)
            out.append(row_from(row, f"{key}/done.json"))
        return out


class Ticker:
    """Writes how far a job is, at most every two seconds."""

    def __init__(self, folder: Path, interval: float = 2.0) -> None:
        self.target, self.interval = folder / "progress.json", interval
        self._last = 0.0

    def __call__(self, done: float, total: float, note: str = "") -> None:
        now = time.monotonic()
        if now - self._last < self.interval:
            return
        self._last = now
        data = {"done": float(done), "total": float(total), "note": note, "time": time.time()}
        write_json(self.target, data, sync=False)
