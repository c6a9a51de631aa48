"""The cost of certificates: one-draw episodes against stepping alone, radii from counts, the anytime test."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import common
import numpy as np
import torch
from common import record, seconds

from smoothrl import certificates, certification, envs, rollout
from smoothrl.agents import Smoothing, load_agent
from smoothrl.noise import episode_seeds

ZOO = Path(__file__).parents[1] / "zoo"
POLICY = ZOO / "s-ppo-Hopper-v2.safetensors"
VOTER = ZOO / "s-dqn-MinAtar-Breakout.safetensors"


def returns(path: Path, episodes: int) -> None:
    """A return certificate against replaying the actions of its episodes in the environments alone.

    Both sides step the same episodes side by side in the same threads; the certificate draws the noise, asks
    the network, keeps the returns and bounds them.
    """
    agent = certification.one_draw(load_agent(path))
    env_id = agent.info.env_id
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    options = {"episodes": episodes, "seed": 0, "lanes": episodes}
    rollout.evaluate(agent, **options, on_step=lambda s: kept.append((s.local.copy(), s.actions)))

    def alone() -> None:
        running = envs.make_episodes(env_id, episode_seeds(0, episodes, "env"), **agent.info.env_settings)
        running.reset()
        for ids, actions in kept:
            running.step(ids, actions)
        running.close()

    ours, stepping = [], []
    for _ in range(2):
        ours.append(seconds(lambda: certification.certify_return(agent, epsilons=(1e-4,), **options)))
        stepping.append(seconds(alone))
    ratio = min(ours) / min(stepping)
    steps = sum(len(ids) for ids, _ in kept)
    record(
        "certificate_returns",
        f"a return certificate from {episodes} one-draw {env_id} episodes, against stepping them alone",
        ratio,
        "<= 1.5x",
        ratio <= 1.5,
        {
            "steps": steps,
            "seconds": round(min(ours), 2),
            "stepping_seconds": round(min(stepping), 2),
            "steps_per_second": round(steps / min(ours)),
            "agent": path.name,
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
    """Samples the anytime test needs to decide radius 1 sigma on a trained S-DQN, at visited states.

    Both tests hold at the same alpha a state; `certified` says what the fixed hundred would have certified.
    Certified and given up count alike. The samples are the test's own, pilot included: which states the
    episodes visit is the acting agent's affair.
    """
    agent = load_agent(path)
    agent = agent.with_smoothing(Smoothing("vote", agent.smoothing.sigma, 100))
    done = certification.decide_radius(agent, agent.smoothing.sigma, episodes, 0, cap=100).result
    fixed = certification.certify_radius(agent, episodes, 0)
    reached = float((fixed.result.radius >= agent.smoothing.sigma).mean())
    mean = done.mean_samples
    record(
        "certificate_anytime",
        "samples a state to decide radius 1 sigma with the anytime test (fixed: 100), trained S-DQN",
        mean,
        "<= 40",
        mean <= 40,
        {
            "agent": path.name,
            "environment": agent.info.env_id,
            "states": len(done.samples),
            "certified": round(float(done.certified.mean()), 4),
            "certified_with_100_samples": round(reached, 4),
        },
        "samples",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", type=Path, default=POLICY, help="a median-smoothed policy")
    parser.add_argument("--voter", type=Path, default=VOTER, help="a trained S-DQN")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="few episodes: does it run? Keeps no figure")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        common.RESULTS = Path(tempfile.mkdtemp())
    radii()
    returns(args.agent, 20 if args.quick else args.episodes)
    anytime(args.voter, 1 if args.quick else 5)


if __name__ == "__main__":
    main()
