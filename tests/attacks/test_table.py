"""One table, attack x agent x norm x protocol: a new attack joins as a row of the catalogue."""

from __future__ import annotations

import pytest
import torch

from smoothrl.attacks import ENTRIES, make_attack
from smoothrl.attacks.budget import TOLERANCE
from smoothrl.noise import StreamNoise
from smoothrl.protocols import PAPER, SOUND

from .agents import AGENTS, adversary, observations

BUILT = {name: make() for name, make in AGENTS.items()}
CASES = [
    pytest.param(attack, agent, norm, id=f"{attack}-{agent}-{norm}")
    for attack, entry in ENTRIES.items()
    for agent, built in BUILT.items()
    if entry.suits(built)
    for norm in ("linf", "l2")
]
ROWS = 9


def build(attack, agent, norm, epsilon, protocol=SOUND):
    entry = ENTRIES[attack]
    fitted = adversary(agent, entry.kind) if entry.fitted else None
    return make_attack(attack, agent, epsilon, norm, protocol=protocol, adversary=fitted)


def perturb(made, x, index=None, steps=2):
    index = list(range(x.shape[0])) if index is None else index
    noise = StreamNoise(range(100, 100 + ROWS))
    made.reset(len(index))
    return [made.perturb(x, index, noise, step) for step in range(steps)][-1]


@pytest.mark.parametrize("protocol", [PAPER, SOUND], ids=lambda p: p.name)
@pytest.mark.parametrize(("attack", "agent", "norm"), CASES)
def test_budget_range_and_determinism(attack, agent, norm, protocol):
    agent, epsilon = BUILT[agent], 0.1
    x = observations(agent, ROWS)
    made = build(attack, agent, norm, epsilon, protocol)
    out = perturb(made, x)
    assert out.shape == x.shape
    assert torch.isfinite(out).all()
    delta = out.double() - x.double()
    size = delta.abs().amax() if norm == "linf" else torch.linalg.vector_norm(delta.flatten(1), dim=1).amax()
    assert size <= epsilon + TOLERANCE
    assert size > 0.5 * epsilon or ENTRIES[attack].kind in ("pgd", "targeted", "pa-ad", "optimal")
    unclamped = ENTRIES[attack].kind == "pa-ad" and protocol.director_unclamped
    if agent.normaliser.bounds is not None and not unclamped:
        assert out.min() >= 0.0
        assert out.max() <= 1.0
    again = perturb(build(attack, agent, norm, epsilon, protocol), x)
    assert torch.equal(out, again)


@pytest.mark.parametrize(("attack", "agent", "norm"), CASES)
def test_epsilon_zero_touches_and_draws_nothing(attack, agent, norm):
    agent = BUILT[agent]
    x = observations(agent, ROWS)
    noise, untouched = StreamNoise(range(ROWS)), StreamNoise(range(ROWS))
    out = build(attack, agent, norm, 0.0).perturb(x, list(range(ROWS)), noise, 0)
    assert out is x
    assert torch.equal(noise.normal(range(ROWS), 1, (3,)), untouched.normal(range(ROWS), 1, (3,)))


@pytest.mark.parametrize(("attack", "agent", "norm"), CASES)
def test_a_row_does_not_depend_on_its_company(attack, agent, norm):
    agent = BUILT[agent]
    x = observations(agent, ROWS)
    together = perturb(build(attack, agent, norm, 0.1), x)
    for index in ([3], [0, 4, 8]):
        alone = perturb(build(attack, agent, norm, 0.1), x[index], index)
        assert torch.equal(together[index], alone)
