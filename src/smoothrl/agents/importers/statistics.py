"""Observation statistics from elsewhere: SB3's VecNormalize pickles, and plain .npz files."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothrl.agents.importers.containers import Archive
from smoothrl.agents.importers.safe_pickle import (
    MAX_STREAM,
    NUMPY_NAMES,
    Node,
    Refusal,
    array,
    brief,
    checked_shape,
    read_pickle,
)
from smoothrl.agents.normaliser import Normaliser
from smoothrl.errors import UserError

SPACE_NAMES = NUMPY_NAMES | {
    f"{library}.spaces.{name}"
    for library in ("gymnasium", "gym")
    for name in ("box.Box", "discrete.Discrete", "dict.Dict", "multi_discrete.MultiDiscrete")
}
"""What the spaces of an environment are pickled as; other kinds are told apart later."""
_VECTOR_NAMES = SPACE_NAMES | {
    "stable_baselines3.common.vec_env.vec_normalize.VecNormalize",
    "stable_baselines3.common.running_mean_std.RunningMeanStd",
    "collections.OrderedDict",
}
_MAX_STATISTICS = 1 << 20


def read_statistics(path: str | Path) -> Normaliser:
    """The normaliser in a `VecNormalize.save` file or in an .npz with mean and var (or std)."""
    target = Path(path)
    if not target.is_file():
        raise UserError(f"{target}: no such file")
    try:
        with target.open("rb") as stream:
            start = stream.read(2)
        return _from_npz(target) if start == b"PK" else _from_pickle(target)
    except Refusal as error:
        raise UserError(
            f"{target}: {error}; a VecNormalize file of Stable-Baselines3 or an .npz with mean and var "
            "is needed"
        ) from error


def moments(
    mean: npt.NDArray[Any], variance: npt.NDArray[Any], epsilon: float, clip: float | None
) -> Normaliser:
    """(x - mean) / sqrt(var + epsilon), as Gymnasium and SB3 have it; ours adds 1e-8 to the deviation."""
    mean, variance = mean.astype(np.float64), variance.astype(np.float64)
    if mean.shape != variance.shape or not np.isfinite(mean).all() or not np.isfinite(variance).all():
        raise Refusal("the mean and variance of the observations make no sense")
    if not 0.0 <= epsilon < 1.0 or not (variance + epsilon > 0.0).all():
        raise Refusal("the variance of the observations makes no sense")
    if clip is not None and not 0.0 < clip < math.inf:
        raise Refusal("the clipping bound of the observations makes no sense")
    return Normaliser("moments", clip=clip, mean=mean, std=np.sqrt(variance + epsilon) - 1e-8)


def _from_pickle(path: Path) -> Normaliser:
    if path.stat().st_size > MAX_STREAM:
        raise Refusal("far larger than statistics are")
    found = read_pickle(path.read_bytes(), _VECTOR_NAMES)
    if not isinstance(found, Node) or not found.path.endswith("VecNormalize"):
        raise Refusal(f"holds {brief(found)}, not a VecNormalize")
    state = found.attributes()
    if state.get("norm_obs") is False:
        return Normaliser()
    rms = state.get("obs_rms")
    if not isinstance(rms, Node):
        raise Refusal(
            "its statistics are those of several observations at once (Dict), which is not supported"
        )
    values = rms.attributes()
    epsilon, clip = number(state.get("epsilon"), "epsilon"), number(state.get("clip_obs"), "clip_obs")
    return moments(array(values.get("mean"), "mean"), array(values.get("var"), "variance"), epsilon, clip)


def number(value: Any, what: str) -> float:
    """A single finite number of the file."""
    found = array(value, what)
    if found.size != 1 or not np.isfinite(found).all():
        raise Refusal(f"{what} is no number")
    return float(found.reshape(-1)[0])


def _from_npz(path: Path) -> Normaliser:
    archive = Archive(path)
    found = {
        name.removesuffix(".npy"): _npy(archive.read(name, _MAX_STATISTICS), name)
        for name in archive.entries
        if name.removesuffix(".npy") in ("mean", "var", "std", "epsilon", "clip")
    }
    if "mean" not in found or ("var" in found) == ("std" in found):
        raise Refusal("needs the arrays mean and var (or std)")
    variance = found["var"] if "var" in found else found["std"] ** 2
    epsilon = float(found["epsilon"].reshape(-1)[0]) if "epsilon" in found else 1e-8 * ("var" in found)
    clip = float(found["clip"].reshape(-1)[0]) if "clip" in found else 10.0
    return moments(found["mean"], variance, epsilon, clip)


def _npy(data: bytes, what: str) -> npt.NDArray[Any]:
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise Refusal(f"{what[:40]!r} is of a format that is not read")
        shape, _, dtype = read(stream)
        count = checked_shape(shape, what[:40])
    except Refusal:
        raise
    except (ValueError, SyntaxError, TypeError, RecursionError) as error:
        raise Refusal(f"{what[:40]!r} is no array") from error
    rest = stream.read()
    if dtype.kind not in "fiu" or count * dtype.itemsize != len(rest) or not rest:
        raise Refusal(f"{what[:40]!r} is not an array of numbers of the size it claims")
    return np.frombuffer(rest, dtype).reshape(shape).copy()
