"""Pickles and zip files by hand: what the released files look like, and what hostile ones do."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Raw = bytes


def text(value: str) -> Raw:
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def integer(value: int) -> Raw:
    return b"J" + struct.pack("<i", value)


def real(value: float) -> Raw:
    return b"G" + struct.pack(">d", value)


def glob(path: str) -> Raw:
    module, _, name = path.rpartition(".")
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def tup(*items: Raw) -> Raw:
    return b"(" + b"".join(items) + b"t"


def lst(*items: Raw) -> Raw:
    return b"](" + b"".join(items) + b"e"


def dic(items: Sequence[tuple[Raw, Raw]]) -> Raw:
    return b"}(" + b"".join(k + v for k, v in items) + b"u"


def call(path: str, *args: Raw) -> Raw:
    return glob(path) + tup(*args) + b"R"


def obj(path: str, **state: Raw) -> Raw:
    return glob(path) + b")\x81" + dic([(text(k), v) for k, v in state.items()]) + b"b"


def dtype(code: str, order: str = "<") -> Raw:
    state = tup(integer(3), text(order), b"N", b"N", b"N", integer(-1), integer(-1), integer(0))
    return call("numpy.dtype", text(code), b"\x89", b"\x88") + state + b"b"


def ndarray(
    values: np.ndarray, shape: Raw | None = None, code: str | None = None, raw: Raw | None = None
) -> Raw:
    """An array the way NumPy 1 wrote it at protocol 2."""
    kind = dtype(code or values.dtype.str[1:])
    empty = call("_codecs.encode", text("b"), text("latin1"))
    start = call("numpy.core.multiarray._reconstruct", glob("numpy.ndarray"), tup(integer(0)), empty)
    content = raw or call("_codecs.encode", text(values.tobytes().decode("latin1")), text("latin1"))
    size = shape or tup(*(integer(n) for n in values.shape))
    return start + tup(integer(1), size, kind, b"\x89", content) + b"b"


class Storages:
    """Collects the tensors of a torch zip file."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def tensor(
        self,
        values: np.ndarray,
        *,
        kind: str = "torch.FloatStorage",
        count: int | None = None,
        offset: int = 0,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        key: str | None = None,
    ) -> Raw:
        values = np.ascontiguousarray(values)
        name = key or str(len(self.files))
        self.files[name] = values.tobytes()
        size = values.shape if shape is None else shape
        steps = [s // values.itemsize for s in values.strides] if stride is None else stride
        claimed = values.size if count is None else count
        reference = tup(text("storage"), glob(kind), text(name), text("cpu"), integer(claimed)) + b"Q"
        return call(
            "torch._utils._rebuild_tensor_v2",
            reference,
            integer(offset),
            tup(*(integer(n) for n in size)),
            tup(*(integer(n) for n in steps)),
            b"\x89",
            call("collections.OrderedDict"),
        )

    def state_dict(self, values: dict[str, np.ndarray]) -> Raw:
        pairs = [(text(k), self.tensor(np.asarray(v, np.float32))) for k, v in values.items()]
        return call("collections.OrderedDict") + b"(" + b"".join(k + v for k, v in pairs) + b"u"


def stream(body: Raw, protocol: int = 2) -> bytes:
    return b"\x80" + bytes([protocol]) + body + b"."


def write_torch(
    path: Path,
    body: Raw,
    storages: Storages,
    *,
    compression: int = zipfile.ZIP_STORED,
    extra: dict[str, bytes] | None = None,
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", stream(body))
        for key, data in storages.files.items():
            archive.writestr(f"archive/data/{key}", data)
        for name, data in (extra or {}).items():
            archive.writestr(name, data)
    return path


def policy_state(
    observations: int, outputs: int, rng: np.random.Generator, hidden: int = 64
) -> dict[str, np.ndarray]:
    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 4

    return {
        "log_stdev": draw(outputs),
        "affine_layers.0.weight": draw(hidden, observations),
        "affine_layers.0.bias": draw(hidden),
        "affine_layers.1.weight": draw(hidden, hidden),
        "affine_layers.1.bias": draw(hidden),
        "final_mean.weight": draw(outputs, hidden),
        "final_mean.bias": draw(outputs),
    }


def value_state(inputs: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    state = policy_state(inputs, 1, rng)
    del state["log_stdev"]
    return {k.replace("final_mean", "final"): v for k, v in state.items()}


def environment(name: str, mean: np.ndarray, squares: np.ndarray, count: int, **more: Raw) -> Raw:
    inner = obj(
        "gym.wrappers.time_limit.TimeLimit",
        env=obj(f"gym.envs.mujoco.{name}", _ezpickle_args=b")", _ezpickle_kwargs=b"}"),
        _max_episode_steps=integer(1000),
    )
    stat = obj(
        "policy_gradients.torch_utils.RunningStat", _n=integer(count), _M=ndarray(mean), _S=ndarray(squares)
    )
    rewards = obj(
        "policy_gradients.torch_utils.RunningStat",
        _n=integer(count - 100),
        _M=ndarray(np.asarray(3.0)),
        _S=ndarray(np.asarray(9.0e5)),
    )
    state = {
        "env": inner,
        "state_filter": obj(
            "policy_gradients.torch_utils.ZFilter", center=b"\x88", scale=b"\x88", clip=real(10.0), rs=stat
        ),
        "reward_filter": obj("policy_gradients.torch_utils.RewardFilter", gamma=real(0.99), rs=rewards),
        **more,
    }
    return obj("policy_gradients.custom_env.Env", **state)


def released(
    path: Path,
    *,
    observations: int = 17,
    actions: int = 6,
    env: str = "walker2d.Walker2dEnv",
    adversary: int | None = None,
    q: bool = False,
    seed: int = 0,
    extra: Sequence[tuple[Raw, Raw]] = (),
    **more: Raw,
) -> tuple[Path, dict[str, Any]]:
    """A checkpoint of the released kind, and what is in it."""
    rng = np.random.default_rng(seed)
    policy = policy_state(observations, actions, rng)
    mean, squares = rng.standard_normal(observations), rng.uniform(1.0, 50.0, observations)
    storages = Storages()
    entries = [
        (text("val_model"), storages.state_dict(value_state(observations, rng))),
        (text("policy_model"), storages.state_dict(policy)),
    ]
    if adversary is not None:
        entries.append(
            (text("adversary_policy_model"), storages.state_dict(policy_state(observations, adversary, rng)))
        )
    if q:
        entries.append((text("q_model"), storages.state_dict(value_state(observations + actions, rng))))
    entries.append((text("envs"), lst(environment(env, mean, squares, 1000, **more))))
    write_torch(path, dic([*entries, *extra]), storages)
    return path, {"policy": policy, "mean": mean, "std": np.sqrt(squares / 999.0)}


def bomb(path: str, *args: Any) -> bytes:
    """A pickle that would call `path(*args)` in Python's own unpickler."""
    return glob(path) + pickle.dumps(args, 2)[2:-1] + b"R"


def zip_of(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()
