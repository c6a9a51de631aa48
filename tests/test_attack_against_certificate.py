"""The consistency theorem as a test, on every trained agent at hand: no attack within a certified budget
changes what was certified, beyond the failure rate that the certificate states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smoothrl import certification, rollout
from smoothrl.agents import Agent, Smoothing, load_agent
from smoothrl.agents.importers import import_released
from smoothrl.attacks import Overrides, make_attack
from smoothrl.certificates import action_bound
from smoothrl.certificates.intervals import binomial_quantile, cp_upper
from smoothrl.certificates.radius import default_mode, radius
from smoothrl.noise import GeneratorNoise
from smoothrl.smoothing import vote_counts

ROOT = Path(__file__).parents[1]
ZOO = sorted((ROOT / "zoo").glob("*.safetensors"))
RELEASED = sorted((ROOT.parent / "shared" / "released" / "s-ppo-hopper").glob("hopper_*.model"))
ALPHA = 0.05
CHANCE = 1e-6


def of_kind(kind: str) -> list[Path]:
    return [path for path in ZOO if load_agent(path).smoothing.kind == kind]


def sees_frames(agent: Agent) -> bool:
    return int(np.prod(agent.info.observation_shape)) > 10_000


def voters() -> list[Any]:
    """Voting agents; those that see whole frames in the full set."""
    marks = {path: (pytest.mark.slow,) for path in of_kind("vote") if sees_frames(load_agent(path))}
    return [pytest.param(path, marks=marks.get(path, ())) for path in of_kind("vote")]


def policies() -> list[Any]:
    """Median policies: ours always, the paper's released ones in the full set (`make soundness`)."""
    return [*of_kind("median"), *(pytest.param(path, marks=pytest.mark.slow) for path in RELEASED)]


def policy(path: Path) -> Agent:
    if path.suffix == ".safetensors":
        return load_agent(path)
    return import_released(path).agent.with_smoothing(Smoothing("median", 0.2, 100))


def visited(agent: Agent, states: int) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    rollout.evaluate(agent, episodes=2, seed=5, max_steps=60, on_step=lambda s: seen.append(s.observations))
    every = torch.cat(seen)
    return every[torch.randperm(len(every), generator=torch.Generator().manual_seed(0))[:states]]


def test_there_are_agents_to_try() -> None:
    assert of_kind("vote")
    assert of_kind("median")


@pytest.mark.parametrize("path", voters(), ids=lambda p: p.stem)
def test_no_attack_inside_the_radius_changes_the_certified_action(path: Path) -> None:
    agent = load_agent(path)
    count, draws = (6, 500) if sees_frames(agent) else (24, 2000)
    states, sigma = visited(agent, count), agent.smoothing.sigma
    noise = GeneratorNoise(torch.Generator().manual_seed(1))
    counts = vote_counts(agent.sample_outputs(states, noise, samples=200)).numpy()
    found = radius(counts, sigma, ALPHA, default_mode(agent.info.actions))
    assert found.certified.mean() > 0.3, "an agent that is never certified tests nothing"
    overturned = 0
    for i in np.flatnonzero(found.certified):
        budget = 0.999 * float(found.radius[i])
        state = states[i : i + 1]
        attack = make_attack("s-pgd", agent, budget, "l2", overrides=Overrides(steps=15, draws=8, restarts=2))
        attacked = attack.perturb(state, [0], noise, 0)
        assert float((attacked - state).norm()) <= budget + 1e-6
        votes = vote_counts(agent.sample_outputs(attacked, noise, samples=draws))[0].numpy()
        share = float(cp_upper(votes[found.action[i]], draws, CHANCE))
        overturned += share < 0.5
    assert overturned <= binomial_quantile(1.0 - CHANCE, int(found.certified.sum()), ALPHA)


@pytest.mark.parametrize("path", voters(), ids=lambda p: p.stem)
def test_far_outside_the_radius_the_same_attack_does_change_actions(path: Path) -> None:
    """The test above can fail: with ten times the budget the attack breaks what was certified."""
    agent = load_agent(path)
    states = visited(agent, 6 if sees_frames(agent) else 24)
    noise = GeneratorNoise(torch.Generator().manual_seed(1))
    counts = vote_counts(agent.sample_outputs(states, noise, samples=200)).numpy()
    found = radius(counts, agent.smoothing.sigma, ALPHA, default_mode(agent.info.actions))
    attack = make_attack("s-pgd", agent, 10 * float(found.radius.max()), "l2")
    attacked = attack.perturb(states, range(len(states)), noise, 0)
    after = vote_counts(agent.sample_outputs(attacked, noise, samples=200)).numpy().argmax(axis=1)
    assert (after[found.certified] != found.action[found.certified]).any()


@pytest.mark.parametrize("path", policies(), ids=lambda p: p.stem)
def test_attacked_returns_stay_above_the_return_bound(path: Path) -> None:
    agent = policy(path)
    horizon, epsilon, episodes = 150, 0.004, 100
    bound = certification.certify_return(agent, 200, 1, epsilons=(epsilon,), horizon=horizon)
    one = certification.one_draw(agent)
    attack = make_attack("s-mad", one, epsilon, "l2", overrides=Overrides(steps=5, draws=4, restarts=1))
    attacked = rollout.evaluate(one, episodes=episodes, seed=2, attack=attack, max_steps=horizon)
    above = int((attacked.returns >= bound.result.bound[0]).sum())
    assert above >= binomial_quantile(CHANCE, episodes, 0.5)


@pytest.mark.parametrize("path", policies(), ids=lambda p: p.stem)
def test_attacked_actions_stay_inside_the_action_bound(path: Path) -> None:
    agent = policy(path)
    agent = agent.with_smoothing(Smoothing("median", agent.smoothing.sigma, 400))
    states, epsilon = visited(agent, 20), 0.1
    noise = GeneratorNoise(torch.Generator().manual_seed(1))
    samples = agent.sample_outputs(states, noise).numpy()
    bound = action_bound(samples, epsilon, agent.smoothing.sigma, alpha=ALPHA)
    attack = make_attack("s-mad", agent, epsilon, "l2")
    attacked = attack.perturb(states, range(len(states)), noise, 0)
    medians = np.median(agent.sample_outputs(attacked, noise, samples=4001).numpy(), axis=1)
    outside = ((medians < bound.lower - 1e-3) | (medians > bound.upper + 1e-3)).any(axis=1).sum()
    assert outside <= binomial_quantile(1.0 - CHANCE, len(states), ALPHA)
