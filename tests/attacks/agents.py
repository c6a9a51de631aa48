"""Small agents of every kind, and linear ones whose worst case is known."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from smoothrl import networks
from smoothrl.agents import Agent, AgentInfo, Normaliser, Smoothing
from smoothrl.attacks import Adversary, AdversaryInfo


def info(action_kind: str, actions: int, shape: tuple[int, ...], env: str) -> AgentInfo:
    return AgentInfo("test", env, action_kind, actions, shape)  # type: ignore[arg-type]


def policy(smooth: Smoothing | None = None, seed: int = 0) -> Agent:
    torch.manual_seed(seed)
    network = networks.GaussianPolicy(2, 1, (16, 16))
    with torch.no_grad():
        for p in network.mean.parameters():
            p.mul_(2.0)
    return Agent(network, Normaliser(), info("continuous", 1, (2,), "smoothrl/ToyContinuous-v0"), smooth)


def normalised_policy() -> Agent:
    base = policy()
    normaliser = Normaliser("moments", clip=10.0, mean=np.array([0.1, 0.5]), std=np.array([0.6, 0.3]))
    return Agent(base.network, normaliser, base.info, Smoothing("median", 0.2, 20))


def q_agent(smooth: Smoothing | None = None, seed: int = 0) -> Agent:
    torch.manual_seed(seed)
    network = networks.DuelingMLP(2, 2, (16, 16))
    return Agent(network, Normaliser(), info("discrete", 2, (2,), "smoothrl/Toy-v0"), smooth)


def image_agent(smooth: Smoothing | None = None) -> Agent:
    torch.manual_seed(0)
    network = networks.SmallQ(2, 4, size=6, filters=4, hidden=16)
    normaliser = Normaliser("scale", scale=1.0 / 255.0)
    return Agent(network, normaliser, info("discrete", 4, (2, 6, 6), "none"), smooth)


def linear_policy(weight: list[list[float]], smooth: Smoothing | None = None) -> Agent:
    """a = W s."""
    matrix = torch.tensor(weight)
    network = networks.GaussianPolicy(matrix.shape[1], matrix.shape[0], ())
    layer = network.mean.layers[0]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(matrix)
        layer.bias.zero_()
    where = "smoothrl/ToyContinuous-v0"
    return Agent(
        network, Normaliser(), info("continuous", matrix.shape[0], (matrix.shape[1],), where), smooth
    )


def linear_q(weight: list[list[float]], smooth: Smoothing | None = None) -> Agent:
    """Q(s, a) = W_a s."""
    matrix = torch.tensor(weight)
    network = networks.MLP(matrix.shape[1], matrix.shape[0], ())
    layer = network.layers[0]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(matrix)
        layer.bias.zero_()
    return Agent(
        network,
        Normaliser(),
        info("discrete", matrix.shape[0], (matrix.shape[1],), "smoothrl/Toy-v0"),
        smooth,
    )


MEDIAN = Smoothing("median", 0.2, 20)
AGENTS = {
    "policy": policy,
    "median-policy": lambda: policy(MEDIAN),
    "mean-policy": lambda: policy(Smoothing("mean", 0.2, 20)),
    "normalised-policy": normalised_policy,
    "q": q_agent,
    "vote-q": lambda: q_agent(Smoothing("vote", 0.2, 20)),
    "mean-q": lambda: q_agent(Smoothing("mean", 0.2, 20)),
    "image-q": image_agent,
    "vote-image-q": lambda: image_agent(Smoothing("vote", 0.1, 20)),
}


def observations(agent: Agent, rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, *agent.info.observation_shape)
    if agent.normaliser.bounds is not None:
        return torch.rand(shape, generator=generator).round(decimals=1).clamp(0, 1)
    return torch.randn(shape, generator=generator)


def adversary(agent: Agent, kind: str, epsilon: float = 0.1) -> Adversary:
    """An unfitted adversary of the right shape."""
    torch.manual_seed(1)
    size = int(np.prod(agent.info.observation_shape))
    actions = agent.info.actions
    if kind == "min-rs":
        network: nn.Module = networks.MLP(size + actions, 1, (16, 16))
    elif kind == "optimal":
        network = networks.GaussianPolicy(size, size, (16, 16))
    elif agent.discrete and len(agent.info.observation_shape) == 3:
        network = networks.SmallQ(2, actions, size=6, filters=4, hidden=16)
    else:
        network = networks.GaussianPolicy(size, actions, (16, 16))
    what = AdversaryInfo(kind, agent.digest, agent.info.method, agent.info.env_id, epsilon)  # type: ignore[arg-type]
    return Adversary(network, what)
