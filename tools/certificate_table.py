"""Write docs/results/certificates.md: published and exact certificates from the same draws.

python tools/certificate_table.py AGENT... [--samples 100,1000] [--episodes 5] [--returns 1000]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from smoothrl import certification, rollout, smoothing
from smoothrl.agents import Agent, Smoothing, load_agent
from smoothrl.certificates import adiv, radius, return_bound
from smoothrl.certificates.radius import default_mode, largest_radius

TARGET = Path(__file__).parents[1] / "docs" / "results" / "certificates.md"
ALPHA = 0.05
HEAD = """# Certificates on trained agents: published and exact

Both columns of a row come from the same draws: votes, action samples or returns of the same clean episodes.
*Published* is the paper's formula, *exact* what holds at the stated 95 % (a state, or a budget). In bold
where the published number is not a valid bound: its failure probability for a continuous law is then above
5 %.

"""
RADII = """## Certified radius

In units of sigma, l2. Exact: the one-stage procedure, `majority` for up to three actions, `rank` above. At
most 500 steps an episode, abstentions count 0; *certified*: share of the states with a certificate.

| agent | sigma | votes | states | published | certified | exact | certified | exact / published |
|---|---|---|---|---|---|---|---|---|
"""
ACTIONS = """
## Action bounds

ADIV, ||U - L|| / (2 eps) averaged over visited states, at each l2 budget. Exact covers all coordinates and
both sides of a state together, so it is the wider one; *failure*: of the published bound, one side of one
coordinate. Where no order statistic bounds a side, the exact bound is *infinite* there and left out of the
mean.

| agent | sigma | samples | eps | eps / sigma | states | published | failure up to | exact | infinite |
|---|---|---|---|---|---|---|---|---|---|
"""
RETURNS = """
## Return bounds

Attacked return of the one-draw agent that is reached with probability at least 1/2, from one set of clean
episodes; l2 budget eps a step, up to the horizon H. *-*: no order statistic bounds it, with the number of
episodes that would.

| agent | sigma | episodes, H | eps | B / sigma | published | failure up to | exact |
|---|---|---|---|---|---|---|---|
"""


def name(agent: Agent) -> str:
    return f"{agent.info.method} on {agent.info.env_id}" + (
        "" if agent.info.seed is None else f", seed {agent.info.seed}"
    )


def collected(agent: Agent, episodes: int, keep: Callable[[rollout.Step], np.ndarray]) -> np.ndarray:
    parts: list[np.ndarray] = []
    rollout.evaluate(agent, episodes=episodes, max_steps=500, on_step=lambda step: parts.append(keep(step)))
    return np.concatenate(parts)


def marked(text: str, valid: bool) -> str:
    return text if valid else f"**{text}**"


def radii(agent: Agent, samples: int, episodes: int) -> str:
    sigma = agent.smoothing.sigma
    agent = agent.with_smoothing(Smoothing("vote", sigma, samples))
    counts = collected(agent, episodes, lambda step: smoothing.vote_counts(step.outputs).numpy())
    published = radius(counts, 1.0, ALPHA, "paper")
    exact = radius(counts, 1.0, ALPHA, default_mode(agent.info.actions))
    cells = [f"{r.mean_radius:.3f} | {100 * r.fraction_certified:.1f} %" for r in (published, exact)]
    ratio = exact.mean_radius / published.mean_radius if published.mean_radius > 0 else math.inf
    states = len(counts)
    return f"| {name(agent)} | {sigma:g} | {samples} | {states} | {cells[0]} | {cells[1]} | {ratio:.2f} |\n"


def action_bounds(agent: Agent, samples: int, episodes: int) -> str:
    sigma, text = agent.smoothing.sigma, ""
    agent = agent.with_smoothing(Smoothing("median", sigma, samples))
    drawn = collected(agent, episodes, lambda step: step.outputs.numpy())
    for eps in certification.ADIV_EPSILONS:
        published = adiv(drawn, [eps], sigma, mode="paper", reading="numpy")
        exact = adiv(drawn, [eps], sigma)
        bound = published.bounds[0]
        text += (
            f"| {name(agent)} | {sigma:g} | {samples} | {eps:g} | {eps / sigma:.3g} | {len(drawn)} "
            f"| {marked(f'{published.value:.3f}', bound.claim.valid)} | {100 * bound.violation:.1f} % "
            f"| {exact.value:.3f} | {100 * exact.infinite_fraction:.1f} % |\n"
        )
    return text


def return_bounds(agent: Agent, episodes: int) -> str:
    done = certification.certify_return(agent, episodes, 0, alpha=ALPHA)
    exact, horizon, text = done.result, done.result.horizon, ""
    published = return_bound(
        done.extras["returns"], exact.sigma, eps=exact.eps.tolist(), horizon=horizon, mode="paper"
    )
    for i, eps in enumerate(exact.eps):
        needed = exact.episodes_needed[i]
        bound = f"{exact.bound[i]:.1f}" if exact.found[i] else f"- ({needed:,} needed)"
        paper = marked(f"{published.bound[i]:.1f}", bool(published.valid[i]))
        text += (
            f"| {name(agent)} | {exact.sigma:g} | {episodes}, {horizon} | {eps:g} "
            f"| {exact.budget[i] / exact.sigma:.3g} | {paper} "
            f"| {100 * published.violation[i]:.1f} % | {bound} |\n"
        )
    return text


def caps() -> str:
    lines = [
        "\nWhat a unanimous vote gives at most, in sigma:\n\n",
        "| votes | published | majority | rank |\n|---|---|---|---|\n",
    ]
    for samples in (20, 50, 100, 200, 1000, 10_000):
        found = [largest_radius(samples, 1.0, ALPHA, mode) for mode in ("paper", "majority", "rank")]
        lines.append(f"| {samples} | " + " | ".join(f"{value:.3f}" for value in found) + " |\n")
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="+", type=Path)
    parser.add_argument("--samples", default="100,1000")
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--returns", type=int, default=1000)
    args = parser.parse_args()
    agents = [load_agent(path) for path in args.agents]
    sizes = [int(m) for m in args.samples.split(",")]
    voting = [a for a in agents if a.discrete]
    acting = [a for a in agents if not a.discrete]
    text = HEAD
    if voting:
        text += RADII + "".join(radii(a, m, args.episodes) for a in voting for m in sizes) + caps()
    if acting:
        text += ACTIONS + "".join(action_bounds(a, m, args.episodes) for a in acting for m in sizes)
    text += RETURNS + "".join(return_bounds(a, args.returns) for a in agents)
    made = " ".join(["python tools/certificate_table.py", *sys.argv[1:]])
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text + FOOT + f"    {made}\n")


FOOT = """
ADIV and return bounds of the paper's twelve released Hopper agents, both protocols beside the published
numbers, are in [released-hopper.md](released-hopper.md). Made by

"""

if __name__ == "__main__":
    main()
