"""Speed of PPO and S-PPO training, as ratios measured in one run, per core.

    python benchmarks/ppo_speed.py [--quick] [--only ppo|s-ppo] [--env Hopper-v2] [--pool 15]

The baseline is the released procedure written down plainly: one Gymnasium environment, one forward of batch
one for each noise sample when collecting, one forward of the minibatch for each noise sample when updating,
gradients through all of them, one torch optimiser a network. Ours is a pool, as `smoothrl train` runs it,
with one stepping thread. Both are counted in CPU seconds of the whole process (stepping threads included),
so a ratio is per core; the rounds alternate and the median of each side counts. Keeps its figures in
results/ unless --quick.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from common import record
from torch import Tensor, nn

from smoothrl.learners import methods, presets
from smoothrl.learners.actor_critic import ActorCritic
from smoothrl.learners.collect import Arena
from smoothrl.learners.players import PolicyPlayer
from smoothrl.learners.ppo import Learner

HORIZON, MINIBATCHES, EPOCHS, GAMMA, LAMBDA, CLIP = 2048, 32, 10, 0.99, 0.95, 0.2
SIGMA, SAMPLES = 0.2, 20


# --------------------------------------------------------------------------------------- the baseline


class RunningNorm:
    """Welford's running mean and variance of one stream."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count, self.mean, self.m2 = 0, np.zeros(shape), np.zeros(shape)

    def push(self, x: Any) -> None:
        self.count += 1
        delta = x - self.mean
        self.mean = self.mean + delta / self.count
        self.m2 = self.m2 + delta * (x - self.mean)

    @property
    def std(self) -> Any:
        return np.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else np.abs(self.mean)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Baseline:
    """One agent, one environment, one forward a noise sample."""

    def __init__(self, env_id: str, samples: int) -> None:
        self.env, self.samples = gymnasium.make(env_id), samples
        observations, actions = self.env.observation_space.shape[0], self.env.action_space.shape[0]
        self.policy, self.value = mlp(observations, actions), mlp(observations, 1)
        self.log_std = nn.Parameter(torch.zeros(actions))
        self.policy_adam = torch.optim.Adam([*self.policy.parameters(), self.log_std], lr=3e-4, eps=1e-5)
        self.value_adam = torch.optim.Adam(self.value.parameters(), lr=2.5e-4, eps=1e-5)
        self.observations, self.rewards = RunningNorm((observations,)), RunningNorm(())

    def mean(self, states: Tensor) -> Tensor:
        if self.samples == 0:
            return self.policy(states)
        outputs = [self.policy(states + SIGMA * torch.randn_like(states)) for _ in range(self.samples)]
        return torch.stack(outputs).median(dim=0).values

    def log_prob(self, mean: Tensor, actions: Tensor) -> Tensor:
        z = (actions - mean) / self.log_std.exp()
        return -0.5 * (z * z).sum(-1) - 0.5 * math.log(2 * math.pi) * actions.shape[-1] - self.log_std.sum()

    def observe(self, raw: Any) -> Tensor:
        self.observations.push(raw)
        x = (raw - self.observations.mean) / (self.observations.std + 1e-8)
        return torch.from_numpy(np.clip(x, -10.0, 10.0).astype(np.float32))

    @torch.no_grad()
    def collect(self) -> dict[str, Tensor]:
        rows: dict[str, list[Any]] = {k: [] for k in ("s", "a", "logp", "r", "go")}
        state, running = self.observe(self.env.reset()[0]), 0.0
        for _ in range(HORIZON):
            mean = self.mean(state[None])
            action = mean + self.log_std.exp() * torch.randn_like(mean)
            raw, reward, terminated, truncated, _ = self.env.step(action[0].numpy())
            running = running * GAMMA + float(reward)
            self.rewards.push(running)
            scaled = float(np.clip(reward / (self.rewards.std + 1e-8), -10.0, 10.0))
            done = terminated or truncated
            row = (state, action[0], self.log_prob(mean, action)[0], scaled, 0.0 if done else 1.0)
            for key, value in zip(rows, row, strict=True):
                rows[key].append(value)
            state = self.observe(raw)
            if done:
                state, running = self.observe(self.env.reset()[0]), 0.0
        stacked = {k: torch.stack(rows[k]) for k in ("s", "a", "logp")}
        return stacked | {k: torch.tensor(rows[k]) for k in ("r", "go")}

    @torch.no_grad()
    def advantages(self, data: dict[str, Tensor]) -> Tensor:
        values = self.value(data["s"])[:, 0]
        after = torch.cat([values[1:], values[-1:]]) * data["go"]
        delta = (data["r"] + GAMMA * after - values).tolist()
        decay = (GAMMA * LAMBDA * data["go"]).tolist()
        carry, out = 0.0, [0.0] * HORIZON
        for t in range(HORIZON - 1, -1, -1):
            carry = delta[t] + decay[t] * carry
            out[t] = carry
        data["v"] = values
        return torch.tensor(out)

    def iterate(self) -> None:
        data = self.collect()
        data["adv"] = self.advantages(data)
        targets = data["v"] + data["adv"]
        for _ in range(EPOCHS):
            for index in torch.randperm(HORIZON).chunk(MINIBATCHES):
                error = (self.value(data["s"][index])[:, 0] - targets[index]).square()
                keep = data["go"][index]
                loss = (error * keep).sum() / keep.sum()
                self.value_adam.zero_grad()
                loss.backward()
                self.value_adam.step()
        for _ in range(EPOCHS):
            for index in torch.randperm(HORIZON).chunk(MINIBATCHES):
                advantage = data["adv"][index]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                mean = self.mean(data["s"][index])
                ratio = torch.exp(self.log_prob(mean, data["a"][index]) - data["logp"][index])
                gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
                self.policy_adam.zero_grad()
                (-gain.mean()).backward()
                self.policy_adam.step()


# ------------------------------------------------------------------------------------------- measuring


def cpu(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def pool(name: str, env_id: str, members: int) -> Learner:
    config = presets.configure(methods.parse(name), env_id, range(members), {"steps": HORIZON * 1000})
    return Learner(config, threads=1)


def compare(name: str, samples: int, env_id: str, members: int, rounds: int, plain: int) -> dict[str, Any]:
    """Environment steps a CPU second of both, rounds alternating."""
    ours, theirs = pool(name, env_id, members), Baseline(plain_id(env_id), samples)
    ours.iterate()
    theirs.iterate()
    mine, base = [], []
    for _ in range(rounds):
        mine.append(HORIZON * members / cpu(ours.iterate))
        base.append(HORIZON * plain / cpu(lambda: [theirs.iterate() for _ in range(plain)]))
    split = profile(ours)
    ours.arena.close()
    found = {"method": name, "env": env_id, "pool": members}
    found |= {"steps_per_cpu_s": statistics.median(mine), "baseline_steps_per_cpu_s": statistics.median(base)}
    found["ratio"] = found["steps_per_cpu_s"] / found["baseline_steps_per_cpu_s"]
    return found | {f"share_{k}": v for k, v in split.items()}


def plain_id(env_id: str) -> str:
    """Gymnasium has v4 for what is v2 here; masses and inertias do not change the speed."""
    return env_id.replace("-v2", "-v4")


def profile(learner: Learner) -> dict[str, float]:
    """Shares of the CPU time of one iteration: stepping, networks (noise, passes, losses, Adam), the rest."""
    spent = {"stepping": 0.0, "networks": 0.0}
    places = [
        (Arena, "send", "stepping"),
        (Arena, "recv", "stepping"),
        (Arena, "restart", "stepping"),
        (Arena, "begin", "stepping"),
        (PolicyPlayer, "act", "networks"),
        (PolicyPlayer, "__init__", "networks"),
        (ActorCritic, "update_value", "networks"),
        (ActorCritic, "update_policy", "networks"),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in places]

    def timed(call: Callable[..., Any], part: str) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                spent[part] += time.thread_time() - start

        return wrapper

    for (owner, name, call), (_, _, part) in zip(kept, places, strict=True):
        setattr(owner, name, timed(call, part))
    try:
        thread, total = time.thread_time(), time.process_time()
        learner.iterate()
        thread, total = time.thread_time() - thread, time.process_time() - total
    finally:
        for owner, name, call in kept:
            setattr(owner, name, call)
    spent["stepping"] += total - thread
    spent["rest"] = total - spent["stepping"] - spent["networks"]
    return {k: v / total for k, v in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round instead of five")
    parser.add_argument("--only", choices=("s-ppo", "ppo"), help="one of the two comparisons")
    parser.add_argument("--env", default="Hopper-v2")
    parser.add_argument("--pool", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if options.quick else 5
    for name, samples, plain, target in (("s-ppo", SAMPLES, 1, 8.0), ("ppo", 0, 3, 5.0)):
        if options.only in (None, name):
            row = compare(name, samples, options.env, options.pool, rounds, plain)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            report(row, target, peak, keep=not options.quick)


def report(row: dict[str, Any], target: float, peak: float, keep: bool) -> None:
    """Print a comparison; keep its figures."""
    name, rest = row["method"].replace("-", "_"), row["share_rest"]
    print(
        f"{row['method']} {row['env']} pool {row['pool']}: {row['steps_per_cpu_s']:,.0f} steps per CPU s, "
        f"baseline {row['baseline_steps_per_cpu_s']:,.0f}: x {row['ratio']:.1f} (target {target:g}); "
        f"stepping {row['share_stepping']:.0%}, networks {row['share_networks']:.0%}, rest {rest:.0%}; "
        f"peak {peak:.2f} GiB, load {os.getloadavg()[0]:.1f}"
    )
    if keep:
        what = f"{row['method']} on {row['env']}, pool of {row['pool']}: environment steps per CPU second"
        record(f"{name}_training", what, row["ratio"], f">= {target:g}", row["ratio"] >= target, row)
        share = "share of a training outside stepping and networks"
        record(f"{name}_overhead", f"{row['method']}: {share}", rest, "< 0.15", rest < 0.15, row, "share")
        if name == "s_ppo":
            record(
                "ppo_pool_memory", f"pool of {row['pool']}: peak memory", peak, "< 3", peak < 3, row, "GiB"
            )


if __name__ == "__main__":
    main()
