"""Single networks in files of their own: critics, denoisers, adversaries; the company an agent keeps.

The file is an agent file's sibling: safetensors, a JSON header, nothing executed when it is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_save
from torch import nn

from smoothrl import networks
from smoothrl.agents.agent import content_digest
from smoothrl.agents.file import network_from_state, precheck, versions
from smoothrl.errors import UserError
from smoothrl.storage import write_atomically

Role = Literal["critic", "critic-q", "denoiser", "adversary", "director"]
FORMAT = "smoothrl-network"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Part:
    """A network and what it is for."""

    role: Role
    """critic V(s), critic-q Q(s, a), denoiser, adversary (observation to direction), director (observation to
    action direction)."""
    network: nn.Module
    about: dict[str, Any] = field(default_factory=dict)
    """Facts: env_id, victim (digest of the agent it belongs to), epsilon, sigma, origin."""


def part_bytes(part: Part) -> bytes:
    tensors = {name: value.contiguous() for name, value in part.network.state_dict().items()}
    header = {"role": part.role, "network": networks.describe(part.network), "about": part.about}
    meta = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "digest": content_digest(header, tensors),
        "software": versions(),
        "part": header,
    }
    return safetensors_save(tensors, {"smoothrl": json.dumps(meta, sort_keys=True)})


def save_part(part: Part, path: str | Path) -> Path:
    """Write the network file atomically; returns its path."""
    target = Path(path)
    write_atomically(target, part_bytes(part))
    return target


def load_part(path: str | Path, role: Role | None = None) -> Part:
    """Read a network file; another role than the wanted one is refused."""
    target = Path(path)
    if not target.is_file():
        raise UserError(f"{target}: no such file")
    precheck(target)
    try:
        with safe_open(str(target), framework="pt") as stream:
            meta = json.loads((stream.metadata() or {}).get("smoothrl", "{}"))
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, RecursionError) as error:
        raise UserError(f"{target}: truncated or damaged ({error}); take a fresh copy") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        kind = meta.get("format") if isinstance(meta, dict) else None
        raise UserError(f"{target}: a {kind or 'foreign'} file where a network file is needed")
    header = meta.get("part")
    if meta.get("version") != FORMAT_VERSION or not isinstance(header, dict):
        raise UserError(f"{target}: written by another version of smoothrl; make it again with this one")
    if content_digest(header, tensors) != meta.get("digest"):
        raise UserError(f"{target}: the content does not match its checksum; take a fresh copy")
    if role is not None and header.get("role") != role:
        raise UserError(f"{target}: holds a {header.get('role')!r}, and a {role!r} is needed here")
    if header.get("role") not in get_args(Role) or not isinstance(header.get("about"), dict):
        raise UserError(f"{target}: the header is incomplete; make the file again")
    network = network_from_state(header["network"], tensors)
    return Part(header["role"], networks.frozen(network), header["about"])
