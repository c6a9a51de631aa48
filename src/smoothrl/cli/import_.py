"""`smoothrl import FILE --from released|sb3|cleanrl|torch`: bring an agent trained elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from smoothrl.cli.common import parse, say
from smoothrl.errors import UserError

if TYPE_CHECKING:
    from smoothrl.agents import Agent
    from smoothrl.agents.importers import Imported
    from smoothrl.agents.normaliser import Normaliser
    from smoothrl.agents.parts import Part

RELEASED_EPSILON = 0.075
"""The linf budget of the released ATLA and PA-ATLA trainings."""
RELEASED_FRAMES = {"profile": "single-frame", "transpose": True}
"""What the Q-networks of the released code see."""
_BELONGS = {
    "env": ("released", "sb3", "cleanrl"),
    "method": ("released", "sb3", "cleanrl"),
    "profile": ("released", "sb3", "cleanrl"),
    "normaliser": ("sb3", "cleanrl"),
    "estimate_normaliser": ("sb3", "cleanrl", "torch"),
    "base": ("released",),
    "sigma": ("released",),
}
"""Which options mean something with which source."""


@dataclass(frozen=True)
class Options:
    """Read an agent from elsewhere and write it as an agent file."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The foreign file. Nothing in it is executed (--from torch excepted: that is a Python file of yours)."""
    source: Annotated[Literal["released", "sb3", "cleanrl", "torch"], tyro.conf.arg(name="from")]
    """Where it comes from: the paper's released files, Stable-Baselines3, CleanRL, or a Python file of yours
    with a function agent()."""
    out: Path = Path("agent.safetensors")
    """Where the agent goes; critics and adversaries go beside it as OUT-critic.safetensors and so on."""
    env: str | None = None
    """The environment of the agent. Released .model files know theirs."""
    method: str | None = None
    """How the agent was trained (s-ppo+sgld, dqn, ...), where the file or its name does not say."""
    normaliser: Path | None = None
    """Observation statistics: a VecNormalize file of SB3, or an .npz with mean and var (or std)."""
    estimate_normaliser: int | None = None
    """Estimate the statistics by playing about this many steps, as CleanRL's own evaluation does."""
    base: Path | None = None
    """For a denoiser: the Q-agent it stands in front of; without it the denoiser gets a file of its own."""
    sigma: float | None = None
    """For a denoiser: its sigma, where the file's name does not say."""
    statistics: Literal["frozen", "image", "batch"] = "frozen"
    """For a denoiser: whose statistics its batch normalisation uses. The paper's code uses those of the
    batch: then the agent is no function of one observation and nothing of it is certified."""
    profile: str | None = None
    """For Atari agents: the preprocessing they were trained with (standard, single-frame); see
    docs/environments.md. Without it, released Q-networks see single transposed frames, all others standard
    ones."""


def main(argv: Sequence[str]) -> int:
    options = parse(Options, argv, "smoothrl import", "Bring an agent trained elsewhere.")
    for name, sources in _BELONGS.items():
        if getattr(options, name) is not None and options.source not in sources:
            said = name.replace("_", "-")
            raise UserError(f"--{said} means nothing with --from {options.source}; drop it")
    if options.source == "released":
        return _released(options)
    return _finish(options, _foreign(options))


def _released(options: Options) -> int:
    from smoothrl.agents import importers as guests
    from smoothrl.agents import load_agent
    from smoothrl.agents.parts import save_part

    kind = guests.kind_of(options.file)
    if kind == "checkpoint":
        return _finish(
            options, guests.import_released(options.file, env_id=options.env, method=options.method)
        )
    if kind == "q-network":
        settings = {"profile": options.profile} if options.profile else RELEASED_FRAMES
        agent = guests.import_q_network(
            options.file, _needed_env(options), method=options.method or "dqn", env_settings=settings
        )
        return _finish(options, guests.Imported(agent))
    part = guests.import_denoiser(options.file, options.statistics)
    if options.base is None:
        path = save_part(part, options.out)
        say(f"{path}: a denoiser; import it with --base Q-AGENT to get an agent that acts")
        return 0
    return _finish(
        options, guests.Imported(guests.denoised_agent(part, load_agent(options.base), sigma=options.sigma))
    )


def _needed_env(options: Options) -> str:
    if options.env is None:
        raise UserError("this file does not name its environment; add --env")
    return options.env


def _foreign(options: Options) -> Imported:
    from smoothrl.agents import importers as guests

    given = None if options.normaliser is None else guests.read_statistics(options.normaliser)
    if options.source == "torch":
        return guests.Imported(guests.run_adapter(options.file))
    env_id = _needed_env(options)
    settings = {"profile": options.profile} if options.profile else None
    if options.source == "sb3":
        found = guests.import_sb3(
            options.file, env_id, normaliser=given, method=options.method, env_settings=settings
        )
        if given is None and guests.looks_normalised(options.file):
            say("note: this agent was trained with VecNormalize; without --normaliser it will act wrongly")
        return found
    box = _action_box(env_id)
    found = guests.import_cleanrl(
        options.file,
        env_id,
        normaliser=given,
        action_box=box,
        method=options.method,
        env_settings=settings,
    )
    if given is None and box is not None and options.estimate_normaliser is None:
        say(
            "note: CleanRL does not save the observation statistics of ppo_continuous_action; without "
            "--normaliser or --estimate-normaliser STEPS the agent will act wrongly"
        )
    return found


def _action_box(env_id: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    from smoothrl import envs

    spec = envs.spec(env_id)
    return (spec.action_low, spec.action_high) if spec.action == "continuous" else None


def _finish(options: Options, found: Imported) -> int:
    from smoothrl.agents import save_agent
    from smoothrl.agents.parts import Part, save_part

    agent = found.agent
    _check(agent)
    if options.estimate_normaliser is not None:
        from smoothrl.agents.importers.estimate import with_estimated_normaliser

        agent = with_estimated_normaliser(agent, options.estimate_normaliser)
    path = save_agent(agent, options.out)
    say(
        f"{path}: {agent.info.method} of {agent.info.env_id}, {agent.info.actions} {agent.info.action_kind} "
        f"actions, smoothing {agent.smoothing}, normaliser {_named(agent.normaliser)}"
    )
    for name, part in found.parts.items():
        beside = path.with_name(f"{path.stem}-{name}.safetensors")
        if part.role in ("adversary", "director"):
            say(f"{_save_adversary(part, agent, beside)}: its {name}, for --adversary")
        else:
            about = {**part.about, "victim": agent.digest}
            say(f"{save_part(Part(part.role, part.network, about), beside)}: its {name}")
    return 0


def _save_adversary(part: Part, agent: Agent, path: Path) -> Path:
    """The adversary an agent was trained against, as a file that `smoothrl attack` takes."""
    from smoothrl.attacks import Adversary, AdversaryInfo, save_adversary

    info = AdversaryInfo(
        kind="optimal" if part.role == "adversary" else "pa-ad",
        victim=agent.digest,
        victim_method=agent.info.method,
        env_id=agent.info.env_id,
        epsilon=RELEASED_EPSILON,
        protocol="paper",
        smoothing=str(agent.info.trained_with),
        notes={"origin": part.about.get("origin"), "fitted": "during the agent's own training"},
    )
    return save_adversary(Adversary(part.network, info), path)


def _named(normaliser: Normaliser) -> str:
    clip = f", clipped at {normaliser.clip:g}" if normaliser.clip is not None else ""
    return {"none": "none", "scale": f"x {normaliser.scale:g}", "moments": f"mean and std{clip}"}[
        normaliser.kind
    ]


def _check(agent: Agent) -> None:
    """The agent must fit its environment, where that environment is known here."""
    from smoothrl import rollout

    rollout.check_environment(agent, agent.info.env_id)
