"""Evaluations on one core: how fast, against what, and in how much memory.

1. 50 Hopper episodes of a median-smoothed policy, 100 samples a decision, against one episode and one noise
   sample at a time; and against stepping the same environments alone with the same actions.
2. The fast denoiser against DnCNN-17: multiply-adds and time of one image (in a batch of noisy copies).
3. Peak memory of evaluations with few and with very many samples, on vectors and on images."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import record, seconds, show

from smoothrl import envs, networks, rollout
from smoothrl.agents import Agent, AgentInfo, Moments, Normaliser, Smoothing, load_agent
from smoothrl.noise import episode_seeds

Keep = Callable[..., Any]


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


def stepping_alone(agent: Agent, env_id: str, episodes: int, seed: int, repeats: int) -> float:
    """Seconds of the same episodes' environments alone, reset and stepped with the recorded actions."""
    recorded: list[tuple[np.ndarray, np.ndarray]] = []
    rollout.evaluate(
        agent, env_id, episodes, seed, on_step=lambda s: recorded.append((s.local.copy(), s.actions))
    )

    def replay() -> float:
        running = envs.make_episodes(env_id, episode_seeds(seed, episodes, "env"))
        start = time.perf_counter()
        running.reset()
        for ids, actions in recorded:
            running.step(ids, actions)
        taken = time.perf_counter() - start
        running.close()
        return taken

    return min(replay() for _ in range(repeats))


def speed(agent: Agent, env_id: str, episodes: int, plain_episodes: int, repeats: int, keep: Keep) -> None:
    """The first two figures."""
    result = rollout.evaluate(agent, env_id, episodes, 0)
    fast = seconds(lambda: rollout.evaluate(agent, env_id, episodes, 0), repeats)
    steps = int(result.lengths.sum())
    slow_steps = 0

    def plain() -> None:
        nonlocal slow_steps
        _, slow_steps = one_at_a_time(agent, env_id, plain_episodes, 0)

    slow = seconds(plain) / slow_steps
    stepping = stepping_alone(agent, env_id, episodes, 0, repeats)
    detail = {
        "agent": agent.name,
        "episodes": episodes,
        "steps": steps,
        "seconds": round(fast, 3),
        "plain_us_per_step": round(slow * 1e6, 1),
        "ours_us_per_step": round(fast / steps * 1e6, 1),
        "stepping_us_per_step": round(stepping / steps * 1e6, 1),
        "mean_return": round(float(result.returns.mean()), 1),
    }
    ratio = slow / (fast / steps)
    keep(
        "rollout_smoothed_hopper",
        f"{episodes} Hopper episodes, median of 100: against one episode, one sample at a time",
        ratio,
        ">= 45x",
        ratio >= 45,
        detail,
    )
    overhead = fast / stepping
    keep(
        "rollout_against_stepping",
        "the same evaluation against stepping its environments alone",
        overhead,
        "<= 2x",
        overhead <= 2,
        detail,
    )


def denoisers(copies: int, repeats: int, keep: Keep) -> None:
    """Both denoisers on noisy copies of one 84 x 84 image, in fp32 as they are trained."""
    torch.manual_seed(0)
    image = torch.rand(1, 1, 84, 84)
    batch = image + 0.1 * torch.randn(copies, 1, 84, 84)
    large, small = networks.frozen(networks.DnCNN()), networks.frozen(networks.FastDenoiser())
    operations = [networks.multiply_adds(network, image) for network in (large, small)]
    with torch.no_grad():
        small(batch)
        times = [seconds(lambda n=network: n(batch), repeats) / copies for network in (large, small)]
    detail = {
        "multiply_adds": operations,
        "ms_per_image": [round(t * 1e3, 3) for t in times],
        "images": copies,
    }
    work, time = (pair[0] / pair[1] for pair in (operations, times))
    what = "fast denoiser against DnCNN-17: multiply-adds an image"
    keep("denoiser_multiply_adds", what, work, ">= 20x", work >= 20, detail)
    what = "fast denoiser against DnCNN-17: time an image"
    keep("denoiser_time", what, time, ">= 12x", time >= 12, detail)


def denoised() -> Agent:
    """S-DQN's largest network, DnCNN-17 before the Nature CNN, on Pong."""
    spec = envs.spec("PongNoFrameskip-v4", profile="single-frame")
    network = networks.DenoisedQ(networks.DnCNN(), networks.NatureQ(1, spec.action_size))
    info = AgentInfo("s-dqn", spec.id, "discrete", spec.action_size, spec.obs_shape, spec.settings)
    return Agent(network, Normaliser("scale", 1 / 255), info)


def memory(env_id: str, quick: bool, keep: Keep) -> None:
    """Peak memory of this process after evaluations at the defaults: 50 episodes, few and many samples."""
    policy, peaks = stand_in(env_id), {}
    for samples, steps in ((100, 100), (10_000, 20), (1_000_000, 1))[: 2 if quick else 3]:
        agent = policy.with_smoothing(Smoothing("median", 0.2, samples))
        rollout.evaluate(agent, env_id, 12 if samples == 1_000_000 else 50, 0, max_steps=steps)
        peaks[f"{env_id}, {samples} samples"] = peak()
    images = denoised().with_smoothing(Smoothing("vote", 0.1, 20 if quick else 400))
    rollout.evaluate(images, None, 1, 0, max_steps=1)
    peaks[f"Pong through DnCNN-17, {images.smoothing.samples} samples"] = peak()
    what = "peak memory of evaluations, up to 1,000,000 samples a decision"
    keep("rollout_memory", what, peak(), "< 2 GB", peak() < 2, peaks, "GB")


def peak() -> float:
    """The largest memory of this process so far, in gigabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", type=Path, help="a trained agent; an untrained stand-in without it")
    parser.add_argument("--env", default="Hopper-v4")
    parser.add_argument("--only", choices=("speed", "denoisers", "memory"))
    parser.add_argument("--quick", action="store_true", help="fewer episodes and repeats, nothing kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep: Keep = show if options.quick else record
    episodes, plain, repeats = (8, 1, 1) if options.quick else (50, 2, 3)
    if options.only in (None, "speed"):
        smooth = Smoothing("median", 0.2, 100)
        agent = load_agent(options.agent).with_smoothing(smooth) if options.agent else stand_in(options.env)
        speed(agent, options.env, episodes, plain, repeats, keep)
    if options.only in (None, "denoisers"):
        denoisers(10 if options.quick else 100, repeats, keep)
    if options.only in (None, "memory"):
        memory(options.env, options.quick, keep)


if __name__ == "__main__":
    main()
