"""Zip files from strangers: bounded reading, and the tensors of a PyTorch file without torch.load."""

from __future__ import annotations

import io
import itertools
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from smoothrl.agents.importers.safe_pickle import (
    MAX_STREAM,
    NUMPY_NAMES,
    Name,
    Node,
    Refusal,
    brief,
    checked_shape,
    read_pickle,
)

MAX_ENTRIES = 10_000
MAX_TOTAL = 1 << 30
"""Bytes of all entries of one file together."""
MAX_REUSE = 4
"""Tensors may share storages, but all together they hold at most this many times the bytes on the disk."""
MAX_RATIO = 100
"""A compressed entry may grow by this factor; weights hardly compress at all."""

_ENTRY = b"PK\x01\x02"
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_STORAGES: Mapping[str, str] = {
    "torch.FloatStorage": "<f4",
    "torch.DoubleStorage": "<f8",
    "torch.HalfStorage": "<f2",
    "torch.LongStorage": "<i8",
    "torch.IntStorage": "<i4",
    "torch.ShortStorage": "<i2",
    "torch.CharStorage": "<i1",
    "torch.ByteStorage": "<u1",
    "torch.BoolStorage": "?",
}
TORCH_NAMES = frozenset(_STORAGES) | {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
}
"""What a state dict of torch is pickled as."""


class Archive:
    """A zip file whose promises were checked before anything is read."""

    def __init__(self, source: str | Path | IO[bytes]) -> None:
        try:
            if isinstance(source, (str, Path)):
                with Path(source).open("rb") as stream:
                    _count_entries(stream)
            else:
                _count_entries(source)
            self.zip = zipfile.ZipFile(source)
            self.entries = {info.filename: info for info in self.zip.infolist()}
        except Refusal:
            raise
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
            raise Refusal(f"no zip file, or a truncated one ({error})") from error
        self._check()

    def _check(self) -> None:
        infos = self.zip.infolist()
        if len(infos) > MAX_ENTRIES or len(self.entries) != len(infos):
            raise Refusal(f"the zip has {len(infos):,} entries, some of them twice or too many")
        if sum(i.file_size for i in infos) > MAX_TOTAL:
            raise Refusal(f"the zip would unpack to more than {MAX_TOTAL:,} bytes")
        for info in infos:
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise Refusal("the zip uses a compression that no agent file uses")
            if info.flag_bits & 0x1:
                raise Refusal("the zip is encrypted")
            if info.file_size > MAX_RATIO * info.compress_size + 1024:
                raise Refusal("the zip unpacks to far more than it holds")
        ordered = sorted(infos, key=lambda i: i.header_offset)
        if ordered and ordered[0].header_offset != 0:
            raise Refusal("a truncated zip: what is left of it does not start with its first entry")
        for first, second in itertools.pairwise(ordered):
            if first.header_offset + first.compress_size > second.header_offset:
                raise Refusal("entries of the zip overlap")

    def read(self, name: str, limit: int = MAX_TOTAL) -> bytes:
        info = self.entries.get(name)
        if info is None:
            raise Refusal(f"the zip has no entry {name[:80]!r}")
        if info.file_size > limit:
            raise Refusal(f"entry {name[:80]!r} has {info.file_size:,} bytes, more than {limit:,}")
        try:
            with self.zip.open(info) as stream:
                data = stream.read(info.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
            raise Refusal(f"entry {name[:80]!r} is damaged ({type(error).__name__})") from error
        if len(data) != info.file_size:
            raise Refusal(f"entry {name[:80]!r} has another length than it claims")
        return data


def _count_entries(stream: IO[bytes]) -> None:
    """Refuse too large a file or too long a directory before zipfile builds a record of each entry."""
    found, size, tail = 0, 0, b""
    while block := stream.read(1 << 20):
        found += (tail + block).count(_ENTRY)
        size, tail = size + len(block), block[1 - len(_ENTRY) :]
        if size > MAX_TOTAL:
            raise Refusal(f"more than {MAX_TOTAL:,} bytes")
        if found > MAX_ENTRIES:
            raise Refusal(f"the zip has more than {MAX_ENTRIES:,} entries")
    stream.seek(0)


@dataclass(frozen=True)
class StorageRef:
    """A block of numbers in the file."""

    key: str
    dtype: str
    count: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.count * np.dtype(self.dtype).itemsize


class _ZipStorages:
    """The file of torch.save since 1.6: a zip with a pickle and one entry a storage."""

    def __init__(self, source: str | Path | IO[bytes], names: frozenset[str]) -> None:
        self.archive = Archive(source)
        pickles = [n for n in self.archive.entries if n.count("/") == 1 and n.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise Refusal("no file that torch.save writes: it has no data.pkl")
        self.root = pickles[0].removesuffix("data.pkl")
        if self.root + "byteorder" in self.archive.entries:
            order = self.archive.read(self.root + "byteorder", 16)
            if order != b"little":
                raise Refusal("numbers in another byte order than little-endian")
        self.content = read_pickle(self.archive.read(pickles[0], MAX_STREAM), names, self._storage)
        self.total = sum(info.compress_size for info in self.archive.entries.values())

    def _storage(self, reference: Any) -> StorageRef:
        found = _reference(reference)
        info = self.archive.entries.get(f"{self.root}data/{found.key}")
        if info is None or info.file_size != found.size:
            raise Refusal(f"storage {found.key[:40]!r} is missing or not as long as it claims")
        return found

    def read(self, storage: StorageRef) -> bytes:
        return self.archive.read(f"{self.root}data/{storage.key}")


class _StreamStorages:
    """The file of torch.save before 1.6: magic number, version, system, content, keys, then raw storages."""

    def __init__(self, stream: IO[bytes], names: frozenset[str]) -> None:
        self.claimed: dict[str, StorageRef] = {}
        start = [read_pickle(stream, names) for _ in range(3)]
        if start[0] != _MAGIC or start[1] != _VERSION or not isinstance(start[2], dict):
            raise Refusal("no file that torch.save writes")
        if start[2].get("little_endian") is not True:
            raise Refusal("numbers in another byte order than little-endian")
        self.content = read_pickle(stream, names, self._storage)
        keys = read_pickle(stream, frozenset())
        if not isinstance(keys, list) or len(keys) > MAX_ENTRIES:
            raise Refusal("no list of its storages")
        self.blocks = dict(self._block(stream, key) for key in keys)
        self.total = sum(map(len, self.blocks.values()))

    def _storage(self, reference: Any) -> StorageRef:
        found = _reference(reference)
        return self.claimed.setdefault(found.key, found)

    def _block(self, stream: IO[bytes], key: Any) -> tuple[str, bytes]:
        storage = self.claimed.get(key) if isinstance(key, str) else None
        head = stream.read(8)
        if storage is None or len(head) != 8 or int.from_bytes(head, "little") != storage.count:
            raise Refusal("its storages are not as long as they claim")
        at = stream.tell()
        if storage.size > stream.seek(0, io.SEEK_END) - at:
            raise Refusal(f"a truncated file: storage {key[:40]!r} is cut off")
        stream.seek(at)
        return key, stream.read(storage.size)

    def read(self, storage: StorageRef) -> bytes:
        if storage.key not in self.blocks:
            raise Refusal(f"storage {storage.key[:40]!r} is missing")
        return self.blocks[storage.key]


def _reference(reference: Any) -> StorageRef:
    """The storage a persistent id names: (storage, type, key, location, count)."""
    if not isinstance(reference, tuple) or len(reference) not in (5, 6) or reference[0] != "storage":
        raise Refusal("the pickle refers to something that is no storage of numbers")
    _, kind, key, _, count = reference[:5]
    path = kind.path if isinstance(kind, Name) else ""
    if path not in _STORAGES or not isinstance(key, str) or type(count) is not int or count < 0:
        raise Refusal(f"a storage of a type that is not read ({brief(kind)})")
    if len(reference) == 6 and reference[5] is not None:
        raise Refusal("views between storages, which are not read")
    return StorageRef(key, _STORAGES[path], count)


class TorchFile:
    """What torch.save wrote: `content` holds plain values and nodes, `tensor` reads one tensor."""

    def __init__(self, source: str | Path | IO[bytes], names: frozenset[str] = frozenset()) -> None:
        known = TORCH_NAMES | NUMPY_NAMES | names
        self._spent = 0
        self._storages = self._open(source, known)
        self.content = self._storages.content

    @staticmethod
    def _open(source: str | Path | IO[bytes], names: frozenset[str]) -> _ZipStorages | _StreamStorages:
        if not isinstance(source, (str, Path)):
            return _ZipStorages(source, names)
        if Path(source).stat().st_size > MAX_TOTAL:
            raise Refusal(f"more than {MAX_TOTAL:,} bytes")
        with Path(source).open("rb") as stream:
            start = stream.read(2)
            stream.seek(0)
            return _ZipStorages(source, names) if start != b"\x80\x02" else _StreamStorages(stream, names)

    def tensor(self, value: Any, what: str = "tensor") -> Tensor:
        """The tensor a node describes: a checked view of its storage, copied."""
        if isinstance(value, Node) and value.path == "torch._utils._rebuild_parameter" and value.args:
            value = value.args[0]
        if not isinstance(value, Node) or value.path != "torch._utils._rebuild_tensor_v2":
            raise Refusal(f"{what} is {brief(value)}, not a tensor")
        if len(value.args) < 4 or not isinstance(value.args[0], StorageRef):
            raise Refusal(f"{what} is not a tensor of this file")
        storage, offset, shape, stride = value.args[:4]
        count = checked_shape(shape, what)
        _check_view(storage, offset, shape, stride, count, what)
        itemsize = np.dtype(storage.dtype).itemsize
        self._spent += storage.size
        if self._spent > MAX_REUSE * self._storages.total:
            raise Refusal("the tensors of the file come to far more memory than the file itself")
        raw = np.frombuffer(self._storages.read(storage), storage.dtype)
        view = np.lib.stride_tricks.as_strided(
            raw[offset : offset + 1] if count else raw[:0],
            tuple(shape),
            tuple(s * itemsize for s in stride),
        )
        return torch.from_numpy(np.array(view, order="C"))


def _check_view(storage: StorageRef, offset: Any, shape: Any, stride: Any, count: int, what: str) -> None:
    if not isinstance(stride, (tuple, list)) or len(stride) != len(shape) or type(offset) is not int:
        raise Refusal(f"{what} has no sensible strides")
    if offset < 0 or any(type(s) is not int or s < 0 for s in stride):
        raise Refusal(f"{what} has no sensible strides")
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if count else offset
    if last >= storage.count + (count == 0) or count > storage.count:
        raise Refusal(f"{what} reaches beyond the numbers it is made of")


def state_dict(file: TorchFile, value: Any, what: str) -> dict[str, Tensor]:
    """A flat dictionary of tensors."""
    return {name: file.tensor(node, name[:80]) for name, node in entries(value, what).items()}


def entries(value: Any, what: str) -> dict[str, Any]:
    """The items of a dictionary (plain or ordered) with text keys."""
    if isinstance(value, Node) and value.path == "collections.OrderedDict" and not value.args:
        value = value.items
    if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
        raise Refusal(f"{what} is {brief(value)}, not a dictionary")
    return value
