"""The loop that plays episodes: exact returns, determinism, independence of company, interruption."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import make_policy
from smoothrl import envs, networks, rollout
from smoothrl.agents import Agent, AgentInfo, Normaliser, Smoothing
from smoothrl.errors import UserError

SMOOTH = Smoothing("median", 0.2, 12)


class Shift:
    """A stand-in attack: add a constant."""

    def __init__(self, amount: float) -> None:
        self.amount, self.count = amount, 0

    def reset(self, count: int) -> None:
        self.count += count

    def perturb(self, observations, index, noise, step):
        return observations + self.amount


def test_the_number_of_lanes_changes_nothing() -> None:
    agent = make_policy("Hopper-v4", SMOOTH)
    results = [rollout.evaluate(agent, episodes=9, seed=3, lanes=lanes) for lanes in (9, 4, 1)]
    for other in results[1:]:
        assert np.array_equal(results[0].returns, other.returns)
        assert np.array_equal(results[0].lengths, other.lengths)
    assert len(set(results[0].returns)) == 9


@pytest.mark.parametrize(
    ("samples", "lanes"), [(1, 256), (100, 256), (100_000, 111), (1_000_000, 11), (20_000_000, 1)]
)
def test_fewer_episodes_side_by_side_where_decisions_are_large(samples: int, lanes: int) -> None:
    """With 3 actions, 2^25 / (3 m) episodes: the sampled outputs take 128 MiB at most."""
    agent = make_policy("Hopper-v4", Smoothing("median", 0.2, samples))
    assert rollout.default_lanes(agent, 1000) == lanes
    assert rollout.default_lanes(agent, 1) == 1


def test_a_part_of_the_episodes_is_the_same_part() -> None:
    agent = make_policy("Hopper-v4", SMOOTH)
    whole = rollout.evaluate(agent, episodes=6, seed=3)
    part = rollout.evaluate(agent, episodes=2, seed=3, first=4)
    assert np.array_equal(whole.returns[4:], part.returns)


def test_the_same_for_q_agents_on_images() -> None:
    torch.manual_seed(0)
    spec = envs.spec("MinAtar/Breakout-v1")
    agent = Agent(
        networks.SmallQ(spec.obs_shape[0], spec.action_size),
        Normaliser("scale", scale=1 / spec.obs_scale),
        AgentInfo("dqn", "MinAtar/Breakout-v1", "discrete", spec.action_size, spec.obs_shape),
        Smoothing("vote", 0.3, 30),
    )
    a, b = (rollout.evaluate(agent, episodes=5, seed=0, lanes=lanes, max_steps=60) for lanes in (5, 2))
    assert np.array_equal(a.returns, b.returns)
    assert np.array_equal(a.lengths, b.lengths)


def test_golden_trace() -> None:
    """A short rollout of a fixed linear policy; a change of any layer below shows here."""
    network = networks.GaussianPolicy(3, 1, hidden=())
    with torch.no_grad():
        network.mean.layers[0].weight.copy_(torch.tensor([[0.0, -1.0, -0.5]]))
        network.mean.layers[0].bias.zero_()
    info = AgentInfo("ppo", "Pendulum-v1", "continuous", 1, (3,))
    agent = Agent(network, Normaliser(), info, Smoothing("median", 0.1, 5))
    result = rollout.evaluate(agent, episodes=3, seed=1, max_steps=40)
    assert result.seeds.tolist() == [1912046967, 1852517085, 1578686565]
    assert result.returns.tolist() == pytest.approx([-383.382287, -279.114137, -304.212203], abs=1e-3)
    whole = rollout.evaluate(agent, episodes=3, seed=1, lanes=2)
    assert whole.lengths.tolist() == [200, 200, 200]
    assert not whole.terminated.any()


def test_attack_hook_sees_all_and_changes_what_the_agent_sees() -> None:
    agent = make_policy("Hopper-v4", SMOOTH)
    seen = []
    attack = Shift(0.25)
    attacked = rollout.evaluate(
        agent,
        episodes=4,
        seed=0,
        attack=attack,
        on_step=lambda s: seen.append(rollout.perturbation_norm(s, "linf")),
    )
    clean = rollout.evaluate(agent, episodes=4, seed=0)
    assert attack.count == 4
    assert torch.allclose(torch.cat(seen), torch.tensor(0.25), atol=1e-6)
    assert len(torch.cat(seen)) == attacked.lengths.sum()
    assert not np.array_equal(attacked.returns, clean.returns)
    nothing = rollout.evaluate(agent, episodes=4, seed=0, attack=Shift(0.0))
    assert np.array_equal(nothing.returns, clean.returns)


def test_on_step_accounts_for_every_reward() -> None:
    agent = make_policy("Hopper-v4", SMOOTH)
    total = np.zeros(5)

    def add(step: rollout.Step) -> None:
        np.add.at(total, step.index, step.rewards)
        assert step.outputs.shape[1] == 12

    result = rollout.evaluate(agent, episodes=5, seed=0, lanes=2, on_step=add)
    assert np.allclose(total, result.returns)


def test_interruption_keeps_what_is_finished() -> None:
    agent = make_policy("Hopper-v4", SMOOTH)

    def stop(step: rollout.Step) -> None:
        if step.index[0] >= 2:
            raise KeyboardInterrupt

    whole = rollout.evaluate(agent, episodes=6, seed=0)
    part = rollout.evaluate(agent, episodes=6, seed=0, lanes=2, on_step=stop)
    assert part.interrupted
    assert part.complete.tolist() == [True, True, False, False, False, False]
    assert np.array_equal(part.finished(), whole.returns[:2])


def test_a_step_limit_marks_episodes_as_cut() -> None:
    agent = make_policy("Pendulum-v1")
    result = rollout.evaluate(agent, episodes=2, seed=0, max_steps=10)
    assert result.lengths.tolist() == [10, 10]
    assert not result.complete.any()
    with pytest.raises(UserError, match="no episode was finished"):
        rollout.result_row(agent, result, "clean", 0)


def test_result_row_carries_everything() -> None:
    agent = make_policy("Hopper-v4", SMOOTH)
    result = rollout.evaluate(agent, episodes=5, seed=2)
    row = rollout.result_row(agent, result, "clean", 2)
    assert row.mean == pytest.approx(result.returns.mean())
    assert row.std == pytest.approx(result.returns.std(ddof=1))
    assert row.low is not None
    assert row.high is not None
    assert row.low <= row.mean <= row.high
    assert (row.sigma, row.samples, row.smoothing, row.agent) == (0.2, 12, "median", "s-ppo")
    assert row.agent_hash == agent.digest
    assert row.returns == tuple(result.returns)


def test_results_of_batch_statistics_say_that_they_certify_nothing() -> None:
    spec = envs.spec("MinAtar/Breakout-v1")
    network = networks.DenoisedQ(
        networks.DnCNN(spec.obs_shape[0], 4, 3, "batch"), networks.SmallQ(spec.obs_shape[0], spec.action_size)
    )
    info = AgentInfo("s-dqn", spec.id, "discrete", spec.action_size, spec.obs_shape)
    agent = Agent(network, Normaliser(), info, Smoothing("vote", 0.3, 5), batch_statistics=True)
    a, b = (rollout.evaluate(agent, episodes=3, seed=0, lanes=lanes) for lanes in (3, 1))
    assert np.array_equal(a.returns, b.returns)
    assert "certifies nothing" in rollout.result_row(agent, a, "clean", 0).note


@pytest.mark.parametrize(
    ("env_id", "message"),
    [("Walker2d-v4", "shape"), ("CartPole-v1", "observations of shape"), ("Hoper-v4", "did you mean")],
)
def test_environments_that_do_not_fit(env_id: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rollout.evaluate(make_policy("Hopper-v4"), env_id, 1)


def test_a_damaged_policy_is_noticed() -> None:
    agent = make_policy("Hopper-v4")
    with torch.no_grad():
        agent.network.mean.layers[0].bias.fill_(float("nan"))
    with pytest.raises(UserError, match="not finite"):
        rollout.evaluate(agent, episodes=1)


def test_at_least_one_episode() -> None:
    with pytest.raises(UserError, match="at least one episode"):
        rollout.evaluate(make_policy("Hopper-v4"), episodes=0)
