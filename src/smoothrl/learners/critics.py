"""The robust-Sarsa critics of Min-RS: a pool of Q(s, a) fitted on shared trajectories of a frozen policy.

Each critic has its own pair (epsilon, weight) of the robustness term: the squared width of its bounds when
(s, a) moves within an l_inf ball, so that its gradient means something to an attacker.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from smoothrl import bounds, envs
from smoothrl.agents import Agent, Smoothing
from smoothrl.errors import UserError
from smoothrl.learners.pools import PoolAdam
from smoothrl.learners.run_directory import RunDirectory
from smoothrl.networks import MLP, GaussianPolicy, PoolMLP, orthogonal
from smoothrl.noise import StreamNoise, episode_seeds
from smoothrl.protocols import Protocol

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class CriticConfig:
    """One critic of a grid."""

    epsilon: float
    """l_inf radius around (s, a) in the robustness term."""
    weight: float
    """Weight of the robustness term."""
    myopic: bool = False
    """A model of the next reward: its target leaves out Q of the next state."""


CRITIC_GRID = tuple(
    CriticConfig(e, w)
    for e, w in itertools.product((0.02, 0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.3, 1.0, 3.0, 10.0))
)
"""The published grid of 30."""


def both_kinds(grid: Sequence[CriticConfig]) -> tuple[CriticConfig, ...]:
    """Every entry as a critic of the return and as one of the next reward."""
    return tuple(replace(entry, myopic=myopic) for myopic in (False, True) for entry in grid)


@dataclass(frozen=True)
class CriticSettings:
    """What all critics of a fit share."""

    iterations: int = 30
    """Rounds; the robustness term grows over the second third, the rate falls over the last."""
    horizon: int = 2048
    """Environment steps a round adds."""
    epochs: int = 10
    """Passes a round."""
    minibatches: int = 32
    """Minibatches a pass."""
    lr: float = 3e-4
    """Adam's rate."""
    discount: float = 0.99
    """gamma."""
    lanes: int = 32
    """Environments side by side."""
    samples: int = 20
    """Most noise samples of the smoothed victim while it collects."""
    exploration: float = 0.4
    """Largest deviation of explored actions where the critic values the deployed agent."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers."""
    seed: int = 0
    """Seed of trajectories and of the first critic."""


@dataclass(frozen=True)
class Experience:
    """Transitions in the order of time, (N, ...)."""

    states: Tensor
    actions: Tensor
    rewards: Tensor
    """Divided by the deviation of the discounted return."""
    next_states: Tensor
    next_actions: Tensor
    """The action that follows in the next state."""
    goes_on: Tensor
    """0 where the episode terminated."""


def exploration_of(agent: Agent, settings: CriticSettings, switches: Protocol) -> Tensor:
    """Standard deviation of the explored actions: the policy's own, or one near the deployed agent."""
    network: Any = getattr(agent.network, "body", agent.network)
    own = network.log_std.exp().flatten() if isinstance(network, GaussianPolicy) else torch.tensor(0.2)
    if switches.critic_of_exploration:
        return own.expand(agent.info.actions)
    return own.clamp(0.1, settings.exploration).expand(agent.info.actions)


def collect_experience(
    agent: Agent, env_id: str, settings: CriticSettings, switches: Protocol, progress: Progress | None = None
) -> Experience:
    """Trajectories of the frozen agent with explored actions."""
    victim = light(agent, settings.samples)
    std = exploration_of(agent, settings, switches)
    lanes, total = settings.lanes, settings.iterations * settings.horizon
    env = envs.make(env_id, lanes, settings.seed, **agent.info.env_settings)
    noise = StreamNoise(episode_seeds(settings.seed, lanes, "critic"))
    generator = torch.Generator().manual_seed(settings.seed)
    rows: dict[str, list[Tensor]] = {f.name: [] for f in fields(Experience)}
    scale = _ReturnScale(lanes, settings.discount)
    raw, _ = env.reset()
    states, index = agent.observe(raw), range(lanes)
    decision = victim.act(states, noise, index)
    try:
        for step in range(-(-total // lanes)):
            actions = decision + std * torch.randn(decision.shape, generator=generator)
            raw, reward, terminated, truncated, info = env.step(actions.numpy())
            ended = terminated | truncated
            following = agent.observe(raw)
            upcoming = victim.act(following, noise, index)
            seen, then = following.clone(), upcoming.clone()
            if ended.any():
                seen[ended] = agent.observe(np.asarray(info["final_obs"])[ended])
                then[ended] = victim.act(seen, noise, index)[ended]
            explored = switches.critic_of_exploration
            if explored:
                then = then + std * torch.randn(then.shape, generator=generator)
            scale.push(reward, ended)
            found = (states, actions, torch.from_numpy(reward).float(), seen, then)
            for name, value in zip(rows, (*found, torch.from_numpy(~terminated).float()), strict=True):
                rows[name].append(value)
            states, decision = following, upcoming
            if progress is not None and step % 16 == 0:
                progress(step * lanes / total, "collecting")
    finally:
        env.close()
    joined = {name: torch.cat(parts)[:total] for name, parts in rows.items()}
    joined["rewards"] = joined["rewards"] / scale.deviation
    return Experience(**joined)


def light(agent: Agent, samples: int) -> Agent:
    """The agent with at most this many noise samples: cheaper to train against, same decision on average."""
    smooth = agent.smoothing
    if smooth.kind == "none" or smooth.samples <= samples:
        return agent
    return agent.with_smoothing(Smoothing(smooth.kind, smooth.sigma, samples))


class _ReturnScale:
    """Standard deviation of the running discounted return."""

    def __init__(self, lanes: int, discount: float) -> None:
        self.running, self.discount = np.zeros(lanes), discount
        self.seen: list[Any] = []

    def push(self, reward: Any, ended: Any) -> None:
        self.running = self.discount * self.running + reward
        self.seen.append(self.running.copy())
        self.running[ended] = 0.0

    @property
    def deviation(self) -> float:
        return max(float(np.std(self.seen)), 1e-8)


# ------------------------------------------------------------------------------------------- fitting


@dataclass(frozen=True)
class PoolGrid:
    """The grid with one number a critic (P,)."""

    radius: Tensor
    weight: Tensor
    foresight: Tensor
    """1, or 0 for a myopic critic."""

    @classmethod
    def of(cls, grid: Sequence[CriticConfig]) -> PoolGrid:
        columns = zip(*((g.epsilon, g.weight, float(not g.myopic)) for g in grid), strict=True)
        return cls(*map(torch.tensor, columns))


def critic_loss(
    critics: PoolMLP,
    batch: Experience,
    grid: PoolGrid,
    grown: float,
    settings: CriticSettings,
    shuffled: bool,
) -> Tensor:
    """SmoothL1(Q(s, a), r + gamma Q(s', a')) + weight E max(ub - Q, Q - lb)^2, one number a critic (P,).

    Myopic critics have gamma = 0. `grown` in [0, 1] scales epsilon and moves the bound from CROWN to IBP.
    `shuffled` is the released code's slip: the rows of the minibatch are not in the order of time, and Q of
    the next *row* stands for Q of the next state. batch: (P, B, ...).
    """
    pairs = torch.cat([batch.states, batch.actions], dim=-1)
    q = critics(pairs)[..., 0]
    with torch.no_grad():
        if shuffled:
            following = q[:, 1:]
        else:
            following = critics(torch.cat([batch.next_states, batch.next_actions], dim=-1))[..., 0]
    kept = q.shape[1] - 1 if shuffled else q.shape[1]
    discount = settings.discount * grid.foresight[:, None]
    target = batch.rewards[:, :kept] + discount * batch.goes_on[:, :kept] * following.detach()
    loss = functional.smooth_l1_loss(q[:, :kept], target, reduction="none").mean(1)
    if grown <= 0.0:
        return loss
    lower, upper = bounds.box(pairs, grown * grid.radius.view(-1, 1, 1))
    if grown < 1.0:
        (low, high), linear = bounds.ibp_and_crown(critics, lower, upper)
        low, high = torch.lerp(linear[0], low, grown), torch.lerp(linear[1], high, grown)
    else:
        low, high = bounds.ibp(critics, lower, upper)
    width = torch.maximum(high[..., 0] - q, q - low[..., 0])
    return loss + grid.weight * width.square().mean(1)


@dataclass
class FittedCritics:
    """The critics of a grid and their losses."""

    critics: list[MLP]
    curves: list[list[float]]


def fit_critics(
    agent: Agent,
    env_id: str,
    grid: Sequence[CriticConfig],
    settings: CriticSettings,
    switches: Protocol,
    *,
    experience: Experience | None = None,
    progress: Progress | None = None,
    state_dir: str | Path | None = None,
) -> FittedCritics:
    """Fit one critic a grid entry, all as one pool on the same trajectories; resumable with `state_dir`."""
    if agent.discrete:
        raise UserError("robust-Sarsa critics are for continuous actions; a Q-agent has its own Q")
    if not grid:
        raise UserError("the grid of critics is empty")
    fit = _Fit(agent, env_id, grid, settings, switches)
    if state_dir is None:
        return fit.run(experience, progress, None)
    described = {
        "victim": agent.digest,
        "grid": [asdict(g) for g in grid],
        "settings": asdict(settings),
        "protocol": switches.name,
        "smoothing": str(agent.smoothing),
    }
    with RunDirectory.open(state_dir, described, resume=True, tensorboard=False) as run:
        return fit.run(experience, progress, run)


class _Fit:
    def __init__(
        self,
        agent: Agent,
        env_id: str,
        grid: Sequence[CriticConfig],
        settings: CriticSettings,
        switches: Protocol,
    ) -> None:
        self.agent, self.env_id, self.settings, self.switches = agent, env_id, settings, switches
        size = int(np.prod(agent.info.observation_shape)) + agent.info.actions
        self.critics = PoolMLP(len(grid), size, 1, settings.hidden)
        for i in range(len(grid)):
            generator = torch.Generator().manual_seed(settings.seed + i)
            mlp = MLP(size, 1, settings.hidden)
            orthogonal(mlp, generator)
            self.critics.set_member(i, mlp)
        self.grid = PoolGrid.of(grid)
        self.adam = PoolAdam(list(self.critics.parameters()))
        self.curves: list[list[float]] = [[] for _ in grid]
        self.iteration = 0

    def run(
        self, data: Experience | None, progress: Progress | None, run: RunDirectory | None
    ) -> FittedCritics:
        saved = None if run is None else run.load_state()
        if saved is not None:
            data = self._load(*saved)
        if data is None:
            data = collect_experience(self.agent, self.env_id, self.settings, self.switches, progress)
        total = self.settings.iterations
        while self.iteration < total:
            losses = self._round(data)
            for curve, value in zip(self.curves, losses.tolist(), strict=True):
                curve.append(value)
            if not torch.isfinite(losses).all():
                raise UserError("a critic became NaN or infinite; lower its rate or its robustness weight")
            self.iteration += 1
            if run is not None and (self.iteration % 5 == 0 or self.iteration == total):
                run.save_state(*self._state(data))
            if progress is not None:
                progress(self.iteration / total, "fitting critics")
        return FittedCritics([self.critics.member(i) for i in range(len(self.curves))], self.curves)

    def _round(self, data: Experience) -> Tensor:
        s, k = self.settings, self.iteration
        horizon = s.horizon
        generator = torch.Generator().manual_seed(s.seed * 1_000_003 + k)
        first = k * horizon if self.switches.critic_shuffled else 0
        last = (k + 1) * horizon
        falling = max(0.0, (k + 1 - 2 * s.iterations / 3) / (s.iterations / 3))
        rate = torch.full((len(self.curves),), s.lr * (1.0 - min(falling, 1.0) * (1 - 1 / s.iterations)))
        size = horizon // s.minibatches
        losses = torch.zeros(len(self.curves))
        for epoch in range(s.epochs):
            order = first + torch.randperm(last - first, generator=generator)[:horizon]
            for j in range(s.minibatches):
                done = k + (epoch + (j + 1) / s.minibatches) / s.epochs
                grown = min(max((done - s.iterations / 3) / (s.iterations / 3), 0.0), 1.0)
                loss = critic_loss(
                    self.critics,
                    self._batch(data, order[j * size : (j + 1) * size]),
                    self.grid,
                    grown,
                    s,
                    self.switches.critic_shuffled,
                )
                gradients = torch.autograd.grad(loss.sum(), self.adam.parameters)
                self.adam.step(gradients, rate)
                losses += loss.detach() / s.minibatches / s.epochs
        return losses

    def _batch(self, data: Experience, rows: Tensor) -> Experience:
        """The rows for every critic of the pool."""
        pool = len(self.curves)
        parts = {f.name: getattr(data, f.name)[rows] for f in fields(data)}
        return Experience(**{k: v.expand(pool, *v.shape) for k, v in parts.items()})

    def _state(self, data: Experience) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors: dict[str, Any] = {f"critics/{k}": v.detach() for k, v in self.critics.state_dict().items()}
        tensors |= {f"adam/{k}": v for k, v in self.adam.state().items()}
        tensors |= {f"data/{f.name}": getattr(data, f.name) for f in fields(data)}
        tensors["curves"] = np.array(self.curves)
        return tensors, {"step": self.iteration, "iteration": self.iteration, "adam": self.adam.steps}

    def _load(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> Experience:
        def under(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.critics.load_state_dict(under("critics/"))
        self.adam.load(under("adam/"), int(meta["adam"]))
        self.curves = [list(map(float, row)) for row in tensors["curves"]]
        self.iteration = int(meta["iteration"])
        return Experience(**under("data/"))
