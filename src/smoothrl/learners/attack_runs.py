"""Playing episodes under attack, with the budget checked at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothrl import rollout
from smoothrl.agents import Agent
from smoothrl.attacks.base import Attack
from smoothrl.attacks.budget import TOLERANCE, Budget
from smoothrl.attacks.loop import GradientHealth
from smoothrl.errors import UserError
from smoothrl.results import ResultRow
from smoothrl.rollout import EpisodeResults, Perturbs, Step

Watch = Callable[[Step], None]


@dataclass(frozen=True)
class Episodes:
    """Which episodes are played, and how."""

    count: int = 50
    """Number of episodes."""
    seed: int = 0
    """Their seed."""
    env_id: str | None = None
    """Environment; the agent's own where not given."""
    lanes: int | None = None
    """Side by side; changes the speed, never the numbers."""
    max_steps: int | None = None
    """Episodes are cut after this many steps."""
    first: int = 0
    """Number of the first episode: different ranges of one seed share no episode."""
    env_settings: Mapping[str, Any] | None = None
    """Settings of the environment; the agent's own where not given."""


@dataclass
class Attacked:
    """What came of playing under one attack."""

    name: str
    results: EpisodeResults
    details: dict[str, Any]
    """What a row says about the attack: budget, steps, draws, restarts."""
    excess: float
    """How far the worst perturbation lay outside the budget (0: never)."""
    health: GradientHealth = field(default_factory=GradientHealth)

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        return self.results.finished()

    @property
    def mean(self) -> float:
        return float(self.returns.mean()) if self.returns.size else float("nan")


def play(
    agent: Agent,
    attack: Perturbs | None,
    episodes: Episodes,
    *,
    budget: Budget | None = None,
    progress: Callable[[float, int], None] | None = None,
    watch: Sequence[Watch] = (),
) -> Attacked:
    """Play the episodes under the attack (None: clean)."""
    limit = attack.budget if isinstance(attack, Attack) else budget
    worst = 0.0

    def look(step: Step) -> None:
        nonlocal worst
        if limit is not None and step.perturbed is not step.observations:
            worst = max(worst, limit.excess(step.observations, step.perturbed))
        for one in watch:
            one(step)

    results = rollout.evaluate(
        agent,
        episodes.env_id,
        episodes.count,
        episodes.seed,
        lanes=episodes.lanes,
        attack=attack,
        on_step=look,
        progress=progress,
        max_steps=episodes.max_steps,
        env_settings=episodes.env_settings,
        first=episodes.first,
    )
    beyond = worst if worst > TOLERANCE else 0.0
    if isinstance(attack, Attack):
        return Attacked(attack.name, results, attack.describe(), beyond, attack.health)
    return Attacked("clean" if attack is None else type(attack).__name__, results, {}, beyond)


def early_stopped(returns: npt.NDArray[np.float64], best: float) -> npt.NDArray[np.float64]:
    """The episodes that the released evaluation would have played.

    After more than a quarter of them it stops where the best attack so far lies below mean - 2 std of this
    one, or below its every episode.
    """
    for done in range(len(returns) // 4 + 1, len(returns) + 1):
        part = returns[:done]
        if best < part.mean() - 2.0 * part.std() or best < part.min():
            return part
    return returns


def row_of(
    agent: Agent, attacked: Attacked, episodes: Episodes, protocol: str, command: str, note: str = ""
) -> ResultRow:
    """The result row of one attack; the note holds the details of the attack."""
    details = {k: v for k, v in attacked.details.items() if k not in ("attack", "epsilon", "norm")}
    parts = [", ".join(f"{k} {_short(v)}" for k, v in details.items() if v is not None)]
    if attacked.excess > 0.0:
        parts.append(f"OUTSIDE THE BUDGET by {attacked.excess:.2g}")
    if attacked.results.interrupted:
        parts.append(f"interrupted after {attacked.returns.size} episodes")
    return rollout.result_row(
        agent,
        attacked.results,
        attacked.name,
        episodes.seed,
        environment=episodes.env_id,
        epsilon=attacked.details.get("epsilon"),
        norm=attacked.details.get("norm", ""),
        protocol=protocol,
        note="; ".join(p for p in (*parts, note) if p),
        command=command,
    )


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def epsilons(text: str) -> list[float]:
    """`0.05,0.075` as numbers."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"--epsilon takes one number or several with commas, got {text!r}") from error
