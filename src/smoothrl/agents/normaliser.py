"""What turns a raw observation into the one in which sigma and epsilon live."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smoothrl.errors import UserError

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Normaliser:
    """A frozen map of raw observations: nothing that acts may change it.

    `none`: as it is; `scale`: times `scale` (images: 1/255); `moments`: (x - mean) / (std + 1e-8), clipped.
    """

    kind: Literal["none", "scale", "moments"] = "none"
    scale: float = 1.0
    clip: float | None = None
    mean: FloatArray = field(default_factory=lambda: np.zeros(0))
    std: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __call__(self, raw: npt.NDArray[Any]) -> Tensor:
        if self.kind == "moments":
            x = (np.asarray(raw, np.float64) - self.mean) / (self.std + 1e-8)
            if self.clip is not None:
                np.clip(x, -self.clip, self.clip, out=x)
            return torch.from_numpy(np.ascontiguousarray(x, np.float32))
        x32 = torch.from_numpy(np.ascontiguousarray(raw)).to(torch.float32)
        return x32.mul_(self.scale) if self.kind == "scale" else x32

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The valid range of normalised observations, where there is one that attacks must keep."""
        return (0.0, 255.0 * self.scale) if self.kind == "scale" else None

    def raw(self, observation: Tensor) -> npt.NDArray[np.float64]:
        """The raw observation that the normaliser maps to `observation` (clipping aside)."""
        x = observation.detach().cpu().numpy().astype(np.float64)
        if self.kind == "moments":
            return np.asarray(x * (self.std + 1e-8) + self.mean)
        return np.asarray(x / self.scale)


@dataclass
class Moments:
    """Running mean and variance (Welford, batches merged exactly), float64, any leading pool axis."""

    count: float
    mean: FloatArray
    m2: FloatArray

    @classmethod
    def zeros(cls, shape: tuple[int, ...]) -> Moments:
        return cls(0.0, np.zeros(shape), np.zeros(shape))

    def push(self, batch: npt.NDArray[Any]) -> None:
        """Take in (rows, *shape)."""
        rows = batch.shape[0]
        mean = batch.mean(axis=0, dtype=np.float64)
        m2 = ((batch - mean) ** 2).sum(axis=0)
        total = self.count + rows
        delta = mean - self.mean
        self.mean = self.mean + delta * (rows / total)
        self.m2 = self.m2 + m2 + delta**2 * (self.count * rows / total)
        self.count = total

    @property
    def std(self) -> FloatArray:
        """The unbiased standard deviation; |mean| for a single row, as the released code has it."""
        if self.count < 2:
            return np.abs(self.mean)
        return np.sqrt(self.m2 / (self.count - 1.0))

    def frozen(self, clip: float | None = 10.0) -> Normaliser:
        if not np.isfinite(self.mean).all() or not np.isfinite(self.m2).all():
            raise UserError("the observation statistics are not finite; the environment returned NaN or inf")
        return Normaliser("moments", clip=clip, mean=self.mean.copy(), std=self.std.copy())
