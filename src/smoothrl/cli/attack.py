"""`smoothrl attack AGENT... --attack NAME[,NAME...]|suite --epsilon E[,E...]`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from smoothrl.cli.common import (
    EvaluationOptions,
    Progress,
    load_agents,
    parse,
    progress_bar,
    say,
    write_json,
)
from smoothrl.errors import UserError

if TYPE_CHECKING:
    from smoothrl.agents import Agent
    from smoothrl.attacks import Adversary
    from smoothrl.results import ResultRow


@dataclass(frozen=True)
class Options(EvaluationOptions):
    """Attack what agents see; report the returns, or the worst of a whole suite with sanity flags."""

    attack: str = "suite"
    """Attack, several with commas, or `suite` (see `smoothrl list attacks`)."""
    epsilon: str = "0.075"
    """Budget, several with commas; in units of the normalised observation, for images of [0, 1]."""
    norm: str = "linf"
    """Norm of the budget: linf or l2."""
    protocol: Literal["sound", "paper"] = "sound"
    """paper: the released procedure, defects included; sound: attacks on the deployed agent."""
    env: str | None = None
    """Environment; the one the agent was trained on where not given."""
    adversary: Path | None = None
    """A fitted adversary to use instead of fitting one (min-rs, optimal, pa-ad)."""
    fit: Literal["quick", "full", "paper"] = "quick"
    """How much is spent on fitting: a small grid, a large one, or the published one."""
    out: Path | None = None
    """Folder for fitted adversaries and the state of a suite; a second run goes on there."""
    steps: int | None = None
    """Gradient steps of one attack."""
    draws: int | None = None
    """Noise draws averaged in each gradient."""
    restarts: int | None = None
    """Starting points of which the best is kept."""
    adaptive: bool = False
    """The adaptive (APGD) step rule."""
    max_steps: int | None = None
    """Stop every episode after this many steps; cut episodes do not count in the results."""


def main(argv: Sequence[str]) -> int:
    options = parse(Options, argv, "smoothrl attack", "Attack agents; report the worst.")
    command = "smoothrl attack " + shlex.join(argv)
    from smoothrl.learners import attack_runs
    from smoothrl.results import json_rows

    budgets = attack_runs.epsilons(options.epsilon)
    names = [name.strip() for name in options.attack.split(",")]
    agents = load_agents(options)
    _check(options, names, budgets, [agent for _, agent in agents])
    rows: list[ResultRow] = []
    interrupted = False
    with progress_bar() as bar:
        for path, agent in agents:
            for epsilon in budgets:
                for name in names:
                    found = _one(options, path, agent, name, epsilon, bar, command)
                    rows += found
                    interrupted |= not found or any("interrupted" in row.note for row in found)
                    if interrupted:
                        break
    write_json(json_rows(rows), options.json)
    if options.json not in (None, "-"):
        say(f"results: {options.json}")
    return 130 if interrupted else 0


def _check(options: Options, names: list[str], budgets: list[float], agents: Sequence[Agent]) -> None:
    """Refuse what cannot work before any episode is played."""
    from smoothrl.attacks import ENTRIES, check_fit, make_budget
    from smoothrl.attacks.catalogue import Overrides
    from smoothrl.errors import unknown

    Overrides(options.steps, options.draws, options.restarts)
    for name in names:
        if name != "suite" and name not in ENTRIES:
            raise unknown("attack", name, [*ENTRIES, "suite"])
    for agent in agents:
        for epsilon in budgets:
            make_budget(agent, epsilon, options.norm)
        for name in names:
            if name != "suite":
                check_fit(name, agent)
    if options.adversary is not None and not any(n in ENTRIES and ENTRIES[n].fitted for n in names):
        raise UserError("--adversary goes with min-rs, optimal or pa-ad (or their s- versions)")


def _one(
    options: Options, path: Path, agent: Agent, name: str, epsilon: float, bar: Progress, command: str
) -> list[ResultRow]:
    from smoothrl.attacks import Overrides, make_attack
    from smoothrl.learners import attack_runs
    from smoothrl.protocols import protocol

    episodes = attack_runs.Episodes(
        options.episodes, options.seed, options.env, options.lanes, options.max_steps
    )
    overrides = Overrides(options.steps, options.draws, options.restarts, options.adaptive)
    adversary = _adversary(options, agent, name, epsilon, bar)
    attack = make_attack(
        name,
        agent,
        epsilon,
        options.norm,
        protocol=protocol(options.protocol),
        adversary=adversary,
        overrides=overrides,
    )
    bar.start(f"{path.name} {name} {epsilon:g}", options.episodes)
    attacked = attack_runs.play(
        agent, attack, episodes, progress=lambda done, step: bar.update(done, f"step {step:,}")
    )
    row = attack_runs.row_of(agent, attacked, episodes, options.protocol, command)
    say(
        f"{path}  {row.agent} on {row.environment}, smoothing {agent.smoothing}: {name} {options.norm} "
        f"{epsilon:g} ({row.units}), {options.protocol}: {row.mean:.1f} [{row.low:.1f}, {row.high:.1f}] "
        f"(mean of {row.episodes} episodes, 95% interval; {row.note})",
        options.json,
    )
    return [row]


def _adversary(options: Options, agent: Agent, name: str, epsilon: float, bar: Progress) -> Adversary | None:
    from smoothrl.attacks import ENTRIES, load_adversary

    if not ENTRIES[name].fitted:
        return None
    if options.adversary is not None:
        return load_adversary(options.adversary)
    return None
