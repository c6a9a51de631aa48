"""An update and a decision make every tensor on the learner's device or move it there.

The learners run on torch's `meta` device: it computes shapes only. What leaves the device (numbers for NumPy
and for the log) is replaced by ones and zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smoothrl import envs, networks
from smoothrl.cli.main import main
from smoothrl.learners import dqn, robust_dqn, s_dqn
from smoothrl.learners.dqn import DQNLearner, load_optimizer, optimizer_state, preset_config, seeded
from smoothrl.learners.q_config import NoisyDQNConfig, SDQNConfig
from smoothrl.learners.q_loop import QLearner
from smoothrl.learners.replay import Batch
from smoothrl.learners.robust_dqn import LEARNERS

SPEC = envs.spec("MinAtar/Breakout-v1")
NETWORK = {"env": SPEC.id, "batch": 8, "warmup": 8}
Q = {"kind": "q-small", "channels": 4, "actions": 3, "hidden": 16}


@pytest.fixture
def meta(monkeypatch: pytest.MonkeyPatch) -> None:
    adam, autocast = torch.optim.Adam, torch.autocast

    def unfused(*args: Any, fused: bool, **kwargs: Any) -> torch.optim.Adam:
        return adam(*args, **kwargs)

    monkeypatch.setattr(torch.optim, "Adam", unfused)
    monkeypatch.setattr(torch, "autocast", lambda device, *rest, **more: autocast("cpu", *rest, **more))
    for module in (dqn, robust_dqn, s_dqn):
        monkeypatch.setattr(module, "copied", lambda n: networks.frozen(networks.build(networks.describe(n))))
    for module in (dqn, s_dqn):
        monkeypatch.setattr(module, "noise_stream", lambda *_: torch.Generator())
    monkeypatch.setattr(Tensor, "item", lambda self: 1.0)
    monkeypatch.setattr(Tensor, "cpu", lambda self: torch.zeros(self.shape, dtype=self.dtype))
    monkeypatch.setattr(Tensor, "__bool__", lambda self: True)


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices, those that meta itself lets pass included."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim()]
        moves = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
        assert moves or len({t.device.type for t in tensors}) <= 1, f"{func} mixes devices"
        return func(*args, **(kwargs or {}))


def robust(name: str, device: str) -> QLearner:
    config = preset_config(f"dqn+{name}", SPEC.id, regulariser=name, hidden=16, epsilon=0.05)
    return LEARNERS[name](config, SPEC, device=device)


def denoising(device: str, **changes: Any) -> QLearner:
    config = SDQNConfig(**{**NETWORK, "denoiser_width": 8, "adversarial": "s-pgd", **changes})
    return s_dqn.SDQNLearner(config, SPEC, seeded(Q, 0), device)


def noisy(device: str) -> QLearner:
    return s_dqn.NoisyDQNLearner(NoisyDQNConfig(**NETWORK, hidden=16, sigma=0.2), SPEC, device)


CASES: dict[str, Callable[[str], QLearner]] = {
    "dqn": lambda device: DQNLearner(preset_config("dqn", SPEC.id, hidden=16), SPEC, device=device),
    "noise": lambda device: DQNLearner(
        preset_config("dqn", SPEC.id, hidden=16, noise=0.2), SPEC, device=device
    ),
    **{name: functools.partial(robust, name) for name in LEARNERS},
    "none": noisy,
    "fast": denoising,
    "base": functools.partial(denoising, td_target="base"),
    "dncnn": functools.partial(denoising, denoiser="dncnn"),
    "paper": functools.partial(denoising, denoiser="dncnn", protocol="paper"),
}


def batch(count: int = 8) -> Batch:
    boards = np.zeros((count, 4, 10, 10), np.uint8)
    ones = np.ones(count, np.float32)
    return Batch(np.arange(count), boards, np.zeros(count, np.int64), ones, ones, boards, ones)


@pytest.mark.usefixtures("meta")
@pytest.mark.parametrize("name", list(CASES))
def test_nothing_stays_behind_on_the_cpu(name: str) -> None:
    learner = CASES[name]("meta")
    with OneDevice():
        priorities, metrics = learner.update(batch(), 0.95)
        actions = learner.greedy(np.zeros((3, 4, 10, 10), np.uint8))
    assert priorities.shape == (8,)
    assert "loss" in metrics
    assert actions.shape == (3,)
    kept = [t for k, t in learner.state().items() if k not in ("updates", "generator", "noise") and t.dim()]
    assert all(t.device.type == "meta" for t in kept)


def test_the_optimizer_goes_on_where_its_parameters_are() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    twin = torch.nn.Parameter(torch.ones(3, device="meta"))
    moved = torch.optim.Adam([twin])
    load_optimizer(moved, optimizer_state(optimizer))
    assert {v.device.type for v in moved.state[twin].values()} == {"meta"}


def test_a_stream_of_another_device_is_followed_by_a_fresh_one() -> None:
    generator, twin = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    s_dqn.resume_noise(twin, generator.get_state())
    assert torch.equal(torch.rand(3, generator=twin), torch.rand(3, generator=generator))
    foreign = torch.arange(16, dtype=torch.uint8)
    s_dqn.resume_noise(generator, foreign)
    s_dqn.resume_noise(twin, foreign)
    assert torch.equal(torch.rand(3, generator=twin), torch.rand(3, generator=generator))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_refused_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dqn", "--env", SPEC.id, "--device", "cuda"]) != 0
    assert "--device cuda: this torch sees no CUDA device" in capsys.readouterr().err
