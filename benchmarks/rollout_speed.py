"""Evaluating a median-smoothed policy: side by side against one episode and one noise sample at a time.

Both play the same Hopper episodes with 100 samples a decision on one core. The second figure compares the
evaluation with stepping those environments alone."""

from __future__ import annotations

import argparse
import resource
from pathlib import Path

import numpy as np
import torch
from common import record, seconds

from smoothrl import envs, networks, rollout
from smoothrl.agents import Agent, AgentInfo, Moments, Smoothing, load_agent
from smoothrl.noise import episode_seeds


def stand_in(env_id: str) -> Agent:
    """An untrained policy of the right shape; for figures that mean something pass a trained --agent."""
    spec = envs.spec(env_id)
    network = networks.GaussianPolicy(spec.obs_shape[0], spec.action_size)
    networks.orthogonal(network.mean, torch.Generator().manual_seed(0), head=0.01)
    moments = Moments.zeros(spec.obs_shape)
    moments.push(np.random.default_rng(0).normal(size=(100, *spec.obs_shape)))
    info = AgentInfo("ppo", env_id, "continuous", spec.action_size, spec.obs_shape)
    return Agent(network, moments.frozen(), info, Smoothing("median", 0.2, 100))


def one_at_a_time(agent: Agent, env_id: str, episodes: int, seed: int) -> tuple[float, int]:
    """The plain procedure: one Gymnasium-style environment, one forward a noise sample, torch.median."""
    total, steps = 0.0, 0
    generator = torch.Generator().manual_seed(seed)
    sigma, samples = agent.smoothing.sigma, agent.smoothing.samples
    for env_seed in episode_seeds(seed, episodes, "env"):
        running = envs.make_episodes(env_id, [env_seed])
        raw, done = running.reset(), False
        while not done:
            s = agent.normaliser(raw)
            with torch.no_grad():
                means = [
                    agent.network(s + sigma * torch.randn(s.shape, generator=generator))
                    for _ in range(samples)
                ]
                action = torch.stack(means).median(dim=0).values
            raw, reward, terminated, truncated = running.step(np.zeros(1, np.int64), action.numpy())
            done = bool(terminated[0] | truncated[0])
            total += float(reward[0])
            steps += 1
        running.close()
    return total / episodes, steps


def stepping_alone(agent: Agent, env_id: str, episodes: int, seed: int) -> int:
    """The same episodes' environments stepped by replaying recorded actions; returns the steps."""
    recorded: list[tuple[np.ndarray, np.ndarray]] = []
    rollout.evaluate(
        agent, env_id, episodes, seed, on_step=lambda s: recorded.append((s.local.copy(), s.actions))
    )
    running = envs.make_episodes(env_id, episode_seeds(seed, episodes, "env"))

    def replay() -> None:
        running.reset()
        for ids, actions in recorded:
            running.step(ids, actions)

    global stepping_seconds
    stepping_seconds = seconds(replay)
    running.close()
    return sum(len(ids) for ids, _ in recorded)


stepping_seconds = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", type=Path)
    parser.add_argument("--env", default="Hopper-v4")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--plain-episodes", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    agent = stand_in(args.env)
    if args.agent:
        agent = load_agent(args.agent).with_smoothing(Smoothing("median", 0.2, 100))
    result = rollout.evaluate(agent, args.env, args.episodes, 0)
    fast = seconds(lambda: rollout.evaluate(agent, args.env, args.episodes, 0), 3)
    steps = int(result.lengths.sum())
    slow_steps = 0

    def plain() -> None:
        nonlocal slow_steps
        _, slow_steps = one_at_a_time(agent, args.env, args.plain_episodes, 0)

    slow = seconds(plain) / slow_steps
    stepping_alone(agent, args.env, args.episodes, 0)
    detail = {
        "episodes": args.episodes,
        "steps": steps,
        "seconds": round(fast, 3),
        "plain_us_per_step": round(slow * 1e6, 1),
        "ours_us_per_step": round(fast / steps * 1e6, 1),
        "stepping_us_per_step": round(stepping_seconds / steps * 1e6, 1),
        "mean_return": round(float(result.returns.mean()), 1),
    }
    ratio = slow / (fast / steps)
    record(
        "rollout_smoothed_hopper",
        f"{args.episodes} Hopper episodes, median of 100: against one episode, one sample at a time",
        ratio,
        ">= 45x",
        ratio >= 45,
        detail,
    )
    overhead = fast / stepping_seconds
    record(
        "rollout_against_stepping",
        "the same evaluation against stepping its environments alone",
        overhead,
        "<= 2x",
        overhead <= 2,
        detail,
    )
    memory(agent, args.env)


def memory(agent: Agent, env_id: str) -> None:
    """Peak memory of this process after evaluations with 100 and with 10,000 samples."""
    for samples in (100, 10_000):
        rollout.evaluate(agent.with_smoothing(Smoothing("median", 0.2, samples)), env_id, 50, 0, max_steps=30)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    record("rollout_memory", "peak memory, up to 10,000 samples", peak, "< 2 GB", peak < 2, unit="GB")


if __name__ == "__main__":
    main()
