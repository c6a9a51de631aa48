"""PPO and S-PPO for a pool of seeds. Read `train`, then `Learner.iterate`; the losses are in `losses.py` and
`regularisers.py`, what an adversary adds in `adversaries.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smoothrl.agents import Agent, AgentInfo, Smoothing
from smoothrl.agents.file import versions
from smoothrl.envs import EnvSpec
from smoothrl.envs.registry import Request, resolve
from smoothrl.errors import UserError
from smoothrl.learners import losses, methods
from smoothrl.learners.actor_critic import ActorCritic, Batch, Rates, generators, member_first
from smoothrl.learners.adversaries import TrainingAdversary
from smoothrl.learners.collect import Arena, Player, PoolMoments, Rollout, Scaler, collect
from smoothrl.learners.players import Means, PolicyPlayer, Smooth
from smoothrl.learners.presets import PPOConfig
from smoothrl.learners.regularisers import WorstCase, policy_loss
from smoothrl.learners.run_directory import RunDirectory
from smoothrl.learners.worst_case import WorstCaseLearner
from smoothrl.protocols import Protocol, protocol

OnIteration = Callable[[int, dict[str, float]], None]


class Learner:
    """A pool in training."""

    def __init__(self, config: PPOConfig, threads: int | None = None) -> None:
        self.config, self.method = config, methods.parse(config.method)
        self.protocol: Protocol = protocol(config.protocol)
        self.spec, build = environment(config, threads)
        self.arena = Arena(self.spec, build, config.pool, config.lanes)
        self.state_size, self.action_size = int(np.prod(self.spec.obs_shape)), self.spec.action_size
        sizes = (self.state_size, *config.hidden, self.action_size)
        self.agents = ActorCritic(config.seeds, sizes, "agent")
        self.scaler = Scaler(
            PoolMoments(config.pool, self.state_size),
            PoolMoments(config.pool, 1),
            config.discount,
            config.observation_clip,
            config.reward_clip,
        )
        self.rates = agent_rates(config)
        self.smoothing = Smooth(config.sigma, config.train_samples) if self.method.smoothed else None
        wocar = self.method.regulariser == "wocar"
        self.worst = WorstCaseLearner(config, self.state_size, self.action_size) if wocar else None
        self.adversary: TrainingAdversary | None = None
        if self.method.adversary is not None:
            self.adversary = TrainingAdversary(
                config, self.method, self.protocol, self.state_size, self.action_size
            )
        self.iteration = 0
        self.recent: list[list[float]] = [[] for _ in config.seeds]
        self.times = {"stepping": 0.0, "total": 0.0}

    # ----------------------------------------------------------------------------------- learning

    def iterate(self) -> dict[str, float]:
        """Collect with the (smoothed) policy, improve the value network, then the policy: Algorithm 1."""
        started, k, total = time.perf_counter(), self.iteration, self.config.iterations
        acting = self.actor("agent")
        player: Player = acting if self.adversary is None else self.adversary.attacking(acting, k)
        rollout = self.collect(player, self.scaler, k, self.action_size)
        batch = self.agents.prepare(rollout, self.rates, self.protocol)
        batch.noise = acting.noise()
        value_loss = self.agents.update_value(batch, self.rates, k, total)
        worst = self._worst_case(rollout, batch)
        means = Means(generators(self.config.seeds, k, "update"), self.smoothing)
        loss = policy_loss(self.method, self.config, self.protocol, self.rates, k, worst)
        summary = self.agents.update_policy(batch, self.rates, means, loss, k, total)
        if self.adversary is not None:
            summary |= self.adversary.improve(self)
        self.iteration += 1
        self.times["total"] += time.perf_counter() - started
        self.times["stepping"] = self.arena.stepping_time
        for kept, fresh in zip(self.recent, rollout.returns, strict=True):
            kept.extend(fresh)
            del kept[:-20]
        return self._row(summary | {"value_loss": value_loss}, loss.epsilon)

    def actor(self, purpose: str) -> PolicyPlayer:
        """The agents as they act in this iteration."""
        config = self.config
        shape = (config.horizon // config.lanes, config.lanes)
        return PolicyPlayer(
            self.agents.policy,
            shape,
            config.seeds,
            self.iteration,
            purpose,
            self.smoothing,
            config.common_noise,
        )

    def collect(self, player: Player, scaler: Scaler, number: int, actions: int) -> Rollout:
        """One iteration's steps; `number` decides the environments' seeds."""
        config = self.config
        steps, sizes = config.horizon // config.lanes, (self.state_size, actions)
        return collect(self.arena, player, scaler, config.seeds, number, steps, sizes)

    def _worst_case(self, rollout: Rollout, batch: Batch) -> WorstCase | None:
        """WocaR: improve the worst-case Q on this iteration's transitions."""
        if self.worst is None:
            return None
        transitions = replace(batch, **successors(rollout, self.protocol))
        self.worst.update(transitions, self.agents.policy, self.protocol, self.iteration)
        return self.worst.at(self.iteration)

    def _row(self, summary: dict[str, Tensor], epsilon: float) -> dict[str, float]:
        """Means over the pool (of the returns the median), then the same for each seed."""
        returns = [float(np.mean(r)) if r else float("nan") for r in self.recent]
        known = [r for r in returns if np.isfinite(r)]
        row = {"return": float(np.median(known)) if known else float("nan")}
        log_std = self.agents.policy.log_std.detach()
        summary |= {"entropy": losses.entropy(log_std), "std": log_std.exp().mean((-1, -2))}
        row |= {name: float(value.mean()) for name, value in summary.items()}
        row["epsilon"] = epsilon
        row["learning_rate"] = float(
            (self.rates.policy_lr * self.rates.factor((self.iteration - 1) / self.config.iterations)).max()
        )
        if self.config.pool > 1:
            for i, seed in enumerate(self.config.seeds):
                row[f"return/seed-{seed}"] = returns[i]
                row |= {f"{name}/seed-{seed}": float(value[i]) for name, value in summary.items()}
        return row

    # -------------------------------------------------------------------------------- state, agents

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that the next iterations depend on."""
        tensors: dict[str, Any] = dict(self.agents.state())
        for name, moments in (("observations", self.scaler.observations), ("rewards", self.scaler.rewards)):
            tensors |= {f"{name}/{k}": v for k, v in moments.state().items()}
        counts = self.agents.step_counts()
        if self.worst is not None:
            tensors |= self.worst.state()
            counts["worst"] = self.worst.adam.steps
        if self.adversary is not None:
            tensors |= self.adversary.net.state()
            counts |= self.adversary.net.step_counts()
        meta = {
            "step": self.iteration * self.config.horizon,
            "iteration": self.iteration,
            "adam": counts,
            "recent": self.recent,
        }
        return tensors, meta

    def load(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        self.agents.load(tensors, meta["adam"])
        for name, moments in (("observations", self.scaler.observations), ("rewards", self.scaler.rewards)):
            moments.load({k: tensors[f"{name}/{k}"].numpy() for k in ("count", "mean", "m2")})
        if self.worst is not None:
            self.worst.load(tensors, meta["adam"]["worst"])
        if self.adversary is not None:
            self.adversary.net.load(tensors, meta["adam"])
        self.iteration = int(meta["iteration"])
        self.recent = [list(map(float, r)) for r in meta["recent"]]

    def agent(self, member: int) -> Agent:
        """The member as it would be deployed now."""
        config = self.config
        smoothing = (
            Smoothing("median", config.sigma, config.test_samples) if self.method.smoothed else Smoothing()
        )
        notes = {
            "protocol": config.protocol,
            "hyperparameters": {
                k: v for k, v in asdict(config).items() if k not in ("seeds", "env_settings")
            },
            "software": versions(),
        }
        info = AgentInfo(
            method=self.method.name,
            env_id=config.env_id,
            action_kind="continuous",
            actions=self.action_size,
            observation_shape=tuple(self.spec.obs_shape),
            env_settings=dict(self.spec.settings),
            action_low=self.spec.action_low,
            action_high=self.spec.action_high,
            seed=config.seeds[member],
            steps=self.iteration * config.horizon,
            trained_with=smoothing,
            notes=notes,
        )
        normaliser = self.scaler.observations.member(member).frozen(config.observation_clip)
        return Agent(self.agents.policy.member(member), normaliser, info)

    def start_from(self, agent: Agent) -> None:
        """Begin from a trained agent instead of from nothing: its policy and its normaliser."""
        from smoothrl.networks import GaussianPolicy, unclipped

        network = unclipped(agent.network)
        own = self.agents.policy.member(0).mean
        wanted = own.sizes
        fits = (
            isinstance(network, GaussianPolicy)
            and list(network.mean.sizes) == list(wanted)
            and network.mean.activation == own.activation
        )
        if not fits or agent.normaliser.kind == "scale":
            raise UserError(
                f"--init: {agent.info.method} on {agent.info.env_id} is no Gaussian policy of sizes {wanted} "
                f"with {own.activation} on vector observations; choose another agent"
            )
        assert isinstance(network, GaussianPolicy)
        for i in range(self.config.pool):
            self.agents.policy.set_member(i, network)
            self.scaler.observations.set_member(i, _moments(agent))


def _moments(agent: Agent) -> Any:
    """The agent's statistics as if they came from all its steps; an agent without any starts from 0 and 1."""
    from smoothrl.agents import Moments

    count, normaliser = max(agent.info.steps, 100_000), agent.normaliser
    if normaliser.kind == "none":
        shape = agent.info.observation_shape
        return Moments(float(count), np.zeros(shape), np.full(shape, count - 1.0))
    return Moments(float(count), normaliser.mean.copy(), normaliser.std**2 * (count - 1.0))


def successors(rollout: Rollout, switches: Protocol) -> dict[str, Tensor]:
    """WocaR's transitions: rewards, next states, and where anything follows them.

    An episode cut off by its time limit goes on from its final state, unless that counts as its end.
    """
    following = np.concatenate([rollout.states[1:], rollout.tail[None]])
    goes_on = ~rollout.ends
    if not switches.time_limit_is_terminal:
        for t, member, lane, state in rollout.finals:
            following[t, member, lane], goes_on[t, member, lane] = state, True
    return {
        "rewards": member_first(rollout.rewards.astype(np.float32)),
        "next_states": member_first(following),
        "goes_on": member_first(goes_on.astype(np.float32)),
    }


def agent_rates(config: PPOConfig) -> Rates:
    def each(value: float) -> Tensor:
        return torch.full((config.pool,), value)

    return Rates(
        policy_lr=each(config.policy_lr),
        value_lr=each(config.value_lr),
        clip=each(config.clip),
        entropy=each(config.entropy),
        anneal=each(float(config.anneal)),
        value_clip=config.value_clip,
        epochs=config.epochs,
        value_epochs=config.value_epochs,
        minibatches=config.minibatches,
        discount=config.discount,
        trace=config.trace,
    )


def environment(config: PPOConfig, threads: int | None = None) -> tuple[EnvSpec, Any]:
    """The environment's description and its lanes' factory; refused where PPO cannot learn in it."""
    plan = resolve(Request(config.env_id, None, True, threads, "auto", None, dict(config.env_settings)))
    if plan.spec.is_image:
        raise UserError(f"{config.env_id} shows images; PPO here learns from vectors (images: a dqn method)")
    if len(plan.spec.obs_shape) != 1:
        raise UserError(
            f"{config.env_id} shows observations of shape {plan.spec.obs_shape}; PPO here takes vectors, "
            "flatten them in the environment"
        )
    if plan.spec.action != "continuous":
        raise UserError(
            f"{config.env_id} has discrete actions; PPO here is for continuous ones, use a dqn method"
        )
    return plan.spec, plan.build


# ------------------------------------------------------------------------------------------ the run


def train(
    config: PPOConfig,
    out: str | Path,
    *,
    resume: bool = False,
    init: Agent | None = None,
    on_iteration: OnIteration | None = None,
    threads: int | None = None,
    save_every: float = 30.0,
    tensorboard: bool = True,
) -> list[Path]:
    """Train the pool into a run directory; the agents' files, one a seed."""
    learner = Learner(config, threads)
    settings = asdict(config) | {"init": None if init is None else init.digest}
    with RunDirectory.open(out, settings, resume, tensorboard=tensorboard) as run:
        saved = run.load_state() if resume else None
        if saved is not None:
            learner.load(*saved)
        elif init is not None:
            learner.start_from(init)
        last = time.monotonic()
        try:
            while learner.iteration < config.iterations:
                good = learner.state()
                try:
                    row = learner.iterate()
                except (UserError, KeyboardInterrupt):
                    run.save_state(*good)
                    raise
                step = learner.iteration * config.horizon
                run.log(step, row)
                if on_iteration is not None:
                    on_iteration(step, row)
                if time.monotonic() - last > save_every:
                    run.save_state(*learner.state())
                    last = time.monotonic()
            run.save_state(*learner.state())
        finally:
            learner.arena.close()
        single = config.pool == 1
        return [
            run.save_agent(learner.agent(i), None if single else seed) for i, seed in enumerate(config.seeds)
        ]
