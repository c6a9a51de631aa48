"""The commands and code blocks of docs/bring-your-agent.md, run as they stand there."""

from __future__ import annotations

import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from smoothrl import SmoothedPolicy
from smoothrl.agents import load_agent, save_agent
from smoothrl.agents.importers import from_torch, read_statistics
from smoothrl.cli.main import main
from smoothrl.networks import KINDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "bring-your-agent.md").read_text(encoding="utf-8")


def block(word: str) -> str:
    """The indented block of the page that holds this word."""
    blocks, lines = [], []
    for line in [*PAGE.splitlines(), "end"]:
        if line.startswith("    ") or (lines and not line.strip()):
            lines.append(line)
        elif lines:
            blocks.append(textwrap.dedent("\n".join(lines)).strip())
            lines = []
    (found,) = (b for b in blocks if word in b)
    return found


def policy() -> nn.Module:
    return nn.Sequential(nn.Linear(11, 16), nn.Tanh(), nn.Linear(16, 3))


def test_the_adapter_of_ten_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, command = block("# my_agent.py").partition("$ smoothrl ")
    assert len([line for line in code.splitlines() if line.strip() and not line.startswith("#")]) <= 10
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "my_project", types.SimpleNamespace(Policy=policy))  # type: ignore[misc]
    theirs = policy()
    torch.save(theirs.state_dict(), "policy.pt")
    torch.save({"mean": torch.arange(11.0), "std": torch.full((11,), 2.0)}, "stats.pt")
    Path("my_agent.py").write_text(code)
    assert main(command.split()) == 0
    raw = np.random.default_rng(0).normal(size=(1000, 11)) * 9
    seen = torch.from_numpy(np.clip((raw - np.arange(11.0)) / 2.0, -10, 10)).float()
    with torch.no_grad():
        wanted = theirs(seen).clamp(-1.0, 1.0).numpy()
    assert np.abs(SmoothedPolicy(load_agent("agent.safetensors")).predict(raw)[0] - wanted).max() < 1e-6


def test_a_module_with_a_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = block("class Mine").replace("width: int): ...", "width: int):\n        build(self, width)")

    def build(self: Any, width: int) -> None:
        nn.Module.__init__(self)
        self.width, self.body, self.out = width, nn.Linear(4, width), nn.Linear(width, 2)

    import smoothrl

    monkeypatch.setattr("smoothrl.networks.KINDS", dict(KINDS))
    space: dict[str, Any] = {"nn": nn, "smoothrl": smoothrl, "build": build}
    exec(code, space)
    space["Mine"].forward = lambda self, x: self.out(self.body(x).tanh()) + x[:, :2]
    mine = space["Mine"](8)
    agent = from_torch(mine, env_id="CartPole-v1", observation_shape=(4,), actions=2, action_kind="discrete")
    again = load_agent(save_agent(agent, tmp_path / "a.safetensors"))
    x = torch.randn(5, 4)
    assert torch.equal(again.forward(x), mine(x))


def test_statistics_of_a_cleanrl_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def make() -> gym.Env[Any, Any]:
        env = gym.wrappers.ClipAction(gym.wrappers.RecordEpisodeStatistics(gym.make("Hopper-v4")))
        env = gym.wrappers.NormalizeObservation(env)
        env = gym.wrappers.TransformObservation(env, lambda x: np.clip(x, -10, 10), None)
        return gym.wrappers.TransformReward(env, float)

    envs = gym.vector.SyncVectorEnv([make])
    envs.action_space.seed(0)
    envs.reset(seed=0)
    for _ in range(50):
        seen = envs.step(envs.action_space.sample())[0]
    exec(block("NormalizeObservation"), {"np": np, "envs": envs})
    normaliser = read_statistics("stats.npz")
    raw = envs.envs[0].unwrapped._get_obs()  # type: ignore[attr-defined]
    assert np.allclose(normaliser(raw[None])[0], seen[0], atol=1e-6)


def test_their_evaluation_of_our_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3", reason="needs the extra sb3")
    monkeypatch.chdir(tmp_path)
    box = ([-1.0] * 3, [1.0] * 3)
    save_agent(
        from_torch(
            policy(),
            env_id="Hopper-v5",
            observation_shape=(11,),
            actions=3,
            action_kind="continuous",
            action_box=box,
        ),
        "agent.safetensors",
    )
    space = {"env": gym.wrappers.RecordEpisodeStatistics(gym.make("Hopper-v5"))}
    exec(block("evaluate_policy"), space)
    assert 0.0 < space["mean"] < 1000.0  # type: ignore[operator]
