"""Certificate files: what was written replays, what was altered is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smoothrl.certificates import radius
from smoothrl.certificates.files import KINDS, decode, digest, encode, make, read, verify, write
from smoothrl.errors import UserError

RNG = np.random.default_rng(0)
COUNTS = RNG.multinomial(100, [0.9, 0.05, 0.05], size=6)
CONTEXT = {"agent_hash": "sha256:abc", "environment": "Toy-v0", "seed": 7}
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "radius": ({"counts": COUNTS}, {"sigma": 0.1, "alpha": 0.05, "mode": "majority"}),
    "deployed-radius": ({"counts": COUNTS}, {"sigma": 0.1, "mode": "majority", "samples": 100, "eta": 0.01}),
    "joint-radius": ({"counts": COUNTS}, {"sigma": 0.1, "mode": "majority", "cap": 10}),
    "actions": ({"samples": RNG.normal(size=(3, 100, 2))}, {"eps": 0.1, "sigma": 0.2, "box": (-1.0, 1.0)}),
    "adiv": ({"samples": RNG.normal(size=(3, 100, 2))}, {"eps": [0.1, 0.5], "sigma": 0.2}),
    "return": ({"returns": RNG.normal(size=200)}, {"sigma": 0.2, "eps": [0.001, 0.9], "horizon": 100}),
    "per-step-return": ({"rewards": RNG.random((50, 8))}, {"eps": 0.01, "sigma": 0.2, "floor": 0.0}),
    "crop": (
        {"q_values": RNG.random((2, 60, 3)) + np.array([0.6, 0, 0])},
        {"value_range": (0.0, 1.6), "sigma": 0.1},
    ),
    "curve": ({"radii": RNG.random(12), "lengths": [5, 7]}, {"grid": [0.0, 0.5], "beta": 0.05}),
}


FIELDS = (
    "statement",
    "confidence",
    "samples",
    "bound",
    "claim",
    "budget",
    "environment",
    "seed",
    "parameters",
)


def example(kind: str) -> dict[str, Any]:
    data, parameters = EXAMPLES[kind]
    return make(kind, data, parameters, **CONTEXT)


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its digest recomputed: a forger who knows the format."""
    return record | {"digest": digest(record)}


def test_every_kind_has_an_example() -> None:
    assert set(EXAMPLES) == set(KINDS)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_is_written_verifies(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "certificate.json", example(kind))
    assert verify(path) == []
    assert verify(path, agent_hash="sha256:abc") == []
    record = read(path)
    assert {
        "statement",
        "budget",
        "confidence",
        "agent_hash",
        "environment",
        "seed",
        "samples",
        "bound",
    } <= set(record)
    assert record["claim"]["norm"] == "l2"


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize(
    "field",
    ["statement", "confidence", "samples", "bound", "claim", "budget", "environment", "seed", "parameters"],
)
def test_any_edit_breaks_the_digest(kind: str, field: str) -> None:
    record = example(kind)
    record[field] = "altered"
    assert any("digest" in failure for failure in verify(record))


def _number(path: list[Any], change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def edit(record: dict[str, Any]) -> None:
        place = record
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = change(place[path[-1]])

    return edit


TAMPERED = {
    "a better bound": _number(["bound", "radius", 0], lambda r: r * 1.01),
    "a better mean": _number(["bound", "mean_radius"], lambda r: r + 1e-6),
    "another action": _number(["bound", "action", 0], lambda a: a + 1),
    "more votes for the winner": _number(["data", "counts", 0, 0], lambda k: k + 5),
    "votes removed": _number(["data", "counts"], lambda c: c[:-1]),
    "a higher confidence": _number(["confidence"], lambda c: 0.99),
    "another statement": _number(["statement"], lambda s: s.replace("observation", "state")),
    "another adversary": _number(["claim", "adversary"], lambda s: "adaptive"),
    "more samples": _number(["samples"], lambda n: n + 1),
    "a smaller alpha": _number(["parameters", "alpha"], lambda a: 0.001),
    "another sigma": _number(["parameters", "sigma"], lambda s: 0.2),
    "an unknown kind": _number(["kind"], lambda k: "radios"),
    "an impossible parameter": _number(["parameters", "sigma"], lambda s: -1),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_replay_finds_a_forgery_with_a_fresh_digest(name: str) -> None:
    record = copy.deepcopy(example("radius"))
    TAMPERED[name](record)
    failures = verify(sealed(record))
    assert failures
    assert not any("digest" in failure for failure in failures)


def test_another_agent_is_found() -> None:
    failures = verify(example("radius"), agent_hash="sha256:other")
    assert len(failures) == 1
    assert "agent" in failures[0]


def test_only_resampling_finds_a_consistent_forgery() -> None:
    better = COUNTS.copy()
    better[:, 0], better[:, 1:] = 100, 0
    forged = make("radius", {"counts": better}, EXAMPLES["radius"][1], **CONTEXT)
    assert verify(forged, agent_hash="sha256:abc") == []
    failures = verify(forged, resample=lambda record: {"counts": COUNTS})
    assert any("resampling" in failure for failure in failures)
    assert verify(example("radius"), resample=lambda record: {"counts": COUNTS}) == []
    assert verify(example("radius"), resample=lambda record: {}) != []


def test_incomplete_and_foreign_files(tmp_path: Path) -> None:
    record = example("radius")
    del record["seed"]
    assert "seed" in verify(record)[0]
    path = tmp_path / "x.json"
    for text, word in (("{", "JSON"), ("[]", "format"), ('{"format": "other"}', "format")):
        path.write_text(text)
        with pytest.raises(UserError, match=word):
            verify(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a certificate"):
        verify(path)
    path.write_text(json.dumps(example("radius") | {"version": 99}))
    with pytest.raises(UserError, match="version 99"):
        verify(path)
    with pytest.raises(UserError, match="does not exist"):
        verify(tmp_path / "none.json")


def test_long_data_are_packed_without_loss(tmp_path: Path) -> None:
    sample = RNG.normal(size=(20, 100, 6)).astype(np.float32)
    packed = encode(sample)
    assert np.array_equal(decode(packed), sample)
    assert decode(packed).dtype == np.float32
    path = write(
        tmp_path / "c.json", make("actions", {"samples": sample}, {"eps": 0.1, "sigma": 0.2}, **CONTEXT)
    )
    assert verify(path) == []


def test_corrupted_packed_data_fail_politely() -> None:
    record = make(
        "actions", {"samples": RNG.normal(size=(20, 100, 6))}, {"eps": 0.1, "sigma": 0.2}, **CONTEXT
    )
    record["data"]["samples"]["zlib"] = "AAAA" + record["data"]["samples"]["zlib"][4:]
    assert any("replay" in failure for failure in verify(sealed(record)))


def test_infinite_bounds_survive_the_file(tmp_path: Path) -> None:
    record = make("actions", {"samples": RNG.normal(size=(10, 2))}, {"eps": 1.0, "sigma": 0.2}, **CONTEXT)
    path = write(tmp_path / "c.json", record)
    assert read(path)["bound"]["lower"] == ["-inf", "-inf"]
    assert verify(path) == []


def test_the_file_says_what_the_function_says() -> None:
    record = example("radius")
    result = radius(COUNTS, 0.1, 0.05, "majority")
    assert record["bound"]["radius"] == result.radius.tolist()
    assert record["samples"] == 600
    invalid = make(
        "return", {"returns": np.arange(100.0)}, {"sigma": 1.0, "budget": 4.0, "mode": "paper"}, **CONTEXT
    )
    assert invalid["statement"].startswith("not a valid bound")
    assert invalid["confidence"] is None
