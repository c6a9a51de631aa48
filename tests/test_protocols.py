"""A protocol is data, and docs/protocols.md has one row a switch."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from smoothrl.errors import UserError
from smoothrl.protocols import PAPER, SOUND, Protocol, protocol

TABLE = (Path(__file__).parents[1] / "docs" / "protocols.md").read_text()
SWITCHES = [f.name for f in fields(Protocol) if f.name != "name"]


def test_every_switch_is_one_row_and_every_row_a_switch() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", TABLE, flags=re.MULTILINE)
    assert sorted(rows) == sorted(SWITCHES)


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_differs_between_the_two(switch: str) -> None:
    assert getattr(PAPER, switch) != getattr(SOUND, switch)


def test_no_code_branches_on_the_protocols_name() -> None:
    source = Path(__file__).parents[1] / "src" / "smoothrl"
    pattern = re.compile(r"protocol\.name\s*(==|!=|in\b)|\b(is|==)\s*(PAPER|SOUND)\b")
    guilty = [str(p) for p in source.rglob("*.py") if pattern.search(p.read_text())]
    assert not guilty


def test_unknown_protocol_names_the_near_one() -> None:
    with pytest.raises(UserError, match="did you mean 'paper'"):
        protocol("papr")
