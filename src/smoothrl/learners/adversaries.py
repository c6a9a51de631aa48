"""Adversaries that learn: ATLA's perturbs the observation, PA-ATLA's directs the action and FGSM finds the
observation. They train with the agents (`TrainingAdversary`) or against a finished one (`fit_adversaries`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from smoothrl.agents import Agent
from smoothrl.envs.registry import Request, resolve
from smoothrl.errors import UserError
from smoothrl.learners import regularisers
from smoothrl.learners.actor_critic import ActorCritic, Batch, Rates, generators
from smoothrl.learners.collect import Arena, Decision, Float, PoolMoments, Rollout, Scaler, collect
from smoothrl.learners.methods import Method
from smoothrl.learners.players import Means, PolicyPlayer, Smooth
from smoothrl.learners.pools import PoolPolicy
from smoothrl.learners.presets import PPOConfig
from smoothrl.learners.run_directory import RunDirectory
from smoothrl.networks import GaussianPolicy
from smoothrl.noise import Noise, StreamNoise
from smoothrl.protocols import Protocol

if TYPE_CHECKING:
    from smoothrl.learners.ppo import Learner

Perturb = Callable[[Float, Float, int], Float]
"""(states, what the adversary drew, step or OUTSIDE) -> perturbed states, all (P, L, n)."""
ADVERSARY_SEEDS = 1 << 20
"""The adversary's iterations count from here when environments are seeded."""
OUTSIDE = -1
"""The step of a look from outside the run of steps: it draws from generators of its own."""
START_SHARE = 0.1
"""FGSM starts within this share of epsilon, at random."""


# ------------------------------------------------------------------------------------ perturbations


def along_tanh(states: Float, delta: Float, epsilon: float) -> Float:
    """ATLA: s + epsilon hardtanh(delta)."""
    return np.asarray(states + epsilon * np.clip(delta, -1.0, 1.0), np.float32)


def directed_objective(change: Tensor, direction: Tensor) -> Tensor:
    """PA-AD: cos(change, direction) + |change|, what the perturbation should make large, (P, L)."""
    length = torch.sqrt(change.square().sum(-1) + 1e-12)
    return functional.cosine_similarity(change, direction, dim=-1) + length


def directed_step(
    policy: PoolPolicy,
    states: Tensor,
    direction: Tensor,
    start: Tensor,
    noise: Tensor | None,
    epsilon: float,
    switches: Protocol,
) -> Tensor:
    """PA: one FGSM step from a random start so that the action moves along the direction.

    `noise` (P, L, m, n) smooths the action on both sides alike; where the protocol wants two noises, its
    first two draws are used, one a side.
    """
    frozen = policy.detached()
    eta = start.requires_grad_()
    if noise is None:
        change = frozen.mean(states + eta) - frozen.mean(states)
    elif switches.fgsm_two_noises:
        change = frozen.mean(states + noise[:, :, 1] + eta) - frozen.mean(states + noise[:, :, 0])
    else:
        change = frozen.smoothed_mean(states + eta, noise) - frozen.smoothed_mean(states, noise)
    (gradient,) = torch.autograd.grad(directed_objective(change, direction).sum(), eta)
    towards = -1.0 if switches.fgsm_sign_flipped else 1.0
    return states + towards * epsilon * gradient.sign()


# ------------------------------------------------------------------------------------------ players


@dataclass
class UnderAttack:
    """The agent acts on what its adversary shows it; it learns from what it saw."""

    agent: PolicyPlayer
    adversary: PolicyPlayer
    perturb: Perturb

    def act(self, observation: Float, step: int) -> Decision:
        drawn = self.adversary.act(observation, step).action
        return self.agent.act(self.perturb(observation, drawn, step), step)

    def perceive(self, observation: Float) -> Float:
        """What the adversary's mean would show; the draws of the coming steps stay as they are.

        A pool looks here whenever one member's episode is cut off, which must not touch the others.
        """
        return along_mean(self.adversary, self.perturb, observation)


@dataclass
class Attacking:
    """The adversary acts through the agent it attacks; it learns from the clean observation."""

    agent: PolicyPlayer
    adversary: PolicyPlayer
    perturb: Perturb

    def act(self, observation: Float, step: int) -> Decision:
        mine = self.adversary.act(observation, step)
        theirs = self.agent.act(self.perturb(observation, mine.action, step), step)
        return replace(mine, played=theirs.played)

    def perceive(self, observation: Float) -> Float:
        return observation


def along_mean(adversary: PolicyPlayer, perturb: Perturb, observation: Float) -> Float:
    return perturb(observation, adversary.policy.mean.quick(observation), OUTSIDE)


# ------------------------------------------------------------------------- training with the agents


class TrainingAdversary:
    """One adversary for each agent of the pool, improved after it in every iteration."""

    def __init__(
        self, config: PPOConfig, method: Method, switches: Protocol, states: int, actions: int
    ) -> None:
        self.config, self.switches = config, switches
        self.directs = method.adversary == "pa-atla"
        self.outputs = actions if self.directs else states
        self.net = ActorCritic(config.seeds, (states, *config.hidden, self.outputs), "adversary")
        self.smoothing = Smooth(config.sigma, config.train_samples) if method.smoothed else None
        self.rates = adversary_rates(config)

    def attacking(self, agent: PolicyPlayer, iteration: int) -> UnderAttack:
        """The agents' phase: they play under attack."""
        adversary = self._player("attack", iteration)
        return UnderAttack(agent, adversary, self._perturb(agent, iteration, "attack"))

    def improve(self, learner: Learner) -> dict[str, Tensor]:
        """The adversary's phase: PPO on the negative reward, against the agents as they now are, Eq. (16)."""
        k, total = learner.iteration, self.config.iterations
        agent = learner.actor("victim")
        player = Attacking(agent, self._player("adversary", k), self._perturb(agent, k, "adversary"))
        frozen = replace(learner.scaler, frozen=True)
        rollout = learner.collect(player, frozen, ADVERSARY_SEEDS + k, self.outputs)
        summary = improve(self.net, rollout, self.rates, self.switches, k, total, self.smoothing)
        return {f"adversary/{name}": value for name, value in summary.items()}

    def _player(self, purpose: str, iteration: int) -> PolicyPlayer:
        config = self.config
        shape = (config.horizon // config.lanes, config.lanes)
        smoothing = self.smoothing if self.switches.adversary_acts_smoothed else None
        return PolicyPlayer(self.net.policy, shape, config.seeds, iteration, f"{purpose}/own", smoothing)

    def _perturb(self, agent: PolicyPlayer, iteration: int, purpose: str) -> Perturb:
        epsilon = self.config.epsilon
        if not self.directs:
            return lambda states, delta, step: along_tanh(states, delta, epsilon)
        seeds = self.config.seeds
        running = generators(seeds, iteration, f"{purpose}/fgsm")

        def perturb(states: Float, direction: Float, step: int) -> Float:
            sources = generators(seeds, iteration, f"{purpose}/look") if step == OUTSIDE else running
            lanes, size = states.shape[1:]
            start = torch.stack([torch.rand(lanes, size, generator=g) for g in sources])
            noise = None
            if self.smoothing is not None:
                samples = 2 if self.switches.fgsm_two_noises else self.smoothing.samples
                shape = (lanes, samples, size)
                draws = [torch.randn(*shape, generator=g) for g in sources]
                noise = torch.stack(draws).mul_(self.smoothing.sigma)
            near = start.mul_(2.0).sub_(1.0).mul_(START_SHARE * epsilon)
            found = directed_step(
                agent.policy,
                torch.from_numpy(states),
                torch.from_numpy(direction),
                near,
                noise,
                epsilon,
                self.switches,
            )
            return found.numpy()

        return perturb


def adversary_rates(config: PPOConfig) -> Rates:
    def each(value: float) -> Tensor:
        return torch.full((config.pool,), value)

    return Rates(
        policy_lr=each(config.adversary_lr),
        value_lr=each(config.adversary_value_lr),
        clip=each(config.adversary_clip),
        entropy=each(config.adversary_entropy),
        anneal=each(float(config.anneal)),
        value_clip=config.value_clip,
        epochs=config.epochs,
        value_epochs=config.value_epochs,
        minibatches=config.minibatches,
        discount=config.discount,
        trace=config.trace,
    )


@dataclass(frozen=True)
class _Now:
    rates: Rates


def improve(
    net: ActorCritic,
    rollout: Rollout,
    rates: Rates,
    switches: Protocol,
    iteration: int,
    total: int,
    smoothing: Smooth | None,
) -> dict[str, Tensor]:
    """PPO for an adversary: the agent's reward with the other sign."""
    batch = net.prepare(replace(rollout, rewards=-rollout.rewards), rates, switches)
    value_loss = net.update_value(batch, rates, iteration, total)
    means = Means(generators(net.seeds, iteration, f"{net.purpose}/update"), smoothing)
    now = _Now(rates)

    def loss(policy: PoolPolicy, mean: Tensor, part: Batch, number: int) -> Tensor:
        return regularisers.ppo(policy, mean, part, now)

    return net.update_policy(batch, rates, means, loss, iteration, total) | {"value_loss": value_loss}


# --------------------------------------------------------------------- fitting against a finished agent


@dataclass(frozen=True)
class AdversaryConfig:
    """One adversary of a grid."""

    lr: float = 3e-4
    """Adam's rate of its policy."""
    value_lr: float = 3e-4
    """Adam's rate of its critic."""
    clip: float = 0.2
    """Clip range of the ratio."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    anneal: bool = True
    """Rates fall linearly to zero."""


@dataclass(frozen=True)
class FitSettings:
    """What all adversaries of a fit share."""

    epsilon: float
    """linf budget in normalised-observation units."""
    steps: int = 1_000_000
    """Environment steps an adversary."""
    seed: int = 0
    """Member i of the grid has the seed `seed + i`."""
    horizon: int = 2048
    """Steps an iteration."""
    minibatches: int = 32
    """Minibatches an epoch."""
    epochs: int = 10
    """Passes over an iteration's data."""
    lanes: int = 1
    """Environments side by side, an adversary."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the adversary and its critic."""
    value_clip: float | None = 0.2
    """Clip range of the value's move."""
    discount: float = 0.99
    """gamma."""
    trace: float = 0.95
    """lambda."""

    @property
    def iterations(self) -> int:
        return self.steps // self.horizon


@dataclass
class Fitted:
    """The adversaries of a grid and how the victim's return fell."""

    policies: list[GaussianPolicy]
    curves: list[list[float]] = field(default_factory=list)
    """For each adversary the victim's mean raw return, an entry an iteration (nan: no episode ended)."""


TensorPerturb = Callable[[Tensor, Tensor, Sequence[int], Noise, int], Tensor]
"""(observations (rows, n), drawn (rows, k), index, noise, step) -> perturbed observations."""


@dataclass
class _VictimPlayer:
    """Adversaries act through a finished agent."""

    victim: Agent
    adversary: PolicyPlayer
    perturb: TensorPerturb
    noise: Noise

    def act(self, observation: Float, step: int) -> Decision:
        mine = self.adversary.act(observation, step)
        pool, lanes, _ = observation.shape
        index = range(pool * lanes)
        rows = torch.from_numpy(np.ascontiguousarray(observation)).flatten(0, 1)
        drawn = torch.from_numpy(mine.action).flatten(0, 1)
        shown = self.perturb(rows, drawn, index, self.noise, step)
        played = self.victim.act(shown, self.noise, index).cpu().numpy()
        return replace(mine, played=played.reshape(pool, lanes, -1))

    def perceive(self, observation: Float) -> Float:
        return observation


def fit_adversaries(
    victim: Agent,
    env_id: str,
    grid: Sequence[AdversaryConfig],
    settings: FitSettings,
    switches: Protocol,
    *,
    kind: Literal["atla", "pa"] = "atla",
    perturb: TensorPerturb | None = None,
    progress: Callable[[int, list[float]], None] | None = None,
    state_dir: str | Path | None = None,
) -> Fitted:
    """Train one adversary a grid entry, all as one pool, against a frozen victim that acts as it is deployed.

    `atla` perturbs the observation by epsilon hardtanh(delta); `pa` gives directions in action space and
    needs `perturb` to turn them into observations. The victim's smoothing is its own (`with_smoothing`
    changes it).
    With `state_dir` the fit can be killed and called again.
    """
    _check_fit(victim, grid, settings, kind, perturb)
    fit = _Fit(victim, env_id, grid, settings, switches, kind, perturb)
    try:
        if state_dir is None:
            return fit.run(progress, None)
        described = {
            "victim": victim.digest,
            "grid": [asdict(g) for g in grid],
            "settings": asdict(settings),
            "kind": kind,
            "protocol": switches.name,
            "smoothing": str(victim.smoothing),
        }
        with RunDirectory.open(state_dir, described, resume=True, tensorboard=False) as run:
            return fit.run(progress, run)
    finally:
        fit.arena.close()


def _check_fit(
    victim: Agent,
    grid: Sequence[AdversaryConfig],
    settings: FitSettings,
    kind: str,
    perturb: TensorPerturb | None,
) -> None:
    if victim.discrete:
        raise UserError("fit_adversaries fits adversaries of continuous-control agents")
    if not grid:
        raise UserError("the grid of adversaries is empty")
    if kind == "pa" and perturb is None:
        raise UserError("a director needs `perturb`: what turns its directions into observations")
    if settings.iterations < 1:
        raise UserError(f"{settings.steps} steps are less than one iteration of {settings.horizon}")
    if settings.horizon % settings.minibatches or settings.horizon % settings.lanes:
        raise UserError(
            f"horizon {settings.horizon} must be a multiple of {settings.minibatches} minibatches "
            f"and of {settings.lanes} lanes"
        )


class _Fit:
    """The state of one fit."""

    def __init__(
        self,
        victim: Agent,
        env_id: str,
        grid: Sequence[AdversaryConfig],
        settings: FitSettings,
        switches: Protocol,
        kind: str,
        perturb: TensorPerturb | None,
    ) -> None:
        self.victim, self.settings, self.switches = victim, settings, switches
        self.seeds = tuple(settings.seed + i for i in range(len(grid)))
        request = Request(env_id, None, False, None, "auto", None, dict(victim.info.env_settings))
        plan = resolve(request)
        self.states = int(np.prod(plan.spec.obs_shape))
        self.outputs = self.states if kind == "atla" else victim.info.actions
        self.arena = Arena(plan.spec, plan.build, len(grid), settings.lanes)
        self.net = ActorCritic(self.seeds, (self.states, *settings.hidden, self.outputs), "adversary")
        self.rates = _grid_rates(grid, settings)
        epsilon = settings.epsilon
        self.perturb = perturb or (lambda s, delta, index, noise, t: s + epsilon * delta.clamp(-1.0, 1.0))
        self.rewards = PoolMoments(len(grid), 1)
        self.curves: list[list[float]] = [[] for _ in grid]
        self.iteration = 0

    def run(self, progress: Callable[[int, list[float]], None] | None, run: RunDirectory | None) -> Fitted:
        saved = None if run is None else run.load_state()
        if saved is not None:
            self._load(*saved)
        while self.iteration < self.settings.iterations:
            returns = self._iterate()
            for curve, value in zip(self.curves, returns, strict=True):
                curve.append(value)
            self.iteration += 1
            if run is not None and (self.iteration % 10 == 0 or self.iteration == self.settings.iterations):
                run.save_state(*self._state())
            if progress is not None:
                progress(self.iteration * self.settings.horizon, returns)
        policies = [self.net.policy.member(i) for i in range(len(self.seeds))]
        return Fitted(policies, self.curves)

    def _iterate(self) -> list[float]:
        settings, k = self.settings, self.iteration
        shape = (settings.horizon // settings.lanes, settings.lanes)
        own = PolicyPlayer(self.net.policy, shape, self.seeds, k, "adversary/own", None)
        streams = [
            int(np.random.SeedSequence((s, k, lane)).generate_state(1, np.uint64)[0]) >> 1
            for s in self.seeds
            for lane in range(settings.lanes)
        ]
        player = _VictimPlayer(self.victim, own, self.perturb, StreamNoise(streams))
        scaler = Scaler(
            PoolMoments(len(self.seeds), self.states),
            self.rewards,
            settings.discount,
            10.0,
            10.0,
            fixed=self.victim.normaliser,
        )
        sizes = (self.states, self.outputs)
        rollout = collect(self.arena, player, scaler, self.seeds, k, shape[0], sizes)
        improve(self.net, rollout, self.rates, self.switches, k, settings.iterations, None)
        return [float(np.mean(r)) if r else float("nan") for r in rollout.returns]

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors: dict[str, Any] = dict(self.net.state())
        tensors |= {f"rewards/{name}": value for name, value in self.rewards.state().items()}
        tensors["curves"] = np.array(self.curves)
        counts = self.net.step_counts()
        return tensors, {"step": self.iteration, "iteration": self.iteration, "adam": counts}

    def _load(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        self.net.load(tensors, meta["adam"])
        self.rewards.load({name: tensors[f"rewards/{name}"].numpy() for name in ("count", "mean", "m2")})
        self.curves = [list(map(float, row)) for row in tensors["curves"]]
        self.iteration = int(meta["iteration"])


def _grid_rates(grid: Sequence[AdversaryConfig], settings: FitSettings) -> Rates:
    def each(name: str) -> Tensor:
        return torch.tensor([float(getattr(g, name)) for g in grid])

    return Rates(
        policy_lr=each("lr"),
        value_lr=each("value_lr"),
        clip=each("clip"),
        entropy=each("entropy"),
        anneal=each("anneal"),
        value_clip=settings.value_clip,
        epochs=settings.epochs,
        value_epochs=settings.epochs,
        minibatches=settings.minibatches,
        discount=settings.discount,
        trace=settings.trace,
    )
