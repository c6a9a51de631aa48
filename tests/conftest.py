"""What all tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from smoothrl import envs, networks
from smoothrl.agents import Agent, AgentInfo, Moments, Smoothing, save_agent
from smoothrl.cli.main import main

torch.set_num_threads(1)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process (much cheaper): the same exit code, output and errors."""

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        words = [str(a) for a in args]
        capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, out, err)

    return run


@pytest.fixture(scope="session")
def smoothrl() -> Run:
    """Run the real command in a process of its own."""

    def run(*args: object, cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "smoothrl", *map(str, args)],
            capture_output=True,
            text=True,
            cwd=cwd,
            timeout=timeout,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
        )

    return run


def make_policy(env_id: str, smooth: Smoothing | None = None, seed: int = 0, head: float = 0.3) -> Agent:
    """An untrained policy for a continuous environment."""
    spec = envs.spec(env_id)
    network = networks.GaussianPolicy(spec.obs_shape[0], spec.action_size)
    networks.orthogonal(network.mean, torch.Generator().manual_seed(seed), head=head)
    moments = Moments.zeros(spec.obs_shape)
    moments.push(np.random.default_rng(seed).normal(size=(100, *spec.obs_shape)))
    info = AgentInfo(
        "s-ppo" if smooth else "ppo",
        env_id,
        "continuous",
        spec.action_size,
        spec.obs_shape,
        trained_with=smooth or Smoothing(),
    )
    return Agent(network, moments.frozen(), info)


@pytest.fixture(scope="session")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained, smoothed Hopper policy on disk."""
    agent = make_policy("Hopper-v4", Smoothing("median", 0.2, 10))
    return save_agent(agent, tmp_path_factory.mktemp("agents") / "hopper.safetensors")
