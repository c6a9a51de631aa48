"""Files that are either the old one or the new one, whatever happens in between."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from smoothrl.errors import UserError


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary neighbour, flush, rename; a full disk leaves the old file whole."""
    try:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; name a file in it")
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error}); nothing that was there is lost"
        ) from error
