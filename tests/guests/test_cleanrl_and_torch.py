"""CleanRL's state dicts and a user's own modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from smoothrl import SmoothedPolicy, bounds
from smoothrl.agents import load_agent, save_agent
from smoothrl.agents.importers import from_torch, import_cleanrl, read_statistics, run_adapter
from smoothrl.agents.importers.estimate import with_estimated_normaliser
from smoothrl.agents.normaliser import Normaliser
from smoothrl.cli.main import main
from smoothrl.errors import UserError
from smoothrl.networks import MLP, Bounded, Chain, build, describe


class PPOAgent(nn.Module):
    """The layout of CleanRL's ppo_continuous_action."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )
        self.actor_mean = nn.Sequential(
            nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions)
        )
        self.actor_logstd = nn.Parameter(torch.zeros(1, actions))


class QNetwork(nn.Module):
    """The layout of CleanRL's dqn and dqn_atari."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.network = nn.Sequential(*layers)


def test_cleanrl_ppo(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = PPOAgent(11, 3)
    torch.save(theirs.state_dict(), tmp_path / "m.cleanrl_model")
    rng = np.random.default_rng(0)
    mean, var = rng.standard_normal(11), rng.uniform(0.1, 4, 11)
    np.savez(tmp_path / "stats.npz", mean=mean, var=var)
    box = ([-0.05] * 3, [0.05] * 3)
    found = import_cleanrl(
        tmp_path / "m.cleanrl_model",
        "Hopper-v4",
        normaliser=read_statistics(tmp_path / "stats.npz"),
        action_box=box,
    )
    raw = rng.standard_normal((200, 11)) * 5
    seen = torch.from_numpy(np.clip((raw - mean) / np.sqrt(var + 1e-8), -10, 10)).float()
    with torch.no_grad():
        wanted, value = theirs.actor_mean(seen).clamp(-0.05, 0.05).numpy(), theirs.critic(seen)
    assert np.abs(SmoothedPolicy(found.agent).predict(raw)[0] - wanted).max() < 1e-6
    assert torch.allclose(found.parts["critic"].network(seen), value, atol=1e-5)


@pytest.mark.parametrize("image", [False, True])
def test_cleanrl_dqn(image: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = (
        QNetwork(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, 6),
        )
        if image
        else QNetwork(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2))
    )
    torch.save(theirs.state_dict(), tmp_path / "m.cleanrl_model")
    agent = import_cleanrl(tmp_path / "m.cleanrl_model", "X").agent
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (20, 4, 84, 84), dtype=np.uint8) if image else rng.standard_normal((50, 4))
    with torch.no_grad():
        wanted = theirs.network(torch.from_numpy(raw).float() / (255 if image else 1))
    assert torch.allclose(agent.forward(agent.observe(raw)), wanted, atol=1e-5)
    assert agent.info.actions == wanted.shape[1]


def test_cleanrl_refusals(tmp_path: Path) -> None:
    torch.save({"other.weight": torch.zeros(3)}, tmp_path / "m.cleanrl_model")
    with pytest.raises(UserError, match="neither the actor"):
        import_cleanrl(tmp_path / "m.cleanrl_model", "X")
    torch.save(PPOAgent(11, 3), tmp_path / "whole.cleanrl_model")
    with pytest.raises(UserError, match="PPOAgent"):
        import_cleanrl(tmp_path / "whole.cleanrl_model", "X")
    (tmp_path / "flax.cleanrl_model").write_bytes(b"\x93\x81\xa3")
    with pytest.raises(UserError, match="PyTorch ones"):
        import_cleanrl(tmp_path / "flax.cleanrl_model", "X")


def test_estimated_statistics_are_those_of_the_play() -> None:
    agent = from_torch(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
        env_id="CartPole-v1",
        observation_shape=(4,),
        actions=2,
        action_kind="discrete",
    )
    first, second = (with_estimated_normaliser(agent, 400, seed=s) for s in (0, 0))
    assert first.digest == second.digest
    assert first.normaliser.kind == "moments"
    assert 0.01 < first.normaliser.std[2] < 0.3
    assert first.info.notes["normaliser"] == "estimated from 400 steps"
    with pytest.raises(UserError, match="too few"):
        with_estimated_normaliser(agent, 5)


# ------------------------------------------------------------------------------------- torch


CHAINS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (5,)),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(5, 7), nn.ReLU()), nn.Sequential(nn.Linear(7, 3))),
        (5,),
    ),
    "norm": (lambda: nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 7), nn.ELU(), nn.Linear(7, 3)), (5,)),
    "batch-norm": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.SiLU(), nn.Linear(7, 3)),
        (5,),
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.ReLU(), nn.Linear(7, 3)), (5,)),
    "no-bias": (lambda: nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 3)), (5,)),
    "squashed": (lambda: nn.Sequential(nn.Linear(5, 3), nn.Tanh()), (5,)),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(100, 3)
        ),
        (2, 10, 10),
    ),
}


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_module_becomes_plain_layers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, shape = CHAINS[name]
    module = make()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
    agent = from_torch(module, env_id="X", observation_shape=shape, actions=3, action_kind="discrete")
    path = save_agent(agent, tmp_path / "a.safetensors")
    x = torch.randn(20, *shape)
    wanted = module.eval()(x)
    assert torch.allclose(load_agent(path).forward(x), wanted, atol=1e-5)
    assert isinstance(agent.network, MLP if name in ("mlp", "nested", "dropout") else Chain)
    assert describe(build(describe(agent.network))) == describe(agent.network)


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x + self.a(x))


def test_modules_that_are_not_a_chain_are_refused_with_advice() -> None:
    settings = {"env_id": "X", "observation_shape": (5,), "actions": 3, "action_kind": "discrete"}
    with pytest.raises(UserError, match="one after another; give it a `description`"):
        from_torch(Skip(), **settings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="its layer LSTM"):
        from_torch(nn.Sequential(nn.LSTM(5, 3)), **settings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"\(2, 3\) is needed"):
        from_torch(nn.Linear(5, 4), **settings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="mean and std together"):
        from_torch(nn.Linear(5, 3), mean=np.zeros(5), **settings)  # type: ignore[arg-type]


def test_adapter_file_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = tmp_path / "mine.py"
    adapter.write_text(
        "from torch import nn\n"
        "from smoothrl.agents.importers import from_torch\n"
        "def agent():\n"
        "    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))\n"
        "    return from_torch(net, env_id='CartPole-v1', observation_shape=(4,), actions=2,\n"
        "                      action_kind='discrete')\n"
    )
    out = tmp_path / "agent.safetensors"
    assert main(["import", str(adapter), "--from", "torch", "--out", str(out)]) == 0
    assert "torch of CartPole-v1" in capsys.readouterr().out
    assert load_agent(out).info.actions == 2
    with pytest.raises(UserError, match=r"function agent\(\)"):
        run_adapter(tmp_path / "none.py")


def test_bounds_hold_for_a_chain() -> None:
    torch.manual_seed(0)
    agent = from_torch(
        nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3)),
        env_id="X",
        observation_shape=(5,),
        actions=3,
        action_kind="discrete",
    )
    inside = 0.1 * (2 * torch.rand(500, 5) - 1)
    box = (-0.1 * torch.ones(1, 5), 0.1 * torch.ones(1, 5))
    for how in (None, "clip", "tanh"):
        body = agent.network
        network = body if how is None else Bounded(body, how, [-0.05, -2.0, 0.1], [0.05, 2.0, 0.3])  # type: ignore[arg-type]
        outputs = network(inside)
        for method in ("ibp", "crown"):
            low, high = bounds.bounds(network, *box, method)  # type: ignore[arg-type]
            assert bool(((outputs >= low - 1e-6) & (outputs <= high + 1e-6)).all()), (how, method)
            if how is not None and method == "ibp":
                assert bool((low >= torch.tensor([-0.05, -2.0, 0.1]) - 1e-6).all())


def test_npz_statistics(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", mean=np.arange(3.0), std=np.array([1.0, 2.0, 4.0]), clip=np.array(5.0))
    found = read_statistics(tmp_path / "s.npz")
    assert isinstance(found, Normaliser)
    assert np.allclose(found(np.array([[1.0, 5.0, 100.0]])), [[1.0, 2.0, 5.0]])
    np.savez(tmp_path / "bad.npz", mean=np.array([object()]), var=np.ones(1))
    with pytest.raises(UserError, match="not an array of numbers"):
        read_statistics(tmp_path / "bad.npz")
