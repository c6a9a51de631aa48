"""`smoothrl certify radius|actions|return AGENT` and `smoothrl certify verify FILE`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from smoothrl.cli.common import EvaluationOptions, Progress, load_agents, parse, progress_bar, say, write_json
from smoothrl.errors import UserError, unknown

if TYPE_CHECKING:
    from smoothrl.agents import Agent
    from smoothrl.certification import Certified

ProtocolName = Literal["sound", "paper"]


@dataclass(frozen=True)
class CertifyOptions(EvaluationOptions):
    """Options of every certificate."""

    alpha: float = 0.05
    """Failure probability: the certificate holds with probability 1 - alpha."""
    protocol: ProtocolName = "sound"
    """sound: exact bounds; paper: the published formulas, with a note where they are not valid."""
    out: Path | None = None
    """Certificate file (several agents: a folder); `smoothrl certify verify` replays it."""


@dataclass(frozen=True)
class RadiusOptions(CertifyOptions):
    """Certified l2 radius of a vote-smoothed Q-agent at every state that clean episodes visit."""

    episodes: int = 1
    """Episodes an agent."""
    max_steps: int | None = 500
    """Steps an episode (the paper looks at the first 500)."""
    mode: Literal["paper", "majority", "rank"] | None = None
    """Procedure; by protocol and number of actions where not given."""
    eta: float = 0.001
    """Failure probability of one deployed vote, for the deployed radius."""
    target: float | None = None
    """Only decide whether the radius reaches this one, drawing no more samples than that needs (at most
    --samples a state)."""
    value_range: tuple[float, float] | None = None
    """Range of the Q-values for CROP's radius (--smooth mean); estimated where not given."""


@dataclass(frozen=True)
class ActionOptions(CertifyOptions):
    """Action bounds and ADIV of a median-smoothed policy at every state that clean episodes visit."""

    epsilon: tuple[float, ...] = (0.1, 0.2, 0.3)
    """l2 budgets, in units of the normalised observation."""
    reading: Literal["numpy", "sup", "max"] = "numpy"
    """Protocol paper: which reading of the published percentile."""
    deployed: bool = False
    """Bound what the agent with finitely many samples does, instead of the ideal one."""


@dataclass(frozen=True)
class ReturnOptions(CertifyOptions):
    """Lower bounds of the return under any attack, for the agent with one noise draw a step."""

    episodes: int = 1000
    """Clean episodes; more of them reach larger budgets."""
    epsilon: tuple[float, ...] | None = None
    """l2 budgets a step; the paper's where neither these nor --budget are given."""
    budget: tuple[float, ...] | None = None
    """Total l2 budgets of an episode, instead of budgets a step."""
    horizon: int | None = None
    """Episodes are cut here; the environment's own limit where not given."""
    kind: Literal["quantile", "threshold", "mean", "cvar"] = "quantile"
    """What is bounded: the median (or --p), the chance of --threshold, the mean, or the mean of the worst."""
    band: Literal["order", "dkw", "berk-jones"] | None = None
    """How the law of the clean return is bounded."""
    p: float = 0.5
    """The percentile of a quantile bound."""
    threshold: float | None = None
    """The return whose probability is bounded (named before looking)."""
    tail: float = 0.1
    """The share of worst returns of cvar."""
    floor: float | None = None
    """A value no return can fall below (needed by mean)."""
    simultaneous: bool = False
    """All budgets hold together at confidence 1 - alpha, instead of each by itself."""
    reading: Literal["numpy", "sup", "max"] = "numpy"
    """Protocol paper: which reading of the published percentile."""


@dataclass(frozen=True)
class VerifyOptions:
    """Replay a certificate: fails where statement, counts, bound, confidence or agent were altered."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")]
    """Certificate files."""
    agent: Path | None = None
    """The agent they are held against."""
    resample: bool = False
    """Play the episodes again with --agent and compare every count: finds even a consistent forgery."""


Certify = Callable[["Agent", Any, Progress], "Certified"]


def _radius(agent: Agent, o: RadiusOptions, bar: Progress) -> Certified:
    from smoothrl import certification
    from smoothrl.protocols import protocol

    common: dict[str, Any] = {
        "alpha": o.alpha,
        "max_steps": o.max_steps,
        "lanes": o.lanes,
        "progress": lambda done, step: bar.update(done, f"step {step:,}"),
    }
    if o.value_range is not None and agent.smoothing.kind != "mean":
        raise UserError("--value-range is about averaged values: add --smooth mean")
    if o.target is not None:
        if o.mode is not None or o.protocol != "sound":
            raise UserError("--target is decided by the anytime test: drop --mode and --protocol paper")
        cap = agent.smoothing.samples
        return certification.decide_radius(agent, o.target, o.episodes, o.seed, cap=cap, **common)
    rule = protocol(o.protocol)
    if agent.smoothing.kind == "mean":
        return certification.certify_crop(agent, o.value_range, o.episodes, o.seed, protocol=rule, **common)
    return certification.certify_radius(
        agent, o.episodes, o.seed, protocol=rule, mode=o.mode, eta=o.eta, **common
    )


def _actions(agent: Agent, o: ActionOptions, bar: Progress) -> Certified:
    from smoothrl import certification
    from smoothrl.protocols import protocol

    return certification.certify_actions(
        agent,
        o.episodes,
        o.seed,
        epsilons=o.epsilon,
        alpha=o.alpha,
        protocol=protocol(o.protocol),
        reading=o.reading,
        deployed=o.deployed,
        lanes=o.lanes,
        progress=lambda done, step: bar.update(done, f"step {step:,}"),
    )


def _return(agent: Agent, o: ReturnOptions, bar: Progress) -> Certified:
    from smoothrl import certification
    from smoothrl.protocols import protocol

    return certification.certify_return(
        agent,
        o.episodes,
        o.seed,
        epsilons=o.epsilon,
        budgets=o.budget,
        horizon=o.horizon,
        kind=o.kind,
        band=o.band,
        p=o.p,
        threshold=o.threshold,
        tail=o.tail,
        floor=o.floor,
        alpha=o.alpha,
        protocol=protocol(o.protocol),
        reading=o.reading,
        simultaneous=o.simultaneous,
        lanes=o.lanes,
        progress=lambda done, step: bar.update(done, f"step {step:,}"),
    )


CERTIFICATES: dict[str, tuple[type[CertifyOptions], Certify]] = {
    "radius": (RadiusOptions, _radius),
    "actions": (ActionOptions, _actions),
    "return": (ReturnOptions, _return),
}


def _certify(what: str, argv: Sequence[str]) -> int:
    kind, work = CERTIFICATES[what]
    options = parse(kind, argv, f"smoothrl certify {what}", kind.__doc__)
    _check_outputs(options)
    command = f"smoothrl certify {what} " + shlex.join(argv)
    from smoothrl.certificates import files
    from smoothrl.results import json_rows

    rows = []
    with progress_bar() as bar:
        for path, agent in load_agents(options):
            bar.start(f"{path.name} ({agent.name})", options.episodes)
            done = work(agent, options, bar)
            rows += [replace(row, command=command) for row in done.rows]
            say(f"{path}  {agent.name} on {agent.info.env_id}, smoothing {agent.smoothing}", options.json)
            for line in done.summary:
                say(f"  {line}", options.json)
            if options.out is not None:
                target = options.out
                if len(options.agents) > 1 or target.is_dir():
                    target = target / f"{path.stem}.{what}.json"
                target.parent.mkdir(parents=True, exist_ok=True)
                files.write(target, done.record)
                say(f"  certificate: {target}", options.json)
    write_json(json_rows(rows), options.json)
    return 0


def _check_outputs(options: CertifyOptions) -> None:
    if options.out is not None and len(options.agents) > 1 and options.out.suffix:
        raise UserError(
            f"--out {options.out}: with several agents name a folder, each gets its own file there"
        )


def _verify(argv: Sequence[str]) -> int:
    options = parse(VerifyOptions, argv, "smoothrl certify verify", VerifyOptions.__doc__)
    if not options.files:
        raise UserError("name at least one certificate file")
    if options.resample and options.agent is None:
        raise UserError("--resample plays the episodes again and needs --agent")
    from smoothrl.certificates import files

    agent_hash, environment, again = None, None, None
    if options.agent is not None:
        from smoothrl.agents import load_agent
        from smoothrl.certification import resampler

        agent = load_agent(options.agent)
        agent_hash, environment = agent.digest, agent.info.env_id
        again = resampler(agent) if options.resample else None
    bad = 0
    for path in options.files:
        record = files.read(path)
        failures = files.verify(record, agent_hash, again, environment)
        say(f"{path}: {'FAILED' if failures else 'verified'}")
        for line in failures or [record["statement"]]:
            say(f"  {line}")
        bad += bool(failures)
    return 1 if bad else 0


def main(argv: Sequence[str]) -> int:
    choices = (*CERTIFICATES, "verify")
    if not argv or argv[0] in ("-h", "--help"):
        say(f"usage: smoothrl certify {'|'.join(CERTIFICATES)} AGENT... [options]")
        say("       smoothrl certify verify FILE... [--agent AGENT [--resample]]")
        say("each with --help for its options")
        return 0
    what, *rest = argv
    if what not in choices:
        raise unknown("certificate", what, choices)
    return _verify(rest) if what == "verify" else _certify(what, rest)
