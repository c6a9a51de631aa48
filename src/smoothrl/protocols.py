"""Two protocols as data: `PAPER` is what was published or released, defects included and named; `SOUND`
answers the same question correctly. Code reads a switch where it matters, never the protocol's name.
Every switch is one row of docs/protocols.md (a test compares the two)."""

from __future__ import annotations

from dataclasses import dataclass

from smoothrl.errors import unknown


@dataclass(frozen=True)
class Protocol:
    """The named switches."""

    name: str
    """For labels in results and reports only; no code branches on it."""


PAPER = Protocol(name="paper")
SOUND = Protocol(name="sound")

PROTOCOLS = {p.name: p for p in (SOUND, PAPER)}


def protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
