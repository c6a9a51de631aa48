"""The agent file: one .safetensors file with tensors and a JSON header. Nothing in it is ever executed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_save
from torch import Tensor, nn

from smoothrl import __version__, networks
from smoothrl.agents.agent import Agent, AgentInfo, Smoothing, content_digest
from smoothrl.agents.normaliser import Normaliser
from smoothrl.errors import UserError
from smoothrl.storage import write_atomically

FORMAT_VERSION = 1
MAX_HEADER = 4 << 20
NOT_AN_AGENT = "is not a smoothrl agent file"


def versions() -> dict[str, str]:
    import numpy

    return {"smoothrl": __version__, "torch": torch.__version__, "numpy": numpy.__version__}


def agent_bytes(agent: Agent) -> bytes:
    header, tensors = agent.header(), agent.tensors()
    meta = {
        "format": "smoothrl-agent",
        "version": FORMAT_VERSION,
        "digest": content_digest(header, tensors),
        "software": versions(),
        "agent": header,
    }
    return safetensors_save(tensors, {"smoothrl": json.dumps(meta, sort_keys=True)})


def save_agent(agent: Agent, path: str | Path) -> Path:
    """Write the agent file atomically; returns its path."""
    target = Path(path)
    write_atomically(target, agent_bytes(agent))
    return target


def load_agent(
    path: str | Path, *, smooth: Smoothing | None = None, device: str | torch.device = "cpu"
) -> Agent:
    """Read an agent file. Every way a file can be wrong gives one sentence that says what to do."""
    target = Path(path)
    if target.is_dir() and (target / "agent.safetensors").is_file():
        target = target / "agent.safetensors"
    tensors, meta = _read(target)
    header = _checked_header(target, meta)
    try:
        agent = _assemble(header, tensors, smooth, device)
    except UserError as error:
        raise UserError(f"{target}: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, IndexError) as error:
        raise UserError(
            f"{target}: the header does not describe an agent ({type(error).__name__}: {error}); "
            "write it again with save_agent"
        ) from error
    if content_digest(header, tensors) != meta["digest"]:
        raise UserError(
            f"{target}: the content does not match its checksum, the file was damaged or edited; "
            "take a fresh copy"
        )
    return agent


def read_header(path: str | Path) -> dict[str, Any]:
    """The JSON header alone, without the tensors."""
    return _checked_header(Path(path), _read_meta(Path(path)))


def _read_meta(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise UserError(f"{path}: a folder without an agent.safetensors; name the agent file")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    precheck(path)
    try:
        with safe_open(str(path), framework="pt") as stream:
            raw = stream.metadata() or {}
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: truncated or damaged ({error}); take a fresh copy") from error
    if "smoothrl" not in raw:
        raise UserError(
            f"{path}: a safetensors file without a smoothrl header; if it is an agent from elsewhere, "
            "`smoothrl import` may read it"
        )
    try:
        meta = json.loads(raw["smoothrl"])
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: the header is not JSON; take a fresh copy") from error
    if not isinstance(meta, dict):
        raise UserError(f"{path}: the header is not an object; take a fresh copy")
    return meta


def precheck(path: Path) -> None:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(9)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    if start[:4] == b"PK\x03\x04" or (start[:1] == b"\x80" and start[8:9] != b"{"):
        raise UserError(
            f"{path}: a PyTorch or pickle file, which smoothrl does not load as an agent; "
            "use `smoothrl import FILE --from released|sb3|cleanrl`"
        )
    if len(start) < 9 or start[8:9] != b"{":
        raise UserError(f"{path}: {NOT_AN_AGENT} (or it is truncated); agents end in .safetensors")
    (length,) = struct.unpack("<Q", start[:8])
    if length > MAX_HEADER or length + 8 > size:
        raise UserError(f"{path}: truncated or damaged, its header claims {length} bytes; take a fresh copy")


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    meta = _read_meta(path)
    try:
        with safe_open(str(path), framework="pt") as stream:
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{path}: truncated or damaged ({error}); take a fresh copy") from error
    return tensors, meta


def _checked_header(path: Path, meta: dict[str, Any]) -> dict[str, Any]:
    if meta.get("format") != "smoothrl-agent":
        raise UserError(f"{path}: {NOT_AN_AGENT} but a {meta.get('format')!r}")
    version = meta.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UserError(f"{path}: the format version {version!r} makes no sense; take a fresh copy")
    if version > FORMAT_VERSION:
        software = meta.get("software")
        maker = software.get("smoothrl") if isinstance(software, dict) else None
        raise UserError(
            f"{path}: written by a newer smoothrl ({maker or 'unknown'}, format {version}; this one reads "
            f"up to {FORMAT_VERSION}); `pip install -U smoothrl`"
        )
    header = meta.get("agent")
    if not isinstance(header, dict) or not isinstance(meta.get("digest"), str):
        raise UserError(f"{path}: the header is incomplete; take a fresh copy")
    return header


def _assemble(
    header: dict[str, Any],
    tensors: dict[str, Tensor],
    smooth: Smoothing | None,
    device: str | torch.device,
) -> Agent:
    network = network_from_state(
        header["network"],
        {k[len("network.") :]: v for k, v in tensors.items() if k.startswith("network.")},
    )
    info = info_from_json(header["info"])
    spec = header["normaliser"]
    moments = (
        {"mean": tensors["normaliser.mean"].numpy(), "std": tensors["normaliser.std"].numpy()}
        if spec["kind"] == "moments"
        else {}
    )
    for name, value in moments.items():
        if value.shape != info.observation_shape:
            raise UserError(
                f"the normaliser's {name} has shape {value.shape}, the observation {info.observation_shape}"
            )
    normaliser = Normaliser(spec["kind"], float(spec["scale"]), spec["clip"], **moments)
    return Agent(
        network,
        normaliser,
        info,
        smooth,
        device=device,
        batch_statistics=bool(header.get("batch_statistics", False)),
    )


def network_from_state(description: dict[str, Any], state: dict[str, Tensor]) -> nn.Module:
    """Build without allocating, compare shapes, then adopt the tensors of the file."""
    if _layers(description) > 4 * len(state) + 16:
        raise UserError(f"it describes far more layers than its {len(state)} tensors can fill")
    with torch.device("meta"):
        network = networks.build(description)
    wanted = {k: (tuple(v.shape), v.dtype) for k, v in network.state_dict().items()}
    if set(wanted) != set(state):
        odd = sorted(set(wanted) ^ set(state))[0]
        raise UserError(f"the tensors do not fit the network it describes: {odd!r} is missing or unknown")
    for name, value in state.items():
        shape, dtype = wanted[name]
        if tuple(value.shape) != shape:
            raise UserError(
                f"tensor {name!r} has shape {tuple(value.shape)}, the network it describes needs {shape}"
            )
        if value.is_floating_point() != dtype.is_floating_point:
            raise UserError(f"tensor {name!r} has type {value.dtype}, the network needs {dtype}")
    network.load_state_dict({k: v.to(wanted[k][1]) for k, v in state.items()}, assign=True)
    return network


def _layers(description: Any) -> int:
    """How many layers a description asks for, so that a damaged one is refused before they are made."""
    if not isinstance(description, dict):
        return 0
    lists = (len(v) for k, v in description.items() if k in ("hidden", "layers") and isinstance(v, list))
    depth = description.get("depth", 0)
    inner = (_layers(value) for value in description.values())
    return sum(lists) + sum(inner) + (depth if isinstance(depth, int) else 0)


def info_from_json(data: dict[str, Any]) -> AgentInfo:
    rest = dict(data)
    rest["trained_with"] = Smoothing(**rest["trained_with"])
    tuples: dict[str, Callable[[Any], Any]] = {
        "observation_shape": int,
        "action_low": float,
        "action_high": float,
    }
    for key, convert in tuples.items():
        rest[key] = tuple(convert(v) for v in rest.get(key, ()))
    info = AgentInfo(**rest)
    if info.action_kind not in ("discrete", "continuous") or info.actions < 1:
        raise UserError(f"actions {info.action_kind!r} x {info.actions} make no sense")
    if not isinstance(info.env_id, str) or not isinstance(info.method, str):
        raise UserError("method and environment must be text")
    return info
