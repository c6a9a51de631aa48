"""Write docs/results/certificates.md: published and exact radii of the same votes, on the agents given.

python tools/certificate_table.py AGENT... [--samples 100,1000] [--episodes 5]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from smoothrl import certification
from smoothrl.agents import Smoothing, load_agent
from smoothrl.certificates import files
from smoothrl.certificates.radius import default_mode, largest_radius, radius
from smoothrl.protocols import PAPER

TARGET = Path(__file__).parents[1] / "docs" / "results" / "certificates.md"
HEAD = """# Certificates on trained agents: published and exact

Radii in units of sigma, l2, alpha 0.05 a state, from the same votes: the published formula (Theorem 2 with
Hoeffding's inequality) and the exact one-stage procedure (`majority` for up to three actions, `rank` above).
Clean episodes, at most 500 steps each; abstentions count 0.

| agent | sigma | votes | states | published: mean, share | exact: mean, share | exact / published |
|---|---|---|---|---|---|---|
"""


def row(path: Path, samples: int, episodes: int) -> str:
    agent = load_agent(path)
    sigma = agent.smoothing.sigma
    agent = agent.with_smoothing(Smoothing("vote", sigma, samples))
    done = certification.certify_radius(agent, episodes, 0, protocol=PAPER)
    counts = np.asarray(files.decode(done.record["data"]["counts"]))
    exact = radius(counts, sigma, 0.05, default_mode(agent.info.actions))
    published = done.result
    name = f"{agent.info.method} on {agent.info.env_id}, seed {agent.info.seed}"
    return (
        f"| {name} | {sigma:g} | {samples} | {len(counts)} "
        f"| {published.mean_radius / sigma:.3f}, {100 * published.fraction_certified:.1f} % "
        f"| {exact.mean_radius / sigma:.3f}, {100 * exact.fraction_certified:.1f} % "
        f"| {exact.mean_radius / published.mean_radius:.2f} |\n"
    )


def caps() -> str:
    lines = [
        "\nWhat a unanimous vote gives at most, in sigma:\n\n",
        "| votes | published | majority | rank |\n|---|---|---|---|\n",
    ]
    for samples in (20, 50, 100, 200, 1000, 10_000):
        found = [largest_radius(samples, 1.0, 0.05, mode) for mode in ("paper", "majority", "rank")]
        lines.append(f"| {samples} | " + " | ".join(f"{value:.3f}" for value in found) + " |\n")
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="+", type=Path)
    parser.add_argument("--samples", default="100,1000")
    parser.add_argument("--episodes", type=int, default=5)
    args = parser.parse_args()
    rows = [row(a, int(m), args.episodes) for a in args.agents for m in args.samples.split(",")]
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(HEAD + "".join(rows) + caps() + FOOT)


FOOT = """
Action bounds (ADIV) and return bounds of the paper's released Hopper agents, both protocols side by side,
are in [released-hopper.md](released-hopper.md).

Made by `python tools/certificate_table.py` from agents of `smoothrl study run minatar`.
"""

if __name__ == "__main__":
    main()
