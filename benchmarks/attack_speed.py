"""Speed of the attacks, as ratios in one run on one core.

    python benchmarks/attack_speed.py mad AGENT          attacked evaluation against clean, and the plain way
    python benchmarks/attack_speed.py critics AGENT      30 Min-RS critics as a pool, or one after another
    python benchmarks/attack_speed.py adversaries AGENT  18 adversaries as a pool, or one after another

AGENT is a smoothed Hopper agent file (100 samples).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from common import record
from torch import Tensor

from smoothrl.agents import Agent, load_agent
from smoothrl.attacks import Search, make_attack
from smoothrl.attacks.catalogue import Overrides, plan_of
from smoothrl.learners.adversaries import FitSettings, _Fit
from smoothrl.learners.attack_runs import Episodes, play
from smoothrl.learners.critics import CRITIC_GRID, CriticSettings, collect_experience, fit_critics, light
from smoothrl.learners.fit_attacks import HOPPER_RATES, adversary_grid
from smoothrl.protocols import PAPER, SOUND, Protocol

EPSILON = 0.075
PLAIN_STEPS = 60


def plain_step(
    agent: Agent, s: Tensor, plan: Search, protocol: Protocol, generator: torch.Generator
) -> Tensor:
    """MAD and one smoothed decision the plain way: batch-one gradients, one forward a noise sample."""
    network, sigma = agent.network, agent.smoothing.sigma
    draws = 0 if protocol.attack_single_draw else plan.draws
    size = plan.size(EPSILON)
    best, best_value = s, -1.0
    for _ in range(plan.restarts):
        x = s + size * torch.randn(s.shape, generator=generator).sign()
        x = s + (x - s).clamp(-EPSILON, EPSILON)
        for i in range(plan.steps):
            x = x.detach().requires_grad_(True)
            if draws:
                change: Tensor = torch.zeros(1, agent.info.actions)
                for _ in range(draws):
                    z = sigma * torch.randn(s.shape, generator=generator)
                    with torch.no_grad():
                        clean = network(s + z)
                    change = change + (network(x + z) - clean) / draws
            else:
                with torch.no_grad():
                    clean = network(s)
                change = network(x) - clean
            value = change.square().sum()
            (gradient,) = torch.autograd.grad(value, x)
            if protocol.mad_injected_noise:
                wobble = torch.randn(s.shape, generator=generator)
                gradient = gradient + (2 * size) ** 0.5 / (i + 2) * wobble
            x = s + (x.detach() + size * gradient.sign() - s).clamp(-EPSILON, EPSILON)
        if value.item() > best_value:
            best, best_value = x, value.item()
    with torch.no_grad():
        means = [
            network(best + sigma * torch.randn(s.shape, generator=generator))
            for _ in range(agent.smoothing.samples)
        ]
    return torch.stack(means).median(0).values[0]


def plain_seconds(agent: Agent, protocol: Protocol) -> float:
    """Seconds of one step of one episode, one episode at a time."""
    plan = plan_of("mad", agent, protocol, Overrides())
    env, generator = gymnasium.make("Hopper-v4"), torch.Generator().manual_seed(0)
    raw, _ = env.reset(seed=0)
    start = time.perf_counter()
    for _ in range(PLAIN_STEPS):
        action = plain_step(agent, agent.observe(raw[None]), plan, protocol, generator)
        raw, _, terminated, truncated, _ = env.step(action.numpy())
        if terminated or truncated:
            raw, _ = env.reset()
    return (time.perf_counter() - start) / PLAIN_STEPS


def mad(agent: Agent) -> None:
    episodes = Episodes(50, 0)
    for protocol in (SOUND, PAPER):
        times, cpu, steps = {}, {}, {}
        for name in ("clean", "mad"):
            attack = None if name == "clean" else make_attack("mad", agent, EPSILON, protocol=protocol)
            began, busy = time.perf_counter(), time.process_time()
            found = play(agent, attack, episodes).results
            times[name], cpu[name] = time.perf_counter() - began, time.process_time() - busy
            steps[name] = int(found.lengths.sum())
        per_step = {n: times[n] / steps[n] for n in times}
        plain = plain_seconds(agent, protocol)
        detail = {
            "clean_ms_per_episode_step": round(1e3 * per_step["clean"], 4),
            "mad_ms_per_episode_step": round(1e3 * per_step["mad"], 4),
            "plain_ms_per_episode_step": round(1e3 * plain, 4),
            "cpu_ratio": round((cpu["mad"] / steps["mad"]) / (cpu["clean"] / steps["clean"]), 3),
            "protocol": protocol.name,
        }
        detail["ratio_per_episode_step"] = round(per_step["mad"] / per_step["clean"], 3)
        ratio, gain = times["mad"] / times["clean"], plain / per_step["mad"]
        name = f"attack_mad_{protocol.name}"
        what = f"50 Hopper episodes under MAD ({protocol.name}) against the same without attack"
        record(f"{name}_cost", what, ratio, "at most 2", ratio <= 2, detail)
        what = f"MAD ({protocol.name}) against the plain way, a step"
        record(f"{name}_speed", what, gain, "at least 50", gain >= 50, detail)


def critics(agent: Agent, alone: int = 2) -> None:
    """A tenth of the published fit on either side; alone, each critic plays its own single environment."""
    settings = CriticSettings(iterations=3, horizon=2048)
    env_id, times = agent.info.env_id, {}
    collect_experience(agent, env_id, replace(settings, iterations=1, horizon=64), SOUND)  # first use
    for name, grid, lanes in (("pool", CRITIC_GRID, settings.lanes), ("single", CRITIC_GRID[:1], 1)):
        for part in ("collect", "fit"):
            times[f"{name}_{part}"] = 0.0
        for _ in range(1 if name == "pool" else alone):
            start = time.perf_counter()
            data = collect_experience(agent, env_id, replace(settings, lanes=lanes), SOUND)
            between = time.perf_counter()
            fit_critics(agent, env_id, grid, settings, SOUND, experience=data)
            times[f"{name}_collect"] += between - start
            times[f"{name}_fit"] += time.perf_counter() - between
    for part in ("collect", "fit"):
        times[f"single_{part}"] /= alone
    count = len(CRITIC_GRID)
    pool, single = (times[f"{n}_collect"] + times[f"{n}_fit"] for n in ("pool", "single"))
    detail = {k: round(v, 3) for k, v in times.items()} | {"singles_timed": alone}
    detail["ratio_of_the_fit_alone"] = round(count * times["single_fit"] / times["pool_fit"], 2)
    what = "30 critics as a pool on shared trajectories against one after another on their own"
    record(
        "attack_critics_pool", what, count * single / pool, "at least 10", count * single / pool >= 10, detail
    )


def adversaries(agent: Agent, alone: int = 2, iterations: int = 2) -> None:
    victim = light(agent, 20)
    grid = adversary_grid(HOPPER_RATES, (0.2, 0.4), (0.0,))
    settings = FitSettings(EPSILON, 2048 * iterations)

    def fit(part: tuple[object, ...], seed: int) -> tuple[float, float]:
        job = _Fit(victim, victim.info.env_id, part, replace(settings, seed=seed), SOUND, "atla", None)  # type: ignore[arg-type]
        began = time.perf_counter()
        job.run(None, None)
        took, stepping = time.perf_counter() - began, job.arena.stepping_time
        job.arena.close()
        return took, stepping

    pool, stepping = fit(grid, 0)
    singles = [fit((g,), i)[0] for i, g in enumerate(grid[:alone])]
    ratio = float(np.mean(singles)) * len(grid) / pool
    detail = {
        "pool_s": round(pool, 2),
        "pool_stepping_share": round(stepping / pool, 3),
        "single_s": round(float(np.mean(singles)), 2),
        "singles_timed": alone,
    }
    record("attack_adversaries_pool", "18 adversaries as a pool", ratio, "at least 1.6", ratio >= 1.6, detail)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"mad": mad, "critics": critics, "adversaries": adversaries}[sys.argv[1]](load_agent(Path(sys.argv[2])))
