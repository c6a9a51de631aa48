"""From a method's name to its configuration and its training, for every Q-learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smoothrl.errors import UserError
from smoothrl.learners import dqn
from smoothrl.learners.methods import Method
from smoothrl.learners.q_config import DQNConfig, QConfig
from smoothrl.learners.q_loop import Report


def configure(
    method: Method,
    env_id: str,
    changes: dict[str, Any],
    *,
    preset: str | None = None,
    base: Path | None = None,
    init: Path | None = None,
    adversarial: str | None = None,
    denoiser: str | None = None,
) -> QConfig:
    """The configuration of one run; what the method has no use for is refused."""
    for name, value in (("base", base), ("adversarial", adversarial), ("denoiser", denoiser)):
        if value is not None:
            raise UserError(f"--{name} is for s-dqn; {method.name} has no use for it")
    return dqn.preset_config(method.name, env_id, preset, **changes)


def train(
    config: QConfig,
    out: Path,
    *,
    resume: bool = False,
    refill_replay: bool = False,
    report: Report | None = None,
) -> Path:
    """Train one agent; returns its path."""
    assert isinstance(config, DQNConfig)
    return dqn.train(config, out, resume=resume, refill_replay=refill_replay, report=report)
