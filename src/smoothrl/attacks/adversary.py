"""A fitted adversary (critic, perturbing policy, director) and its file, bound to its victim."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_save
from torch import Tensor, nn

from smoothrl import networks
from smoothrl.agents import Agent
from smoothrl.agents.file import network_from_state, versions
from smoothrl.errors import UserError
from smoothrl.storage import write_atomically

FORMAT_VERSION = 1
Kind = Literal["min-rs", "optimal", "pa-ad"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class AdversaryInfo:
    """What the file says about the adversary."""

    kind: Kind
    victim: str
    """Digest of the agent it was fitted against."""
    victim_method: str
    env_id: str
    epsilon: float
    """The budget it was fitted for; 0 where it fits any (critics)."""
    norm: str = "linf"
    protocol: str = "sound"
    smoothing: str = "none"
    """The victim's smoothing during the fit, in words."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Hyper-parameters, learning curve, held-out score."""


@dataclass(frozen=True)
class Adversary:
    """A fitted network and what it was fitted against."""

    network: nn.Module
    info: AdversaryInfo


def save_adversary(adversary: Adversary, path: str | Path) -> Path:
    """Write the adversary atomically; returns its path."""
    meta = {
        "format": "smoothrl-adversary",
        "version": FORMAT_VERSION,
        "software": versions(),
        "adversary": asdict(adversary.info),
        "network": networks.describe(adversary.network),
    }
    tensors = {k: v.contiguous() for k, v in adversary.network.state_dict().items()}
    target = Path(path)
    write_atomically(target, safetensors_save(tensors, {"smoothrl": json.dumps(meta, sort_keys=True)}))
    return target


def load_adversary(path: str | Path) -> Adversary:
    """Read an adversary file; nothing in it is executed."""
    source = Path(path)
    tensors, meta = _read(source)
    if not isinstance(meta, dict) or meta.get("format") != "smoothrl-adversary":
        what = meta.get("format") if isinstance(meta, dict) else None
        raise UserError(f"{source}: not an adversary file but {what!r}; `smoothrl attack` writes them")
    if meta.get("version") != FORMAT_VERSION:
        raise UserError(
            f"{source}: written by another smoothrl (format {meta.get('version')!r}); fit it again"
        )
    try:
        info = AdversaryInfo(**meta["adversary"])
        network = network_from_state(meta["network"], tensors)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{source}: the header does not describe an adversary ({error}); fit it again"
        ) from error
    if info.kind not in KINDS:
        raise UserError(f"{source}: an adversary of unknown kind {info.kind!r}")
    return Adversary(networks.frozen(network), info)


def _read(source: Path) -> tuple[dict[str, Tensor], Any]:
    if not source.is_file():
        raise UserError(f"{source}: no such adversary file")
    try:
        with safe_open(str(source), framework="pt") as stream:
            meta = json.loads((stream.metadata() or {}).get("smoothrl", "null"))
            return {name: stream.get_tensor(name) for name in stream.keys()}, meta  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, RecursionError) as error:
        raise UserError(f"{source}: not an adversary file, or damaged ({error})") from error


def check_adversary(adversary: Adversary, kind: str, agent: Agent, env_id: str | None = None) -> None:
    """Refuse an adversary of another kind, agent or environment (the one played in; else the agent's own)."""
    info, played = adversary.info, env_id or agent.info.env_id
    if info.kind != kind:
        raise UserError(f"this adversary was fitted for {info.kind!r}, not for {kind!r}")
    if info.env_id != played:
        raise UserError(
            f"this adversary was fitted in {info.env_id}, the agent acts in {played}; fit it again"
        )
    if info.victim != agent.digest:
        raise UserError(
            f"this adversary was fitted against another agent ({info.victim_method}, {info.victim[:12]}...); "
            f"this one is {agent.name}, {agent.digest[:12]}...; fit it again"
        )
