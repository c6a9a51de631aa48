"""Fitting the learned attacks: a grid as one pool, the best chosen on held-out episodes, one file kept.

`fit_attack` does everything for one attack and one budget; a second call finds the file, and a killed one
goes on where it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from smoothrl.agents import Agent, Smoothing
from smoothrl.attacks import (
    ENTRIES,
    Adversary,
    AdversaryInfo,
    Overrides,
    load_adversary,
    make_attack,
    save_adversary,
)
from smoothrl.attacks.adversary import Kind
from smoothrl.attacks.base import Attack
from smoothrl.attacks.budget import make_budget
from smoothrl.attacks.catalogue import check_fit, plan_of
from smoothrl.attacks.learned import DirectedAttack, DirectedQAttack, within_budget
from smoothrl.errors import UserError, unknown
from smoothrl.learners import tournament
from smoothrl.learners.adversaries import AdversaryConfig, FitSettings, fit_adversaries
from smoothrl.learners.attack_runs import Episodes, play
from smoothrl.learners.critics import (
    CRITIC_GRID,
    CriticConfig,
    CriticSettings,
    both_kinds,
    fit_critics,
    light,
)
from smoothrl.learners.directors import PAPER_DIRECTOR, DirectorConfig, DirectorFit, DirectorSettings
from smoothrl.noise import Noise
from smoothrl.protocols import SOUND, Protocol

Progress = Callable[[float, str], None]
Grid = tuple[AdversaryConfig, ...]


def adversary_grid(rates: tuple[float, ...], clips: tuple[float, ...], entropies: tuple[float, ...]) -> Grid:
    """Every combination, both rates from the same set, annealed."""
    return tuple(
        AdversaryConfig(lr, value_lr, clip, entropy)
        for lr, value_lr, clip, entropy in itertools.product(rates, rates, clips, entropies)
    )


HOPPER_RATES, WALKER_RATES = (3e-4, 1e-3, 3e-3), (1e-4, 3e-4, 1e-3)
PAPER_GRID: Grid = tuple(
    replace(c, anneal=anneal)
    for anneal in (True, False)
    for c in adversary_grid(HOPPER_RATES, (0.2, 0.4), (0.0, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3))
)
"""The published 216 for Hopper; Walker2d takes the rates of WALKER_RATES."""


@dataclass(frozen=True)
class FitScale:
    """How much is spent on a fit."""

    name: str
    """For labels."""
    critics: tuple[CriticConfig, ...]
    """Grid of Min-RS critics."""
    critic_settings: CriticSettings
    """Their fit."""
    adversaries: Grid
    """Grid of `optimal` adversaries and of PA-AD directors on policies."""
    adversary_steps: int
    """Steps of each `optimal` adversary; a director takes half of them."""
    adversary_lanes: int
    """Environments side by side, an adversary."""
    directors: tuple[DirectorConfig, ...]
    """Grid of PA-AD directors on Q-agents."""
    director_settings: DirectorSettings
    """Their fit."""
    victim_samples: int = 20
    """Most noise samples of the smoothed victim during a fit."""
    held_out: tuple[int, int] = (4, 12)
    """Episodes of the first and of the second round of selection."""


SCALES = {
    s.name: s
    for s in (
        FitScale(
            "tiny",
            CRITIC_GRID[7:13:5],
            CriticSettings(iterations=3, horizon=512, epochs=1, minibatches=8, lanes=4),
            adversary_grid((1e-3,), (0.2,), (0.0, 1e-3)),
            4096,
            1,
            (DirectorConfig(),),
            DirectorSettings(steps=2048, lanes=4, horizon=32),
            4,
            (2, 0),
        ),
        FitScale(
            "quick",
            tuple(CriticConfig(e, w) for e, w in itertools.product((0.05, 0.15), (0.3, 1.0, 3.0))),
            CriticSettings(iterations=12, epochs=4, minibatches=16),
            adversary_grid((1e-3, 3e-3), (0.2,), (0.0,)),
            131_072,
            2,
            (DirectorConfig(), DirectorConfig(lr=1e-3)),
            DirectorSettings(steps=65_536),
        ),
        FitScale(
            "full",
            CRITIC_GRID,
            CriticSettings(),
            adversary_grid(HOPPER_RATES, (0.2, 0.4), (0.0,)),
            507_904,
            1,
            tuple(DirectorConfig(lr, e) for lr, e in itertools.product((2.5e-4, 5e-4, 1e-3), (0.01, 0.001))),
            DirectorSettings(steps=507_904),
        ),
        FitScale(
            "paper",
            CRITIC_GRID,
            CriticSettings(lanes=1),
            PAPER_GRID,
            488 * 2048,
            1,
            (DirectorConfig(clip=0.1),),
            PAPER_DIRECTOR,
        ),
    )
}


@dataclass(frozen=True)
class Task:
    """One fit: whom, with which attack, within which budget."""

    agent: Agent
    name: str
    epsilon: float
    norm: str
    protocol: Protocol
    scale: FitScale
    env_id: str
    seed: int
    folder: Path
    test: Episodes | None = None
    """The episodes of the test: selection takes them where the protocol selects on them."""

    @property
    def kind(self) -> Kind:
        return ENTRIES[self.name].kind  # type: ignore[return-value]

    @property
    def victim(self) -> Agent:
        """Whom the adversary trains against: the deployed agent with fewer samples, or its base network."""
        bare = self.protocol.adversary_of_base_network and not ENTRIES[self.name].smoothed
        if not bare or self.agent.smoothing.kind == "none":
            return light(self.agent, self.scale.victim_samples)
        if not self.agent.discrete:
            return self.agent.with_smoothing(Smoothing())
        return light(self.agent, 1)

    @property
    def stem(self) -> str:
        parts = (self.name, self.norm, f"{self.epsilon:g}", self.protocol.name, self.scale.name)
        smoothing = f"{self.agent.smoothing.kind}{self.agent.smoothing.sigma:g}"
        return "-".join((*parts, smoothing, f"seed{self.seed}", self.agent.digest[:12]))


def scale_named(name: str) -> FitScale:
    if name not in SCALES:
        raise unknown("scale of fitting", name, SCALES)
    return SCALES[name]


def fit_attack(
    agent: Agent,
    name: str,
    epsilon: float,
    norm: str = "linf",
    *,
    folder: str | Path,
    protocol: Protocol = SOUND,
    scale: FitScale | str = "quick",
    env_id: str | None = None,
    seed: int = 0,
    test: Episodes | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fit the attack's adversary and return its file in `folder`; an existing file of this fit is kept."""
    found = check_fit(name, agent)
    if not found.fitted:
        raise UserError(f"the attack {name!r} needs no fitting")
    make_budget(agent, epsilon, norm)
    chosen = scale_named(scale) if isinstance(scale, str) else scale
    where = agent.info.env_id if env_id is None else env_id
    if where != agent.info.env_id:
        raise UserError(
            f"adversaries are fitted where the agent was trained, {agent.info.env_id}, not in {where}"
        )
    if epsilon == 0.0:
        raise UserError("there is nothing to fit at epsilon 0: the attack does nothing there")
    task = Task(agent, name, epsilon, norm, protocol, chosen, where, seed, Path(folder), test)
    target = task.folder / f"{task.stem}.safetensors"
    if target.exists():
        load_adversary(target)
        return target
    kind = task.kind
    if kind == "min-rs":
        members, curves, settings = _critics(task, progress)
    elif agent.discrete:
        members, curves, settings = _q_directors(task, progress)
    else:
        members, curves, settings = _policies(task, progress)
    choice = _chosen(task, members, progress)
    info = AdversaryInfo(
        kind,
        agent.digest,
        agent.info.method,
        where,
        epsilon,
        norm,
        protocol.name,
        str(task.victim.smoothing),
        {
            "grid": len(members),
            "member": settings[choice.member],
            "selection": {"means": choice.scores, "episodes": choice.episodes},
            "curve": [None if not np.isfinite(v) else v for v in curves[choice.member]],
            "still_improving": kind != "min-rs" and still_improving(curves[choice.member]),
        },
    )
    return save_adversary(Adversary(members[choice.member], info), target)


def _critics(task: Task, progress: Progress | None) -> Any:
    """Critics do not depend on the budget: one fit serves every epsilon.

    Which kind guides better depends on the agent, so that `sound` fits both and lets the selection decide.
    """
    shuffled = task.protocol.critic_shuffled
    grid = task.scale.critics if shuffled else both_kinds(task.scale.critics)
    settings = replace(task.scale.critic_settings, seed=task.seed)
    victim = task.victim
    state = task.folder / f"critics-{task.protocol.name}-{task.scale.name}-{_who(task, victim)}.fit"
    fit = fit_critics(victim, task.env_id, grid, settings, task.protocol, progress=progress, state_dir=state)
    return fit.critics, fit.curves, [asdict(c) for c in grid]


def _who(task: Task, victim: Agent) -> str:
    return f"{victim.smoothing.kind}{victim.smoothing.sigma:g}-seed{task.seed}-{task.agent.digest[:12]}"


def _policies(task: Task, progress: Progress | None) -> Any:
    """`optimal` adversaries or PA-AD directors on a policy, by PPO."""
    victim, directs = task.victim, task.kind == "pa-ad"
    budget = make_budget(task.agent, task.epsilon, task.norm)
    steps = task.scale.adversary_steps // 2 if directs else task.scale.adversary_steps
    settings = FitSettings(task.epsilon, steps, task.seed, lanes=task.scale.adversary_lanes)
    if settings.iterations < 1:
        raise UserError(f"scale {task.scale.name!r} has too few steps for one iteration")
    if directs:
        through = ENTRIES[task.name].smoothed or task.protocol.attack_through_smoothing
        plan = plan_of("pa-ad", victim, task.protocol, Overrides())
        actor = DirectedAttack(victim, budget, None, plan, task.protocol, smoothed=through)

        def perturb(states: Tensor, drawn: Tensor, index: Any, noise: Noise, step: int) -> Tensor:
            return actor.along(states, drawn, index, noise, step)
    else:

        def perturb(states: Tensor, drawn: Tensor, index: Any, noise: Noise, step: int) -> Tensor:
            return budget.settle(states, within_budget(states, drawn, budget))

    def tell(done: int, returns: list[float]) -> None:
        if progress is not None:
            known = [r for r in returns if np.isfinite(r)]
            progress(done / steps, f"fitting, victim at {np.mean(known):.0f}" if known else "fitting")

    grid = task.scale.adversaries
    fit = fit_adversaries(
        victim,
        task.env_id,
        grid,
        settings,
        task.protocol,
        kind="pa" if directs else "atla",
        perturb=perturb,
        progress=tell,
        state_dir=task.folder / f"{task.stem}.fit",
    )
    return fit.policies, fit.curves, [asdict(c) for c in grid]


def _q_directors(task: Task, progress: Progress | None) -> Any:
    victim = task.victim
    clamp = not task.protocol.director_unclamped
    budget = make_budget(task.agent, task.epsilon, task.norm, clamp=clamp)
    through = ENTRIES[task.name].smoothed or task.protocol.attack_through_smoothing
    plan = plan_of("pa-ad", victim, task.protocol, Overrides())
    attack = DirectedQAttack(victim, budget, None, plan, task.protocol, smoothed=through)
    settings = replace(task.scale.director_settings, seed=task.seed)
    state = task.folder / f"{task.stem}.fit"
    fit = DirectorFit(attack, victim, task.env_id, task.scale.directors, settings).run(progress, state)
    return fit.directors, fit.curves, [asdict(c) for c in task.scale.directors]


def _chosen(task: Task, members: list[nn.Module], progress: Progress | None) -> tournament.Choice:
    def make(network: nn.Module) -> Attack:
        info = AdversaryInfo(task.kind, task.agent.digest, "", task.agent.info.env_id, task.epsilon)
        return make_attack(
            task.name,
            task.agent,
            task.epsilon,
            task.norm,
            protocol=task.protocol,
            adversary=Adversary(network, info),
        )

    if len(members) == 1:
        return tournament.Choice(0, [float("nan")], [0])
    on_test = task.protocol.select_on_test and task.test is not None
    seed = task.test.seed if on_test and task.test is not None else task.seed + tournament.HELD_OUT
    limit = None if task.test is None else task.test.max_steps
    if task.agent.discrete:
        count = task.test.count if on_test and task.test is not None else sum(task.scale.held_out)
        episodes = Episodes(count, seed, max_steps=limit)
        scores = [float(play(task.agent, make(m), episodes).results.returns.mean()) for m in members]
        return tournament.Choice(int(np.argmin(scores)), scores, [count] * len(members))
    arena = tournament.Arena(task.agent, task.env_id, seed, limit)
    if on_test and task.test is not None:
        return tournament.choose_on_test(arena, make, members, task.test.count)
    first, then = task.scale.held_out
    return tournament.choose(arena, make, members, first=first, then=then, progress=progress)


def still_improving(curve: list[float]) -> bool:
    """Whether the victim's return still fell over the last third of the fit: a longer one would be stronger.

    The trend must exceed twice its own error and a twentieth of the return.
    """
    last = np.array([v for v in curve[-max(6, len(curve) // 3) :] if v is not None and np.isfinite(v)])
    if last.size < 6:
        return False
    t = np.arange(last.size) - (last.size - 1) / 2
    slope = float(t @ last / (t @ t))
    rest = last - last.mean() - slope * t
    error = float(np.sqrt(rest @ rest / (last.size - 2) / (t @ t)))
    fall = -slope * last.size
    return slope < -2.0 * error and fall > 0.05 * max(abs(float(last.mean())), 1e-12)
