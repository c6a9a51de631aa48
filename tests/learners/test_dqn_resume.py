"""A run that was killed ends with the same bits as one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from smoothrl import envs
from smoothrl.agents import load_agent, save_agent
from smoothrl.errors import UserError
from smoothrl.learners import q_methods
from smoothrl.learners.dqn import DQNLearner, preset_config, train
from smoothrl.learners.methods import parse

SMALL = {
    "steps": 3000,
    "lanes": 4,
    "warmup": 200,
    "capacity": 600,
    "batch": 16,
    "hidden": 16,
    "eval_every": 1500,
    "eval_episodes": 2,
    "log_every": 500,
    "checkpoint_every": 300,
    "update_every": 8,
    "target_every": 20,
    "explore_steps": 1000,
}
CHILD = """
import sys, torch
torch.set_num_threads(1)
from smoothrl.learners.dqn import preset_config, train
train(preset_config("dqn", sys.argv[1], **{small}), sys.argv[2], resume=True)
"""


def child(env: str, out: Path) -> subprocess.Popen[bytes]:
    code = CHILD.replace("{small}", repr(SMALL))
    return subprocess.Popen([sys.executable, "-c", code, env, str(out)], stderr=subprocess.PIPE)


def rows_without_times(out: Path) -> str:
    return (out / "progress.csv").read_text()


def test_killed_runs_end_with_the_same_bits(tmp_path: Path) -> None:
    env = "MinAtar/Breakout-v1"
    whole = child(env, tmp_path / "whole")
    assert whole.wait() == 0
    rng = np.random.default_rng(0)
    broken = tmp_path / "broken"
    kills = 0
    while True:
        process = child(env, broken)
        state = broken / "state" / "state.safetensors"
        seen = state.stat().st_mtime_ns if state.exists() else 0
        while process.poll() is None and (not state.exists() or state.stat().st_mtime_ns == seen):
            time.sleep(0.01)
        time.sleep(float(rng.random() * 0.3))
        if process.poll() is None and kills < 3:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
            process.wait()
            continue
        assert process.wait() == 0
        break
    assert kills == 3
    assert load_agent(tmp_path / "whole").digest == load_agent(broken).digest
    assert rows_without_times(tmp_path / "whole") == rows_without_times(broken)


def test_a_lost_replay_is_named_and_can_be_refilled(tmp_path: Path) -> None:
    config = preset_config("dqn", "CartPole-v1", **{**SMALL, "steps": 900, "eval_every": 0})
    train(config, tmp_path)
    frames = tmp_path / "state" / "replay.frames"
    frames.unlink()
    with pytest.raises(UserError, match="refill-replay"):
        train(config, tmp_path, resume=True)
    train(config, tmp_path, resume=True, refill_replay=True)


BREAKOUT, PONG = "MinAtar/Breakout-v1", "PongNoFrameskip-v4"
SHORT = {
    "steps": 480,
    "lanes": 4,
    "warmup": 64,
    "capacity": 240,
    "batch": 8,
    "update_every": 8,
    "eval_every": 0,
    "log_every": 40,
    "checkpoint_every": 160,
}
BRIEF = {"steps": 192, "checkpoint_every": 64, "log_every": 16}
SMALL_Q = {"hidden": 16, "target_every": 5}
LEARNERS: dict[str, tuple[str, str, dict[str, object], dict[str, object]]] = {
    "sa": ("dqn+sa", BREAKOUT, {}, SMALL_Q | {"ramp_start": 0.1}),
    "radial": ("dqn+radial", BREAKOUT, {}, SMALL_Q | {"ramp_start": 0.1}),
    "wocar": ("dqn+wocar", BREAKOUT, {}, SMALL_Q | {"ramp_start": 0.1}),
    "noise": ("dqn", BREAKOUT, {}, SMALL_Q | {"noise": 0.2, "noise_start": 0.3}),
    "none": ("s-dqn", BREAKOUT, {"denoiser": "none"}, SMALL_Q),
    "s-pgd": ("s-dqn", BREAKOUT, {"adversarial": "s-pgd"}, {"denoiser_width": 8}),
    "paper": (
        "s-dqn",
        BREAKOUT,
        {"denoiser": "dncnn", "adversarial": "s-pgd"},
        BRIEF | {"protocol": "paper"},
    ),
    "base": ("s-dqn", BREAKOUT, {}, {"denoiser_width": 8, "td_target": "base"}),
    "atari": ("dqn", PONG, {}, SMALL_Q | {"width": 0.25}),
}


class Stopped(Exception):
    pass


@pytest.mark.parametrize("name", list(LEARNERS))
def test_every_learner_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """Stopped well past a checkpoint, frames written over the ring's oldest ones meanwhile."""
    method, env, named, changes = LEARNERS[name]
    if method == "s-dqn" and name != "none":
        q = DQNLearner(preset_config("dqn", env, hidden=16), envs.spec(env))
        named = named | {"base": save_agent(q.agent(0), tmp_path / "base.safetensors")}
    job = q_methods.configure(parse(method), env, SHORT | changes, **named)

    def stop(step: int, note: str) -> None:
        if step >= job.config.steps * 7 // 12:
            raise Stopped

    whole = q_methods.train(job, tmp_path / "whole")
    with pytest.raises(Stopped):
        q_methods.train(job, tmp_path / "broken", report=stop)
    broken = q_methods.train(job, tmp_path / "broken", resume=True)
    assert load_agent(whole).digest == load_agent(broken).digest
