"""Agent files: round trip, every way to be wrong, and corrupted bytes."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save as safetensors_save

from smoothrl import networks
from smoothrl.agents import Agent, AgentInfo, Moments, Smoothing, load_agent, read_header, save_agent
from smoothrl.agents.file import agent_bytes
from smoothrl.errors import UserError
from smoothrl.noise import GeneratorNoise


@pytest.fixture
def agent() -> Agent:
    network = networks.GaussianPolicy(4, 2, hidden=(8,))
    networks.orthogonal(network.mean, torch.Generator().manual_seed(0))
    moments = Moments.zeros((4,))
    moments.push(np.random.default_rng(0).normal(size=(50, 4)))
    info = AgentInfo(
        "s-ppo",
        "Hopper-v4",
        "continuous",
        2,
        (4,),
        env_settings={"profile": "x"},
        action_low=(-1.0, -1.0),
        action_high=(1.0, 1.0),
        seed=3,
        steps=1000,
        trained_with=Smoothing("median", 0.2, 100),
        notes={"protocol": "sound"},
    )
    return Agent(network, moments.frozen(), info)


def test_round_trip(agent: Agent, tmp_path: Path) -> None:
    path = save_agent(agent, tmp_path / "deep" / "agent.safetensors")
    back = load_agent(path)
    assert back.info == agent.info
    assert back.smoothing == agent.smoothing
    assert back.digest == agent.digest
    x = agent.observe(np.ones((3, 4)))
    a, b = (g.act(x, GeneratorNoise(torch.Generator().manual_seed(0))) for g in (agent, back))
    assert torch.equal(a, b)
    assert load_agent(tmp_path / "deep").digest == agent.digest
    assert read_header(path)["info"]["seed"] == 3
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"


def test_digest_sees_weights_statistics_and_header(agent: Agent) -> None:
    digests = {agent.digest}
    with torch.no_grad():
        agent.network.log_std[0] += 1e-3
    digests.add(Agent(agent.network, agent.normaliser, agent.info).digest)
    agent.normaliser.mean[0] += 1e-9
    digests.add(Agent(agent.network, agent.normaliser, agent.info).digest)
    assert len(digests) == 3
    smoothed = agent.with_smoothing(Smoothing("median", 0.3, 7))
    assert smoothed.digest == Agent(agent.network, agent.normaliser, agent.info).digest


def forged(agent: Agent, change: dict[str, object], tensors: dict[str, torch.Tensor] | None = None) -> bytes:
    data = agent_bytes(agent)
    (length,) = struct.unpack("<Q", data[:8])
    meta = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["smoothrl"])
    for dotted, value in change.items():
        *parents, last = dotted.split(".")
        target = meta
        for name in parents:
            target = target[name]
        target[last] = value
    return safetensors_save(tensors or agent.tensors(), {"smoothrl": json.dumps(meta)})


WRONG_HEADERS = [
    ({"version": 99}, "newer smoothrl"),
    ({"version": "one"}, "makes no sense"),
    ({"format": "other"}, "not a smoothrl agent"),
    ({"agent": None}, "incomplete"),
    ({"agent.network.kind": "evil"}, "unknown network kind"),
    ({"agent.network.hidden": [10**9]}, "needs"),
    ({"agent.network.hidden": [9]}, "needs"),
    ({"agent.network.observations": "4"}, "does not fit"),
    ({"agent.network": {"kind": "dncnn", "depth": 10**9}}, "far more layers than its 5 tensors"),
    (
        {"agent.network": {"kind": "bounded", "body": {"kind": "mlp", "hidden": [1] * 10**5}}},
        "far more layers",
    ),
    ({"agent.info.actions": 0}, "make no sense"),
    ({"agent.info.observation_shape": [7]}, "normaliser's mean has shape"),
    ({"agent.info.observation_shape": "x"}, "does not describe an agent"),
    ({"agent.info.trained_with": {"kind": "median", "sigma": -1}}, "sigma above 0"),
    ({"agent.info.surprise": 1}, "does not describe an agent"),
    ({"agent.info.seed": 4}, "checksum"),
    ({"digest": "0" * 64}, "checksum"),
    ({"digest": 7}, "incomplete"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_HEADERS)
def test_wrong_headers(agent: Agent, tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(forged(agent, change))
    with pytest.raises(UserError, match=message) as caught:
        load_agent(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_tensors(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = agent.tensors()
    tensors["network.extra"] = torch.zeros(1)
    path.write_bytes(forged(agent, {}, tensors))
    with pytest.raises(UserError, match="missing or unknown"):
        load_agent(path)
    tensors = agent.tensors()
    tensors["network.log_std"] = torch.zeros(2, dtype=torch.int64)
    path.write_bytes(forged(agent, {}, tensors))
    with pytest.raises(UserError, match="has type"):
        load_agent(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a smoothrl agent file"),
        (b"hello world, not an agent", "not a smoothrl agent file"),
        (pickle.dumps({"a": 1}), "pickle file"),
        (b"PK\x03\x04" + b"\0" * 100, "smoothrl import"),
        (struct.pack("<Q", 2**62) + b"{}", "truncated or damaged"),
        (struct.pack("<Q", 2) + b"{}", "without a smoothrl header"),
        (safetensors_save({"w": torch.zeros(2)}), "without a smoothrl header"),
        (safetensors_save({}, {"smoothrl": "{"}), "not JSON"),
        (safetensors_save({}, {"smoothrl": "[" * 100_000}), "not JSON"),
        (safetensors_save({}, {"smoothrl": "3"}), "not an object"),
    ],
)
def test_foreign_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "foreign.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_agent(path)


def test_missing_file_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_agent(tmp_path / "nothing.safetensors")
    with pytest.raises(UserError, match="name the agent file"):
        load_agent(tmp_path)


def test_every_truncation_is_refused(agent: Agent, tmp_path: Path) -> None:
    data, path = agent_bytes(agent), tmp_path / "a.safetensors"
    for length in [*range(0, 64), *range(64, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(UserError):
            load_agent(path)


def test_flipped_bytes_never_give_another_agent(agent: Agent, tmp_path: Path) -> None:
    """A corrupted file is refused, or (where only the note on software changed) is the same agent."""
    data, path = agent_bytes(agent), tmp_path / "a.safetensors"
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(1500):
        broken = bytearray(data)
        for position in rng.integers(0, len(data), rng.integers(1, 4)):
            broken[position] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(broken)
        try:
            assert load_agent(path).digest == agent.digest
        except UserError:
            refused += 1
    assert refused > 1300
