"""Put a trained agent into the zoo: play it, copy it, write its entry into manifest.json."""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from smoothrl.agents import Agent, load_agent, save_agent
from smoothrl.rollout import evaluate
from smoothrl.storage import write_atomically

HERE = Path(__file__).parent
LIMIT = 4_000_000


def entry(agent: Agent, file: str, episodes: int, seed: int) -> dict[str, Any]:
    """What the manifest says about an agent."""
    found = evaluate(agent, episodes=episodes, seed=seed)
    return {
        "file": file,
        "digest": agent.digest,
        "method": agent.info.method,
        "environment": agent.info.env_id,
        "settings": dict(agent.info.env_settings),
        "trained": {"seed": agent.info.seed, "steps": agent.info.steps, **dict(agent.info.notes)},
        "smoothing": str(agent.smoothing),
        "clean": {
            "mean": float(found.returns.mean()),
            "std": float(found.returns.std()),
            "episodes": episodes,
            "seed": seed,
            "returns": [float(r) for r in found.returns],
        },
    }


def returns_alone(curve: str) -> str:
    """The steps and returns of a learning curve, without what else a run logs (of every seed of a pool)."""
    rows = list(csv.reader(curve.splitlines()))
    kept = [i for i, name in enumerate(rows[0]) if name == "step" or "return" in name]
    return "".join(",".join(row[i] for i in kept) + "\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent", type=Path)
    parser.add_argument("--name")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=99)
    parser.add_argument("--samples", type=int, help="noise samples of a decision, if not those of the file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    agent = load_agent(options.agent)
    if options.samples is not None:
        agent = agent.with_smoothing(replace(agent.smoothing, samples=options.samples))
    game = agent.info.env_id.replace("/", "-")
    path = HERE / f"{options.name or f'{agent.info.method}-{game}'}.safetensors"
    save_agent(agent, path)
    if path.stat().st_size > LIMIT:
        size = path.stat().st_size
        path.unlink()
        raise SystemExit(f"{path.name}: {size / 1e6:.1f} MB, and the zoo takes agents of less than 4 MB")
    curve = (options.agent if options.agent.is_dir() else options.agent.parent) / "progress.csv"
    if curve.is_file():
        path.with_suffix(".csv").write_text(returns_alone(curve.read_text()))
    manifest = HERE / "manifest.json"
    entries = json.loads(manifest.read_text()) if manifest.exists() else {}
    entries[path.stem] = entry(agent, path.name, options.episodes, options.seed)
    write_atomically(manifest, (json.dumps(entries, indent=1, sort_keys=True) + "\n").encode())
    print(path.stem, entries[path.stem]["clean"]["mean"])


if __name__ == "__main__":
    main()
