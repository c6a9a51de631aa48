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
    from smoothrl.attacks import Adversary, Overrides
    from smoothrl.learners.attack_runs import Episodes
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
    certificate: Path | None = None
    """A return certificate of the agent: the suite flags attacks that go below it."""
    fit: Literal["tiny", "quick", "full", "paper"] = "quick"
    """How much is spent on fitting: a trial, a small grid, a large one, or the published one."""
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
    fitted = [n for n in names if n != "suite" and ENTRIES[n].fitted]
    if options.adversary is not None:
        _check_adversary(options.adversary, names, fitted, options.env, agents)
    elif fitted and any(budgets):
        for agent in agents:
            if options.env not in (None, agent.info.env_id):
                raise UserError(
                    f"adversaries are fitted where the agent was trained, {agent.info.env_id}, "
                    f"not in {options.env}; leave --env away, or {fitted[0]!r}"
                )
    if options.certificate is not None and "suite" not in names:
        raise UserError("--certificate goes with --attack suite, which holds its attacks against it")


def _check_adversary(
    file: Path, names: list[str], fitted: list[str], env_id: str | None, agents: Sequence[Agent]
) -> None:
    """Refuse, before anything is played, a file that fits none of the attacks, or another agent."""
    from smoothrl.attacks import ENTRIES, check_adversary, load_adversary, suitable

    if not fitted and "suite" not in names:
        raise UserError("--adversary goes with min-rs, optimal or pa-ad (or their s- versions), or the suite")
    adversary = load_adversary(file)
    for agent in agents:
        kinds = [ENTRIES[n].kind for n in (fitted or suitable(agent)) if ENTRIES[n].fitted]
        for kind in kinds if fitted else [k for k in kinds if k == adversary.info.kind] or kinds[:1]:
            check_adversary(adversary, kind, agent, env_id)


def _one(
    options: Options, path: Path, agent: Agent, name: str, epsilon: float, bar: Progress, command: str
) -> list[ResultRow]:
    if name == "suite":
        return _suite(options, path, agent, epsilon, bar, command)
    from smoothrl.attacks import make_attack
    from smoothrl.learners import attack_runs
    from smoothrl.learners.suite import attack_flags
    from smoothrl.protocols import protocol

    attack = make_attack(
        name,
        agent,
        epsilon,
        options.norm,
        protocol=protocol(options.protocol),
        adversary=_adversary(options, agent, name, epsilon, bar),
        overrides=_overrides(options),
    )
    bar.start(f"{path.name} {name} {epsilon:g}", options.episodes)
    episodes = _episodes(options)
    attacked = attack_runs.play(
        agent, attack, episodes, progress=lambda done, step: bar.update(done, f"step {step:,}")
    )
    flags = "; ".join(f"flag: {f}" for f in attack_flags(attacked, epsilon))
    row = attack_runs.row_of(agent, attacked, episodes, options.protocol, command, flags)
    say(
        f"{path}  {row.agent} on {row.environment}, smoothing {agent.smoothing}: {name} {options.norm} "
        f"{epsilon:g} ({row.units}), {options.protocol}: {row.mean:.1f} [{row.low:.1f}, {row.high:.1f}] "
        f"(mean of {row.episodes} episodes, 95% interval{'; ' if row.note else ''}{row.note})",
        options.json,
    )
    return [row]


def _suite(
    options: Options, path: Path, agent: Agent, epsilon: float, bar: Progress, command: str
) -> list[ResultRow]:
    from smoothrl.attacks import load_adversary
    from smoothrl.learners.suite import claims_of, run_suite
    from smoothrl.protocols import protocol

    given: dict[str, Adversary] = {}
    if options.adversary is not None:
        one = load_adversary(options.adversary)
        given[one.info.kind] = one
    now = ""

    def progress(what: str, done: float, total: float, note: str) -> None:
        nonlocal now
        stage = what.split(" (")[0] + ("" if total > 1.0 else " fit")
        if stage != now:
            now = stage
            bar.start(f"{path.name} {epsilon:g} {stage}", total, "episodes" if total > 1.0 else "of the fit")
        bar.update(done, note or what)

    report = run_suite(
        agent,
        epsilon,
        options.norm,
        episodes=_episodes(options),
        protocol=protocol(options.protocol),
        scale=options.fit,
        folder=_folder(options),
        adversaries=given,
        certificates=() if options.certificate is None else claims_of(options.certificate, agent),
        overrides=_overrides(options),
        command=command,
        progress=progress,
    )
    for row in report.rows:
        say(f"  {row.metric:10s} {row.mean:10.1f} [{row.low:.1f}, {row.high:.1f}]", options.json)
    for skipped in report.skipped:
        say(f"  skipped {skipped}", options.json)
    worst = report.worst
    say(
        f"{path}  {worst.agent} on {worst.environment}, smoothing {agent.smoothing}, {options.norm} "
        f"{epsilon:g} ({worst.units}), {options.protocol}: worst {worst.mean:.1f} "
        f"[{worst.low:.1f}, {worst.high:.1f}] by {report.worst_attack} (mean of {worst.episodes} "
        "episodes, 95% interval)",
        options.json,
    )
    for flag in report.flags:
        say(f"  FLAG {flag}", options.json)
    if not report.flags:
        say("  no sanity flag", options.json)
    return [*report.rows, worst]


def _episodes(options: Options) -> Episodes:
    from smoothrl.learners.attack_runs import Episodes

    return Episodes(options.episodes, options.seed, options.env, options.lanes, options.max_steps)


def _overrides(options: Options) -> Overrides:
    from smoothrl.attacks import Overrides

    return Overrides(options.steps, options.draws, options.restarts, options.adaptive)


def _folder(options: Options) -> Path:
    return options.out if options.out is not None else Path("runs") / "attacks"


def _adversary(options: Options, agent: Agent, name: str, epsilon: float, bar: Progress) -> Adversary | None:
    """The given adversary, or one fitted now (or in an earlier run) in the output folder."""
    from smoothrl.attacks import ENTRIES, load_adversary
    from smoothrl.learners.fit_attacks import fit_attack
    from smoothrl.protocols import protocol

    if not ENTRIES[name].fitted or epsilon == 0.0:
        return None
    if options.adversary is not None:
        return load_adversary(options.adversary)
    bar.start(f"fit {name} {epsilon:g}", 1.0, "of the fit")
    file = fit_attack(
        agent,
        name,
        epsilon,
        options.norm,
        folder=_folder(options) / "adversaries",
        protocol=protocol(options.protocol),
        scale=options.fit,
        env_id=options.env,
        seed=options.seed,
        test=_episodes(options),
        progress=lambda share, note: bar.update(share, note),
    )
    say(f"adversary: {file}", options.json)
    return load_adversary(file)
