"""Folded and low-precision denoisers against the networks they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from smoothrl import networks
from smoothrl.agents import Agent, AgentInfo, Normaliser, Smoothing, load_agent, save_agent
from smoothrl.errors import UserError


def trained(statistics: networks.Statistics = "frozen") -> networks.DenoisedQ:
    """A DnCNN with statistics and weights that are not those of the start."""
    torch.manual_seed(0)
    denoiser = networks.DnCNN(channels=4, width=8, depth=5, statistics=statistics)
    for module in denoiser.modules():
        if isinstance(module, networks.Norm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2.0)
    convolutions = [m for m in denoiser.modules() if isinstance(m, nn.Conv2d)]
    nn.init.normal_(convolutions[-1].weight, std=0.05)
    network = networks.DenoisedQ(denoiser, networks.SmallQ(4, 3, hidden=16))
    networks.frozen(network)
    return network


def test_folding_changes_nothing_but_rounding() -> None:
    network = trained()
    assert isinstance(network.denoiser.net, nn.Sequential)
    merged = networks.folded(network.denoiser.net)
    assert not any(isinstance(m, networks.Norm2d) for m in merged)
    x = torch.rand(3, 4, 10, 10)
    torch.testing.assert_close(merged(x), network.denoiser.net(x), atol=1e-5, rtol=1e-4)


def test_statistics_of_the_batch_cannot_be_folded() -> None:
    with pytest.raises(UserError, match="frozen statistics"):
        networks.FastVotes(trained("image"))(torch.rand(3, 4, 10, 10))


def test_fast_votes_are_close_and_survive_the_agent_file(tmp_path: Path) -> None:
    network = trained()
    quick = networks.FastVotes(network)
    networks.frozen(quick)
    x = torch.rand(200, 4, 10, 10)
    same = (network(x).argmax(1) == quick(x).argmax(1)).float().mean()
    assert same > 0.98
    info = AgentInfo("s-dqn", "MinAtar/Breakout-v1", "discrete", 3, (4, 10, 10))
    agent = Agent(quick, Normaliser(), info, Smoothing("vote", 0.1, 10))
    again = load_agent(save_agent(agent, tmp_path / "agent.safetensors"))
    assert torch.equal(again.forward(x), quick(x))
