"""From a method's name to its configuration and its training, for every Q-learner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoothrl.agents import Agent, load_agent
from smoothrl.errors import UserError
from smoothrl.learners import dqn, s_dqn
from smoothrl.learners.methods import Method
from smoothrl.learners.q_config import DQNConfig, NoisyDQNConfig, QConfig, SDQNConfig
from smoothrl.learners.q_loop import Report
from smoothrl.learners.robust_dqn import LEARNERS


@dataclass(frozen=True)
class Job:
    """One training, checked and ready."""

    config: QConfig
    """Everything config.json keeps."""
    base: Agent | None = None
    """The frozen agent of s-dqn, or the agent that dqn starts from."""
    regulariser: str | None = None
    """The robust ingredient."""


def configure(
    method: Method,
    env_id: str,
    changes: dict[str, Any],
    *,
    preset: str | None = None,
    base: Path | None = None,
    adversarial: str | None = None,
    denoiser: str | None = None,
    init: Path | None = None,
) -> Job:
    """One run; what the method has no use for is refused."""
    if method.smoothed:
        if init is not None:
            raise UserError("--init is for dqn; s-dqn starts from its --base")
        return _smoothed(method, env_id, changes, preset, base, adversarial, denoiser)
    for name, value in (("base", base), ("adversarial", adversarial), ("denoiser", denoiser)):
        if value is not None:
            raise UserError(f"--{name} is for s-dqn; {method.name} has no use for it")
    config = dqn.preset_config(method.name, env_id, preset, method.regulariser, **changes)
    return Job(config, None if init is None else checked_init(init, env_id), method.regulariser)


def _smoothed(
    method: Method,
    env_id: str,
    changes: dict[str, Any],
    preset: str | None,
    base: Path | None,
    adversarial: str | None,
    denoiser: str | None,
) -> Job:
    if denoiser == "none":
        if base is not None or adversarial is not None or method.robust:
            raise UserError(
                "--denoiser none trains the Q-network itself: s-dqn without --base, --adversarial or a "
                "regulariser"
            )
        return Job(s_dqn.noisy_config(env_id, preset, **changes))
    if adversarial is None and "epsilon" in changes:
        raise UserError(
            f"--epsilon is the budget of --adversarial s-pgd; {method.name} has no other use for it"
        )
    agent = s_dqn.checked_base(base, env_id, changes.get("env_settings"))
    wanted = method.name.removeprefix("s-")
    if method.robust and agent.info.method != wanted:
        raise UserError(
            f"{method.name} takes its robustness from its base and {base} is a {agent.info.method} agent; "
            f"give a {wanted} agent with --base, or train s-dqn, which takes any"
        )
    given = {**changes, "method": method.name} | ({"adversarial": adversarial} if adversarial else {})
    return Job(s_dqn.preset_config(env_id, agent, preset, denoiser, **given), agent)


def train(
    job: Job,
    out: Path,
    *,
    resume: bool = False,
    refill_replay: bool = False,
    report: Report | None = None,
    device: dqn.Device = "cpu",
    threads: int | None = None,
) -> Path:
    """Train one agent; returns its path."""
    config = job.config
    options: dict[str, Any] = {"resume": resume, "refill_replay": refill_replay, "report": report}
    options |= {"device": device, "threads": threads}
    if isinstance(config, SDQNConfig | NoisyDQNConfig):
        return s_dqn.train(config, job.base, out, **options)
    assert isinstance(config, DQNConfig)
    learner = dqn.DQNLearner if job.regulariser is None else LEARNERS[job.regulariser]
    return dqn.train(config, out, init=job.base, learner=learner, **options)


def checked_init(path: Path, env_id: str) -> Agent:
    """The agent to start from, refused where it plays something else."""
    agent = load_agent(path)
    if agent.info.env_id != env_id or not agent.discrete:
        raise UserError(f"{path} was trained on {agent.info.env_id}; --init wants an agent of {env_id}")
    return agent
