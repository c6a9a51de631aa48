"""Every attack by name: whom it fits, whether it must be fitted first, and how it is put together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from smoothrl import envs
from smoothrl.agents import Agent
from smoothrl.attacks import objectives
from smoothrl.attacks.adversary import Adversary, check_adversary
from smoothrl.attacks.base import Attack, Nothing, RandomAttack
from smoothrl.attacks.budget import Budget, make_budget
from smoothrl.attacks.gradient import GradientAttack, QAttack
from smoothrl.attacks.learned import DirectedAttack, DirectedQAttack, OptimalAttack, critic_of
from smoothrl.attacks.loop import Search
from smoothrl.attacks.objectives import Objective
from smoothrl.errors import UserError, unknown
from smoothrl.protocols import SOUND, Protocol

MAD_TIE = 0.25
"""Action changes this close to the largest count as equal: the objective cannot tell which hurts most."""


@dataclass(frozen=True)
class Entry:
    """One attack of the catalogue."""

    name: str
    fits: Literal["q", "policy", "both"]
    text: str
    fitted: bool = False
    """Needs an adversary fitted against the agent."""

    @property
    def kind(self) -> str:
        """The name without its `s-`: what is fitted, and what is built."""
        return self.name.removeprefix("s-")

    @property
    def smoothed(self) -> bool:
        return self.name.startswith("s-")

    def suits(self, agent: Agent) -> bool:
        action = "q" if agent.discrete else "policy"
        return self.fits in ("both", action) and (not self.smoothed or agent.smoothing.kind != "none")


ENTRIES = {
    e.name: e
    for e in (
        Entry("random", "both", "a random corner of the budget: the control experiment"),
        Entry("fgsm", "both", "one gradient step over the whole budget"),
        Entry("pgd", "q", "projected gradient away from the agent's action"),
        Entry("s-pgd", "q", "PGD through the smoothing noise (the paper's smoothed attack)"),
        Entry("targeted", "q", "projected gradient towards the action of least value"),
        Entry("mad", "policy", "maximal action difference"),
        Entry("s-mad", "policy", "MAD through the smoothing noise"),
        Entry("min-rs", "policy", "minimum of a fitted robust-Sarsa critic", fitted=True),
        Entry("s-min-rs", "policy", "Min-RS through the smoothing noise", fitted=True),
        Entry("optimal", "policy", "a trained adversary that writes the perturbation", fitted=True),
        Entry("s-optimal", "policy", "the same, trained against the smoothed agent", fitted=True),
        Entry(
            "pa-ad", "both", "a trained director names a change of action, a gradient makes it", fitted=True
        ),
        Entry("s-pa-ad", "both", "PA-AD through the smoothing noise", fitted=True),
    )
}


@dataclass(frozen=True)
class Overrides:
    """What a user may change about a gradient attack."""

    steps: int | None = None
    """Gradient steps."""
    draws: int | None = None
    """Noise draws averaged in each gradient."""
    restarts: int | None = None
    """Starting points of which the best is kept."""
    adaptive: bool = False
    """The APGD step rule."""

    def __post_init__(self) -> None:
        for name in ("steps", "draws", "restarts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"an attack needs at least one of its {name}, got {value}")


def catalogue() -> list[tuple[str, str]]:
    """Names and one line each."""
    whom = {"q": "Q-agents", "policy": "policies", "both": "all agents"}
    return [
        (e.name, f"{e.text} ({whom[e.fits]}{', fitted first' if e.fitted else ''})") for e in ENTRIES.values()
    ]


def entry(name: str) -> Entry:
    if name not in ENTRIES:
        raise unknown("attack", name, ENTRIES)
    return ENTRIES[name]


def suitable(agent: Agent) -> list[str]:
    """The attacks that fit this agent."""
    return [e.name for e in ENTRIES.values() if e.suits(agent)]


def check_fit(name: str, agent: Agent) -> Entry:
    """Refuse an attack that does not fit the agent, with those that do."""
    found = entry(name)
    if found.suits(agent):
        return found
    if found.smoothed and replace(found, name=found.kind).suits(agent):
        why = f"goes through smoothing noise and this agent is not smoothed; use {found.kind!r}"
    else:
        whose = "discrete actions (a Q-agent)" if agent.discrete else "continuous actions (a policy)"
        why = f"does not fit an agent with {whose}"
    raise UserError(f"the attack {name!r} {why}; valid here: {', '.join(suitable(agent))}")


def make_attack(
    name: str,
    agent: Agent,
    epsilon: float,
    norm: str = "linf",
    *,
    protocol: Protocol = SOUND,
    adversary: Adversary | None = None,
    overrides: Overrides | None = None,
) -> Attack:
    """The attack by name against this agent; learned ones need their fitted `adversary`."""
    found = check_fit(name, agent)
    clamp = not (found.kind == "pa-ad" and protocol.director_unclamped)
    budget = make_budget(agent, epsilon, norm, clamp=clamp)
    if found.fitted:
        if adversary is None and epsilon == 0.0:
            return _named(Nothing(agent, budget), name)
        if adversary is None:
            raise UserError(
                f"the attack {name!r} must be fitted against the agent first: "
                "`smoothrl attack` does it, or give a fitted one with --adversary FILE"
            )
        check_adversary(adversary, found.kind, agent)
    through = found.smoothed or protocol.attack_through_smoothing
    attack = _build(found, agent, budget, protocol, through, adversary, overrides or Overrides())
    return _named(attack, name)


def _named(attack: Attack, name: str) -> Attack:
    attack.name = name
    return attack


def _build(
    found: Entry,
    agent: Agent,
    budget: Budget,
    protocol: Protocol,
    through: bool,
    adversary: Adversary | None,
    overrides: Overrides,
) -> Attack:
    plan = plan_of(found.kind, agent, protocol, overrides)
    kind = found.kind
    if kind == "random":
        return RandomAttack(agent, budget)
    if kind == "optimal":
        assert adversary is not None
        return OptimalAttack(agent, budget, adversary.network)
    if kind == "pa-ad":
        assert adversary is not None
        maker = DirectedQAttack if agent.discrete else DirectedAttack
        return maker(agent, budget, adversary.network, plan, protocol, smoothed=through)
    if agent.discrete:
        plain = protocol.pgd_cross_entropy
        objective = objectives.cross_entropy if plain else objectives.vote_margin(agent.smoothing.kind)
        attack = QAttack(agent, budget, objective, plan, name=kind, smoothed=through)
        attack.targeted = kind == "targeted"
        attack.targets = kind == "pgd" and not plain
        return attack
    if kind == "min-rs":
        assert adversary is not None
        objective, start = objectives.lowest_value(critic_of(adversary.network)), "uniform"
    else:
        objective, start = _action_difference(agent, protocol), "sign"
    return GradientAttack(
        agent,
        budget,
        objective,
        plan,
        name=kind,
        smoothed=through,
        start="uniform" if start == "uniform" else "sign",
        injected=kind == "mad" and protocol.mad_injected_noise,
    )


def _action_difference(agent: Agent, protocol: Protocol) -> Objective:
    box = None if protocol.mad_unclipped else action_box(agent)
    if box is None:
        return objectives.maximal_action_difference
    return objectives.executed_difference(*(torch.tensor(side, device=agent.device) for side in box))


def action_box(agent: Agent) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """What the agent's environment clips actions to; None where that is not known."""
    low, high = agent.info.action_low, agent.info.action_high
    if not low:
        try:
            spec = envs.spec(agent.info.env_id, **agent.info.env_settings)
        except UserError:
            return None
        low, high = spec.action_low, spec.action_high
    return (low, high) if len(low) == len(high) == agent.info.actions else None


def plan_of(kind: str, agent: Agent, protocol: Protocol, overrides: Overrides) -> Search:
    """The search of an attack: the released one, or one that finds more at about the same price."""
    draws = 1 if protocol.attack_single_draw else 4
    if kind == "fgsm":
        plan = Search(1, "fixed", 1.0 if agent.discrete else 2.0, draws)
    elif protocol.attack_released_search:
        steps = 1 if kind == "pa-ad" and not agent.discrete else 10
        plan = Search(steps, "fixed", 1.0 if steps == 1 else None, draws)
    elif agent.discrete:
        plan = Search(
            10, "fixed", 0.25, draws, restarts=1 if kind in ("pa-ad", "targeted") else 2, keep_best=True
        )
    elif kind == "pa-ad":
        plan = Search(6, "decay", 1.0, draws, restarts=4, keep_best=True)
    else:
        plan = Search(3, "fixed", 2.0, draws, restarts=4, tie=MAD_TIE if kind == "mad" else 0.0)
    wanted = {k: v for k in ("steps", "draws", "restarts") if (v := getattr(overrides, k)) is not None}
    if overrides.adaptive:
        return replace(plan, rule="adaptive", first_step=None, keep_best=True, **wanted)
    return replace(plan, **wanted)
