"""Gaussian noise with an explicit origin.

`StreamNoise` gives every episode a stream of its own, so what an episode sees depends on its seed and never
on which other episodes are played beside it; `GeneratorNoise` draws from one generator for a whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BLOCK_BELOW = 2048
"""Draws of fewer numbers than this are made in blocks of several steps."""


class Noise(Protocol):
    def normal(self, index: Sequence[int], count: int, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers (len(index), count, *shape), row i for the episode index[i]."""
        ...

    def uniform(self, index: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Uniform numbers in [0, 1), (len(index), *shape)."""
        ...


class GeneratorNoise:
    """All rows from one generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def normal(self, index: Sequence[int], count: int, shape: Sequence[int]) -> Tensor:
        return torch.randn(len(index), count, *shape, generator=self.generator, device=self.generator.device)

    def uniform(self, index: Sequence[int], shape: Sequence[int]) -> Tensor:
        return torch.rand(len(index), *shape, generator=self.generator, device=self.generator.device)


class StreamNoise:
    """One stream an episode; `seeds[i]` is the seed of episode i."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(int(s) & 0x7FFFFFFFFFFFFFFF) for s in seeds]
        self._size = 0
        self._buffer = torch.empty(0)
        self._cursor = np.zeros(len(self.generators), dtype=np.int64)

    def normal(self, index: Sequence[int], count: int, shape: Sequence[int]) -> Tensor:
        size = count * math.prod(shape)
        rows = self._direct(index, size) if size >= _BLOCK_BELOW else self._blocked(index, size)
        return rows.view(len(index), count, *shape)

    def uniform(self, index: Sequence[int], shape: Sequence[int]) -> Tensor:
        size = math.prod(shape)
        out = torch.empty(len(index), size)
        for row, i in enumerate(index):
            torch.rand(size, generator=self.generators[i], out=out[row])
        return out.view(len(index), *shape)

    def _direct(self, index: Sequence[int], size: int) -> Tensor:
        out = torch.empty(len(index), size)
        for row, i in enumerate(index):
            torch.randn(size, generator=self.generators[i], out=out[row])
        return out

    def _blocked(self, index: Sequence[int], size: int) -> Tensor:
        block = max(1, _BLOCK_BELOW // size)
        if size != self._size:
            self._size = size
            self._buffer = torch.empty(len(self.generators), block, size)
            self._cursor[:] = block
        ids = np.asarray(index, dtype=np.int64)
        for i in ids[self._cursor[ids] >= block]:
            torch.randn(block, size, generator=self.generators[i], out=self._buffer[i])
            self._cursor[i] = 0
        rows = self._buffer[torch.from_numpy(ids), torch.from_numpy(self._cursor[ids])]
        self._cursor[ids] += 1
        return rows


SEED_BITS = {"env": 31}
"""Simulators take 31-bit seeds; everything else 63."""


def episode_seeds(seed: int, count: int, purpose: str, start: int = 0) -> list[int]:
    """Independent seeds of `count` episodes for one purpose (splitmix64 of a counter)."""
    tag = int.from_bytes(purpose.encode()[:8].ljust(8, b"\0"), "big")
    key = _mix(_mix(np.array([seed & _ALL_BITS], np.uint64)) ^ np.uint64(tag))
    with np.errstate(over="ignore"):
        counter = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = _mix(key + counter)
    return [int(s) for s in mixed >> np.uint64(64 - SEED_BITS.get(purpose, 63))]


_ALL_BITS = 0xFFFFFFFFFFFFFFFF


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection of 64 bits in which every input bit moves every output bit."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
