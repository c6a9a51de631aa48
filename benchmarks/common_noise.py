"""What common random numbers change in S-PPO: the update reuses the collection's noise, or draws fresh noise.

    python benchmarks/common_noise.py [--quick] [--env Hopper-v2] [--seeds 5] [--steps 600000]

Two pools with the same seeds, one an option, trained one after the other. With fresh noise many ratios lie
outside the clip range before any parameter has moved; with common noise none does. Whether the returns gain
by it is the open question that this measures. Keeps its figures in results/ unless --quick.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from common import record

from smoothrl.learners import methods, ppo, presets

SHARES = ("noise_clip_fraction", "clip_fraction", "noise_ratio_spread", "kl", "std")


def measure(common: bool, env_id: str, seeds: int, steps: int) -> dict[str, Any]:
    """Means over the last quarter of a training, and each seed's return at its end."""
    changes = {"steps": steps, "common_noise": common}
    config = presets.configure(methods.parse("s-ppo"), env_id, range(seeds), changes)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        ppo.train(config, folder, tensorboard=False, on_iteration=lambda _, row: rows.append(row))
    late = rows[-max(1, len(rows) // 4) :]
    found: dict[str, Any] = {name: statistics.fmean(row[name] for row in late) for name in SHARES}
    last = rows[-1]
    found["returns"] = [last[f"return/seed-{s}"] for s in range(seeds)]
    found["return"] = statistics.median(r for r in found["returns"] if math.isfinite(r))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="ten iterations, two seeds, nothing kept")
    parser.add_argument("--env", default="Hopper-v2")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds, steps = (2, 20_480) if options.quick else (options.seeds, options.steps)
    found = {}
    for name, common in (("fresh", False), ("common", True)):
        found[name] = measure(common, options.env, seeds, steps)
        shown = ", ".join(f"{k} {v:.3g}" for k, v in found[name].items() if k != "returns")
        print(f"{name} noise: {shown}", flush=True)
    if not options.quick:
        what = f"s-ppo on {options.env}, {seeds} seeds, {steps:,} steps: return with common noise over fresh"
        ratio = found["common"]["return"] / found["fresh"]["return"]
        record("s_ppo_common_noise", what, ratio, "none, an open question", True, found)


if __name__ == "__main__":
    main()
