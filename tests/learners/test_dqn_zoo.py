"""The zoo's manifest and its files agree, and every file is small."""

from __future__ import annotations

import json
from pathlib import Path

from smoothrl.agents import load_agent

ZOO = Path(__file__).parents[2] / "zoo"


def test_files_and_manifest_agree() -> None:
    manifest = ZOO / "manifest.json"
    entries = json.loads(manifest.read_text()) if manifest.exists() else {}
    files = {p.name for p in ZOO.glob("*.safetensors")}
    assert files == {e["file"] for e in entries.values()}
    for found in entries.values():
        path = ZOO / found["file"]
        agent = load_agent(path)
        assert path.stat().st_size < 4_000_000
        assert agent.digest == found["digest"]
        assert agent.info.method == found["method"]
        assert len(found["clean"]["returns"]) == found["clean"]["episodes"]
