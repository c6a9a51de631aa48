"""Speed and memory of the discrete-action learners on one core.

1. Acting with 100 votes: the fast denoiser against DnCNN-17, both as trained (fp32).
2. An S-DQN update (DnCNN-17, batch 64, 84 x 84) against the straightforward one: fp32, channels-first, weight
   gradients of the frozen Q-network computed and thrown away, as the released procedure does.
3. DnCNN-17 votes: bf16, channels-last, folded against plain fp32, and how many votes differ.
4. Where a training spends its time: environment, network arithmetic, the rest.
5. Peak memory of an Atari training with a replay of 200,000."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss, smooth_l1_loss

from smoothrl import envs, networks
from smoothrl.learners import dqn, q_loop
from smoothrl.learners.q_config import SDQNConfig
from smoothrl.learners.replay import Batch
from smoothrl.learners.run_directory import RunDirectory
from smoothrl.learners.s_dqn import SDQNLearner

PONG = "PongNoFrameskip-v4"
SPEC = envs.spec(PONG, profile="single-frame")


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """Fastest of `repeats` after one to warm up: a busy machine adds to the others."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def frames(count: int) -> np.ndarray[Any, Any]:
    """Frames of a game, not noise: a batch of Pong under random actions."""
    env = envs.make(SPEC.id, count, 0, **SPEC.settings)
    observations, _ = env.reset()
    rng = np.random.default_rng(0)
    for _ in range(40):
        observations = env.step(rng.integers(SPEC.action_size, size=count))[0]
    env.close()
    return np.asarray(observations)


def denoised(denoiser: nn.Module) -> networks.DenoisedQ:
    """Before a Q-network of random weights; a random last layer stands for training."""
    torch.manual_seed(0)
    convolutions = [m for m in denoiser.modules() if isinstance(m, nn.Conv2d)]
    nn.init.normal_(convolutions[-1].weight, std=0.01)
    network = networks.DenoisedQ(denoiser, networks.NatureQ(1, SPEC.action_size))
    networks.frozen(network)
    return network


def voting(votes: int, repeats: int) -> dict[str, float]:
    """Ratios 1 and 3. The Q-values are centred over the noisy copies, so that votes split."""
    clean = torch.from_numpy(frames(1)).float() / 255.0
    noisy = clean + 0.1 * torch.randn(votes, 1, 84, 84, generator=torch.Generator().manual_seed(1))
    plain = denoised(networks.DnCNN())
    fast = denoised(networks.FastDenoiser())
    quick = networks.frozen(networks.FastVotes(plain))
    with torch.no_grad():
        q = plain.q
        assert isinstance(q, networks.NatureQ)
        head = q.advantage[-1]
        assert isinstance(head, nn.Linear)
        head.bias.sub_(plain(noisy).mean(0))
        slow_time = seconds(lambda: plain(noisy), repeats)
        fast_time = seconds(lambda: fast(noisy), 3 * repeats)
        quick_time = seconds(lambda: quick(noisy), repeats)
        differ = int((plain(noisy).argmax(1) != quick(noisy).argmax(1)).sum())
    return {
        "votes": votes,
        "dncnn_fp32_s": slow_time,
        "fast_fp32_s": fast_time,
        "dncnn_bf16_s": quick_time,
        "fast_over_dncnn": slow_time / fast_time,
        "bf16_over_fp32": slow_time / quick_time,
        "votes_that_differ": differ,
    }


def straightforward_update(
    denoiser: nn.Module, q: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch
) -> None:
    """One update as plainly written: fp32, channels-first, every gradient that autograd can compute."""
    clean = torch.from_numpy(batch.observations).float() / 255.0
    following = torch.from_numpy(batch.following).float() / 255.0
    actions = torch.from_numpy(batch.actions)
    noisy = clean + 0.1 * torch.randn(clean.shape)
    restored = denoiser(noisy)
    value = q(restored).gather(1, actions[:, None]).squeeze(1)
    y = (
        torch.from_numpy(batch.returns) + torch.from_numpy(batch.discounts) * target(following).amax(1)
    ).detach()
    td = (torch.from_numpy(batch.weights) * smooth_l1_loss(value, y, reduction="none")).mean()
    loss = td + mse_loss(restored, clean, reduction="sum")
    optimizer.zero_grad()
    q.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def updates(batch_size: int, repeats: int) -> dict[str, float]:
    """Ratio 2."""
    rng = np.random.default_rng(0)
    shown = frames(batch_size)
    batch = Batch(
        np.arange(batch_size),
        shown,
        rng.integers(0, SPEC.action_size, batch_size),
        np.zeros(batch_size, np.float32),
        np.full(batch_size, 0.99, np.float32),
        shown[::-1].copy(),
        np.ones(batch_size, np.float32),
    )
    base = networks.NatureQ(1, SPEC.action_size)
    config = SDQNConfig(env=SPEC.id, denoiser="dncnn", batch=batch_size, warmup=batch_size, precision="bf16")
    learner = SDQNLearner(config, SPEC, base)
    denoiser, target = networks.DnCNN(), networks.NatureQ(1, SPEC.action_size)
    optimizer = torch.optim.Adam(denoiser.parameters(), lr=1e-3)
    plain = seconds(lambda: straightforward_update(denoiser, base, target, optimizer, batch), repeats)
    ours = seconds(lambda: learner.update(batch, 0.0), repeats)
    return {"batch": batch_size, "straightforward_s": plain, "ours_s": ours, "update_ratio": plain / ours}


def profile(env: str, steps: int, **changes: Any) -> dict[str, float]:
    """Seconds of one training by what they were spent on."""
    spent = {"environment": 0.0, "network": 0.0}

    def timed(owner: Any, name: str, kind: str) -> None:
        inner = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                spent[kind] += time.perf_counter() - start

        setattr(owner, name, call)

    config = dqn.preset_config("dqn", env, steps=steps, eval_every=0, **changes)
    spec = dqn.discrete_spec(env, config.env_settings, "dqn")
    with (
        tempfile.TemporaryDirectory() as folder,
        RunDirectory.open(Path(folder) / "run", q_loop.config_json(config), tensorboard=False) as directory,
    ):
        learner = dqn.DQNLearner(config, spec)
        training = q_loop.Training(learner, config, directory)
        while training.step < config.warmup:
            training.advance()
        timed(training.env, "send", "environment")
        timed(training.env, "recv", "environment")
        timed(learner, "greedy", "network")
        timed(learner, "update", "network")
        start, first = time.perf_counter(), training.step
        training.run()
        whole = time.perf_counter() - start
        done = training.step - first
    rest = whole - sum(spent.values())
    shares = {f"{kind}_share": value / whole for kind, value in spent.items()}
    return {"steps_per_s": done / whole, **shares, "rest_share": rest / whole}


def show(
    name: str, what: str, value: float, target: str, met: bool, detail: object = None, unit: str = "x"
) -> None:
    """One line on the terminal, nothing kept."""
    print(f"{name}: {value:.4g} {unit} (target {target}) {detail or ''}")


def figures(few: bool) -> None:
    """Measure everything; keep it unless the run was a quick one."""
    record = show if few else common.record
    votes = voting(20 if few else 100, 1 if few else 3)
    ratio = votes["fast_over_dncnn"]
    what = "acting with 100 votes: fast denoiser against DnCNN-17"
    record("dqn_fast_denoiser", what, ratio, ">= 12x", ratio >= 12, votes)
    ratio = votes["bf16_over_fp32"]
    what = (
        f"DnCNN-17 votes, bf16 folded channels-last against fp32 ({votes['votes_that_differ']} votes differ)"
    )
    record("dqn_dncnn_precision", what, ratio, ">= 1.7x", ratio >= 1.7, votes)
    update = updates(8 if few else 64, 1 if few else 3)
    ratio = update["update_ratio"]
    what = "S-DQN update (DnCNN-17) against fp32 channels-first with the frozen network's gradients"
    record("dqn_s_dqn_update", what, ratio, ">= 1.5x", ratio >= 1.5, update)
    for name, env, steps, changes in (
        ("minatar", "MinAtar/Breakout-v1", 12_000 if few else 40_000, {}),
        (
            "pong",
            PONG,
            2_000 if few else 8_000,
            {"warmup": 1_000, "explore_steps": 1_000, "capacity": 200_000},
        ),
    ):
        shares = profile(env, steps, **changes)
        rest = shares["rest_share"]
        what = f"dqn on {env}: time outside environment stepping and network arithmetic"
        record(f"dqn_profile_{name}", what, 100 * rest, "< 15 %", rest < 0.15, shares, unit="%")
    code = "import dqn_speed; dqn_speed.train_on_a_full_replay(200_000)"
    here = Path(__file__).parent
    peak = float(
        subprocess.run([sys.executable, "-c", code], cwd=here, check=True, capture_output=True).stdout
    )
    what = "Atari training with every byte of a replay of 200,000 in memory: peak of the process"
    record("dqn_memory", what, peak, "< 8 GB", peak < 8, unit="GB")


def train_on_a_full_replay(capacity: int) -> None:
    """Print the peak memory, in GB, of a short training whose replay pages have all been touched."""
    torch.set_num_threads(1)
    changes = {"steps": 2_000, "warmup": 1_000, "eval_every": 0, "checkpoint_every": 1_000}
    config = dqn.preset_config("dqn", PONG, capacity=capacity, **changes)
    spec = dqn.discrete_spec(PONG, config.env_settings, "dqn")
    with (
        tempfile.TemporaryDirectory() as folder,
        RunDirectory.open(Path(folder) / "run", q_loop.config_json(config)) as directory,
    ):
        training = q_loop.Training(dqn.DQNLearner(config, spec), config, directory)
        training.replay.frames[:] = 1
        training.run()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer votes and repeats, a smaller batch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    figures(options.quick)


if __name__ == "__main__":
    main()
