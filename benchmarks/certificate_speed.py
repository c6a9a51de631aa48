"""The cost of certificates: one-draw episodes against stepping alone, radii from counts, the anytime test."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from common import record, seconds
from rollout_speed import stand_in

from smoothrl import certificates, certification, envs, rollout
from smoothrl.agents import Smoothing, load_agent
from smoothrl.noise import episode_seeds


def returns(path: Path | None, env_id: str, episodes: int) -> None:
    """1,000 one-draw episodes against replaying their recorded actions in the environments alone."""
    agent = load_agent(path) if path else stand_in(env_id)
    env_id = agent.info.env_id
    agent = agent.with_smoothing(Smoothing("median", agent.smoothing.sigma or 0.2, 1))
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    options = {"episodes": episodes, "seed": 0, "lanes": episodes}
    rollout.evaluate(agent, **options, on_step=lambda s: kept.append((s.local.copy(), s.actions)))

    def alone() -> None:
        running = envs.make_episodes(env_id, episode_seeds(0, episodes, "env"))
        running.reset()
        for ids, actions in kept:
            running.step(ids, actions)
        running.close()

    ours, stepping = [], []
    for _ in range(2):
        ours.append(seconds(lambda: rollout.evaluate(agent, **options)))
        stepping.append(seconds(alone))
    ratio = min(ours) / min(stepping)
    steps = sum(len(ids) for ids, _ in kept)
    record(
        "certificate_returns",
        f"{episodes} one-draw Hopper episodes of a return certificate, against stepping them alone",
        ratio,
        "<= 1.5x",
        ratio <= 1.5,
        {
            "steps": steps,
            "seconds": round(min(ours), 2),
            "stepping_seconds": round(min(stepping), 2),
            "steps_per_second": round(steps / min(ours)),
            "agent": path.name if path else "untrained",
        },
    )


def radii() -> None:
    """Radii of a whole episode from its counts."""
    rng = np.random.default_rng(0)
    counts = np.stack([rng.multinomial(100, p) for p in rng.dirichlet([20, 1, 1], 2500)])
    worst = {}
    for mode in ("paper", "majority", "rank"):
        certificates.radius(counts[:10], 0.1, 0.05, mode)
        worst[mode] = 1e3 * seconds(lambda mode=mode: certificates.radius(counts, 0.1, 0.05, mode), 5)
    slowest = max(worst.values())
    detail = {mode: round(ms, 3) for mode, ms in worst.items()}
    record(
        "certificate_radii",
        "radii of 2,500 states from counts",
        slowest,
        "< 10 ms",
        slowest < 10,
        detail,
        "ms",
    )


def anytime(path: Path, episodes: int) -> None:
    """Samples the anytime test needs to decide radius 1 sigma on a trained S-DQN."""
    agent = load_agent(path)
    agent = agent.with_smoothing(Smoothing("vote", agent.smoothing.sigma, 100))
    done = certification.decide_radius(agent, agent.smoothing.sigma, episodes, 0, cap=100)
    fixed = certification.certify_radius(agent, episodes, 0)
    reached = float((fixed.result.radius >= agent.smoothing.sigma).mean())
    mean = done.result.mean_samples
    record(
        "certificate_anytime",
        "samples a state to decide radius 1 sigma with the anytime test (fixed: 100), trained S-DQN",
        mean,
        "<= 40",
        mean <= 40,
        {
            "agent": path.name,
            "environment": agent.info.env_id,
            "states": len(done.result.samples),
            "certified": round(float(done.result.certified.mean()), 4),
            "certified_with_100_samples": round(reached, 4),
        },
        "samples",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", type=Path, help="a median-smoothed policy")
    parser.add_argument("--voter", type=Path, help="a trained S-DQN")
    parser.add_argument("--env", default="Hopper-v4")
    parser.add_argument("--episodes", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    radii()
    returns(args.agent, args.env, args.episodes)
    if args.voter:
        anytime(args.voter, 5)


if __name__ == "__main__":
    main()
