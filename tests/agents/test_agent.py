"""The agent: acting, smoothing, memory, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from smoothrl import networks
from smoothrl.agents import Agent, AgentInfo, Moments, Normaliser, Smoothing
from smoothrl.errors import UserError
from smoothrl.noise import GeneratorNoise, StreamNoise


def policy_agent(smooth: Smoothing | None = None, seed: int = 0) -> Agent:
    generator = torch.Generator().manual_seed(seed)
    network = networks.GaussianPolicy(11, 3)
    networks.orthogonal(network.mean, generator, head=1.0)
    moments = Moments.zeros((11,))
    moments.push(np.random.default_rng(seed).normal(1.0, 2.0, (500, 11)))
    info = AgentInfo("ppo", "Hopper-v4", "continuous", 3, (11,))
    return Agent(network, moments.frozen(), info, smooth or Smoothing("median", 0.2, 20))


def q_agent(smooth: Smoothing | None = None, network: nn.Module | None = None) -> Agent:
    torch.manual_seed(0)
    info = AgentInfo("dqn", "MinAtar/Freeway-v1", "discrete", 3, (4, 10, 10))
    return Agent(
        network or networks.SmallQ(4, 3),
        Normaliser("scale", scale=1 / 255),
        info,
        smooth or Smoothing("vote", 0.3, 50),
    )


def test_the_median_of_a_linear_policy_by_hand() -> None:
    network = networks.GaussianPolicy(1, 1, hidden=())
    with torch.no_grad():
        network.mean.layers[0].weight.fill_(2.0)
        network.mean.layers[0].bias.fill_(1.0)
    info = AgentInfo("ppo", "toy", "continuous", 1, (1,))
    agent = Agent(network, Normaliser(), info, Smoothing("median", 0.5, 4))

    class Fixed:
        def normal(self, index, count, shape):
            return torch.tensor([[[-1.0], [0.0], [1.0], [3.0]]])

    assert agent.act(torch.zeros(1, 1), Fixed()).tolist() == [[1.0]]


@pytest.mark.parametrize("kind", ["median", "mean"])
def test_company_and_order_do_not_matter_for_policies(kind: str) -> None:
    agent = policy_agent(Smoothing(kind, 0.2, 33))
    x = torch.randn(21, 11, generator=torch.Generator().manual_seed(5))
    together = agent.act(x, StreamNoise(range(21)), range(21))
    noise = StreamNoise(range(21))
    for i in reversed(range(21)):
        assert torch.equal(agent.act(x[i : i + 1], noise, [i])[0], together[i])


def test_company_does_not_matter_for_q_agents() -> None:
    agent = q_agent()
    raw = np.random.default_rng(0).integers(0, 2, (9, 4, 10, 10), dtype=np.uint8) * 255
    x = agent.observe(raw)
    outputs = agent.outputs(x, StreamNoise(range(9)), range(9))
    noise = StreamNoise(range(9))
    for i in range(9):
        assert torch.equal(agent.outputs(x[i : i + 1], noise, [i])[0], outputs[i])


def test_vote_is_the_most_frequent_argmax() -> None:
    agent = q_agent()
    x = agent.observe(np.full((2, 4, 10, 10), 255, np.uint8))
    assert float(x.max()) == 1.0
    outputs = agent.sample_outputs(x, GeneratorNoise(torch.Generator().manual_seed(1)))
    counts = np.bincount(outputs[0].argmax(dim=1).numpy(), minlength=3)
    assert agent.decide(outputs)[0].item() == counts.argmax()


def test_same_seed_same_actions_and_other_seed_others() -> None:
    agent, x = policy_agent(), torch.zeros(3, 11)
    a, b, c = (agent.act(x, GeneratorNoise(torch.Generator().manual_seed(s))) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_acting_changes_nothing_in_the_agent() -> None:
    network = nn.Sequential(nn.Linear(11, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    network[1].running_mean.fill_(0.3)
    info = AgentInfo("ppo", "Hopper-v4", "continuous", 3, (11,))
    agent = Agent(network.train(), Normaliser(), info, Smoothing("median", 0.2, 20))
    before = {k: v.clone() for k, v in network.state_dict().items()}
    assert not network.training
    agent.act(torch.randn(4, 11), GeneratorNoise(torch.Generator().manual_seed(0)))
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(not p.requires_grad for p in network.parameters())


def test_layers_that_mix_the_batch_are_refused_with_the_reason() -> None:
    network = nn.Sequential(nn.Linear(11, 3), nn.BatchNorm1d(3, track_running_stats=False))
    info = AgentInfo("ppo", "Hopper-v4", "continuous", 3, (11,))
    with pytest.raises(UserError, match="layer 1 uses the statistics of the batch"):
        Agent(network, Normaliser(), info)
    paper = Agent(network, Normaliser(), info, batch_statistics=True)
    assert paper.batch_statistics


def test_a_network_put_back_into_training_mode_is_refused() -> None:
    network = nn.Sequential(nn.Linear(11, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    info = AgentInfo("ppo", "Hopper-v4", "continuous", 3, (11,))
    noise = GeneratorNoise(torch.Generator().manual_seed(0))
    for smooth in (Smoothing(), Smoothing("median", 0.2, 20)):
        agent = Agent(network, Normaliser(), info, smooth)
        network[1].train()
        before = network[1].running_mean.clone()
        for use in (lambda a: a.act(torch.randn(4, 11), noise), lambda a: a.forward(torch.randn(4, 11))):
            with pytest.raises(UserError, match="training mode"):
                use(agent)
        assert torch.equal(network[1].running_mean, before)


@pytest.mark.parametrize("smooth", [Smoothing(), Smoothing("vote", 0.3, 6)])
def test_batch_statistics_are_those_of_one_observation(smooth: Smoothing) -> None:
    """The paper's votes: a batch is the noisy copies of one observation, whatever is played beside it."""
    torch.manual_seed(0)
    denoiser = networks.DnCNN(4, 8, 3, "batch")
    nn.init.normal_(denoiser.net[-1].weight)
    network = networks.DenoisedQ(denoiser, networks.SmallQ(4, 3))
    info = AgentInfo("s-dqn", "MinAtar/Freeway-v1", "discrete", 3, (4, 10, 10))
    agent = Agent(network, Normaliser(), info, smooth, batch_statistics=True)
    x = torch.rand(5, 4, 10, 10)
    together = agent.outputs(x, StreamNoise(range(5)), range(5))
    for i in range(5):
        assert torch.equal(agent.outputs(x[i : i + 1], StreamNoise(range(5)), [i])[0], together[i])
    assert torch.equal(agent.forward(x)[3], network(x[3:4])[0])
    if smooth.kind == "vote":
        z = StreamNoise(range(5)).normal([2], 6, (4, 10, 10))[0]
        assert torch.equal(together[2], network(x[2] + 0.3 * z))


def test_observations_can_carry_gradients() -> None:
    agent = policy_agent()
    x = torch.zeros(2, 11, requires_grad=True)
    agent.forward(x).sum().backward()
    assert x.grad is not None
    assert float(x.grad.abs().sum()) > 0


def test_memory_does_not_grow_with_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = 0
    agent = q_agent()
    original = agent._forward_rows

    def watch(rows: torch.Tensor) -> torch.Tensor:
        nonlocal peak
        peak = max(peak, rows.numel())
        return original(rows)

    monkeypatch.setattr(agent, "_forward_rows", watch)
    noise = GeneratorNoise(torch.Generator().manual_seed(0))
    out = agent.sample_outputs(torch.zeros(3, 4, 10, 10), noise, samples=10_000)
    assert out.shape == (3, 10_000, 3)
    assert peak <= 1 << 20


def test_normaliser_by_hand() -> None:
    normaliser = Normaliser("moments", clip=2.0, mean=np.array([1.0, 0.0]), std=np.array([2.0, 1.0]))
    assert normaliser(np.array([[3.0, 9.0]])).tolist() == [[1.0, 2.0]]
    assert normaliser.bounds is None
    assert Normaliser("scale", scale=1 / 255).bounds == (0.0, 1.0)
    assert np.allclose(normaliser.raw(torch.tensor([[1.0, 0.5]])), [[3.0, 0.5]])


def test_moments_merge_like_numpy_and_start_like_the_released_code() -> None:
    data = np.random.default_rng(0).normal(3.0, 2.0, (100, 4))
    moments = Moments.zeros((4,))
    moments.push(data[:1])
    assert np.array_equal(moments.std, np.abs(data[0]))
    for start in range(1, 100, 33):
        moments.push(data[start : start + 33])
    assert np.allclose(moments.mean, data.mean(0))
    assert np.allclose(moments.std, data.std(0, ddof=1))


def test_names_tell_test_time_smoothing_from_trained() -> None:
    assert policy_agent().name == "ppo+rs"
    assert policy_agent(Smoothing()).name == "ppo"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("median", 0.0, 10), "sigma above 0"),
        (("median", float("nan"), 10), "sigma above 0"),
        (("median", -1.0, 10), "sigma above 0"),
        (("median", 0.1, 0), "at least one sample"),
        (("medain", 0.1, 10), "did you mean 'median'"),
    ],
)
def test_impossible_smoothing(arguments: tuple[str, float, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Smoothing(*arguments)


def test_smoothing_must_fit_the_actions() -> None:
    with pytest.raises(UserError, match="continuous actions takes median"):
        policy_agent(Smoothing("vote", 0.1, 10))
    with pytest.raises(UserError, match="takes vote or mean"):
        q_agent(Smoothing("median", 0.1, 10))
    with pytest.raises(UserError, match="needs a noise source"):
        policy_agent().act(torch.zeros(1, 11))
