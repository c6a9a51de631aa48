"""PPO's update of a pool: policies with their critics, trained on one iteration's rollout.

The agents of `ppo.py` and the adversaries of `adversaries.py` share it; they differ in what they play and in
the loss they hand in.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smoothrl.errors import UserError
from smoothrl.learners import losses
from smoothrl.learners.collect import Rollout
from smoothrl.learners.pools import PoolAdam, PoolNet, PoolPolicy, Sizes
from smoothrl.protocols import Protocol

EXPLODED = 20.0
"""An agent whose ratios differ from 1 by more than exp of this on average is beyond repair."""


def generators(seeds: Sequence[int], iteration: int, purpose: str) -> list[torch.Generator]:
    """A fresh generator a member: what is drawn depends on seed, iteration and purpose alone."""
    tag = zlib.crc32(purpose.encode())
    states = [np.random.SeedSequence((s, tag, iteration)).generate_state(1, np.uint64)[0] for s in seeds]
    return [torch.Generator().manual_seed(int(state) >> 1) for state in states]


def draw(sources: Sequence[torch.Generator], *shape: int) -> Tensor:
    """Standard normal numbers (P, *shape), each member from its own generator."""
    out = torch.empty(len(sources), *shape)
    for row, source in zip(out, sources, strict=True):
        row.normal_(generator=source)
    return out


@dataclass
class Batch:
    """Rows of experience, (P, N, ...); a minibatch is the same thing with fewer rows."""

    states: Tensor
    actions: Tensor
    log_probs: Tensor
    """Of the actions, when they were drawn."""
    advantages: Tensor
    values: Tensor
    """Before the update."""
    targets: Tensor
    """Values plus advantages."""
    keep: Tensor | None = None
    """Rows of the value loss (None: all)."""
    noise: Tensor | None = None
    """The collection's own smoothing noise (P, N, m, n), where it is to be reused."""
    rewards: Tensor | None = None
    next_states: Tensor | None = None
    goes_on: Tensor | None = None
    """Zero where nothing follows (WocaR)."""

    def minibatches(
        self, sources: Sequence[torch.Generator], count: int, only: Sequence[str]
    ) -> Iterator[Batch]:
        """One shuffled pass in `count` equal parts; only the named fields are gathered."""
        pool, rows = self.values.shape
        order = torch.stack([torch.randperm(rows, generator=g) + i * rows for i, g in enumerate(sources)])
        index = order.view(pool, count, -1).transpose(0, 1).reshape(-1)
        parts: dict[str, Tensor] = {}
        for name in only:
            whole = getattr(self, name)
            if whole is not None:
                flat = whole.flatten(0, 1).index_select(0, index)
                parts[name] = flat.view(count, pool, rows // count, *whole.shape[2:])
        for k in range(count):
            chosen: dict[str, Any] = {f.name: None for f in fields(self)}
            yield Batch(**(chosen | {name: part[k] for name, part in parts.items()}))


@dataclass(frozen=True)
class Rates:
    """Hyper-parameters of the update, a number a member where it is a tensor (P,)."""

    policy_lr: Tensor
    value_lr: Tensor
    clip: Tensor
    entropy: Tensor
    anneal: Tensor
    """1 where the rates fall linearly to zero, 0 where they stay."""
    value_clip: float | None = None
    epochs: int = 10
    value_epochs: int = 10
    minibatches: int = 32
    discount: float = 0.99
    trace: float = 0.95

    def factor(self, progress: float) -> Tensor:
        return 1.0 - self.anneal * progress


PolicyLoss = Callable[[PoolPolicy, Tensor, Batch, int], Tensor]
"""(policy, means, minibatch, number of the minibatch in this iteration) -> (P,)."""
Means = Callable[[PoolPolicy, Batch], Tensor]
"""The means that the ratio is made of: smoothed or not."""


class ActorCritic:
    """Policies, critics and their optimisers."""

    def __init__(self, seeds: Sequence[int], sizes: Sizes, purpose: str) -> None:
        """`sizes` of the policy; the critic has the same hidden layers."""
        first = generators(seeds, 0, f"{purpose}/init")
        self.seeds, self.purpose = tuple(seeds), purpose
        log_std = torch.zeros(len(self.seeds), 1, sizes[-1], requires_grad=True)
        self.policy = PoolPolicy(PoolNet.orthogonal(sizes, 0.01, first), log_std)
        self.value = PoolNet.orthogonal((*sizes[:-1], 1), 1.0, first)
        self.policy_adam = PoolAdam(self.policy.parameters)
        self.value_adam = PoolAdam([self.value.theta])

    @torch.no_grad()
    def prepare(self, rollout: Rollout, rates: Rates, protocol: Protocol) -> Batch:
        """Advantages and targets by GAE, old log-probabilities; (T, P, L, ...) becomes (P, T * L, ...)."""
        states = member_first(rollout.states)
        steps, pool, lanes = rollout.rewards.shape
        values = self.value(states)[..., 0].numpy().astype(np.float64)
        by_time = values.reshape(pool, steps, lanes).swapaxes(0, 1)
        following = self._next_values(rollout, by_time, protocol)
        gae = losses.advantages(
            rollout.rewards, by_time, following, rollout.ends, rates.discount, rates.trace
        )
        advantages = member_first(gae.astype(np.float32))
        old = torch.from_numpy(values.astype(np.float32))
        keep = None
        if protocol.value_loss_skips_ends:
            keep = member_first((~rollout.ends).astype(np.float32))
        actions = member_first(rollout.actions)
        log_probs = losses.log_prob(member_first(rollout.means), self.policy.log_std, actions)
        return Batch(states, actions, log_probs, advantages, old, old + advantages, keep)

    def _next_values(self, rollout: Rollout, values: Any, protocol: Protocol) -> Any:
        """V(s_{t+1}) of every row: zero after an end, unless only the time limit ended it (sound)."""
        following = np.empty_like(values)
        following[:-1] = values[1:]
        if protocol.bootstrap_tail_with_own_value:
            following[-1] = values[-1]
        else:
            following[-1] = self.value(torch.from_numpy(rollout.tail))[..., 0].numpy()
        following[rollout.ends] = 0.0
        if not protocol.time_limit_is_terminal:
            for t, member, lane, state in rollout.finals:
                found = self._value_of(member, torch.from_numpy(state))
                following[t, member, lane] = found
        return following

    def _value_of(self, member: int, state: Tensor) -> float:
        single = PoolNet(self.value.theta[member : member + 1], self.value.sizes)
        return float(single(state.view(1, 1, -1).expand(1, 8, -1).contiguous())[0, 0, 0])

    def update_value(self, batch: Batch, rates: Rates, iteration: int, total: int) -> Tensor:
        """`value_epochs` passes over the batch; the last pass's loss (P,)."""
        sources = generators(self.seeds, iteration, f"{self.purpose}/value")
        lr = rates.value_lr * rates.factor(iteration / total)
        last: list[Tensor] = []
        for epoch in range(rates.value_epochs):
            parts = batch.minibatches(sources, rates.minibatches, ("states", "values", "targets", "keep"))
            for part in parts:
                values = self.value(part.states)[..., 0]
                loss = losses.value_loss(values, part.values, part.targets, part.keep, rates.value_clip)
                self.value_adam.step(torch.autograd.grad(loss.sum(), [self.value.theta]), lr)
                if epoch == rates.value_epochs - 1:
                    last.append(loss.detach())
        self._check(self.value.theta, "value network", iteration)
        return torch.stack(last).mean(0)

    def update_policy(
        self, batch: Batch, rates: Rates, means: Means, loss: PolicyLoss, iteration: int, total: int
    ) -> dict[str, Tensor]:
        """`epochs` passes over the batch; statistics (P,) of the ratio."""
        sources = generators(self.seeds, iteration, f"{self.purpose}/policy")
        lr = rates.policy_lr * rates.factor(iteration / total)
        wanted = ("states", "actions", "log_probs", "advantages", "noise", "targets")
        first: Tensor | None = None
        last: list[Tensor] = []
        number = 0
        for epoch in range(rates.epochs):
            for part in batch.minibatches(sources, rates.minibatches, wanted):
                mean = means(self.policy, part)
                objective = loss(self.policy, mean, part, number)
                self.policy_adam.step(torch.autograd.grad(objective.sum(), self.policy.parameters), lr)
                number += 1
                if first is None or epoch == rates.epochs - 1:
                    statistics = ratio_statistics(mean, self.policy.log_std, part, rates.clip, objective)
                    first = statistics if first is None else first
                    last.append(statistics)
            self._check(self.policy.mean.theta, f"policy (epoch {epoch + 1})", iteration)
        assert first is not None
        found = torch.stack(last[-rates.minibatches :]).mean(0)
        self._check_ratio(found[2], iteration)
        names = ("kl", "clip_fraction", "ratio_spread", "policy_loss")
        summary = {name: found[i] for i, name in enumerate(names)}
        return summary | {"noise_ratio_spread": first[2], "noise_clip_fraction": first[1]}

    def _check(self, theta: Tensor, what: str, iteration: int) -> None:
        bad = ~torch.isfinite(theta.detach()).all(dim=1)
        if bad.any():
            seed = self.seeds[int(bad.int().argmax())]
            raise UserError(
                f"{self.purpose}: the {what} of seed {seed} became NaN or infinite in iteration "
                f"{iteration + 1}; lower its learning rate or epsilon (the last good state was kept)"
            )

    def _check_ratio(self, spread: Tensor, iteration: int) -> None:
        if self.purpose == "agent" and not bool((spread < EXPLODED).all()):
            worst = int(spread.nan_to_num(float("inf")).argmax())
            raise UserError(
                f"agent: the ratios of seed {self.seeds[worst]} exploded in iteration {iteration + 1} "
                f"(mean |log ratio| {float(spread[worst]):.3g}); lower the policy's learning rate "
                "(the last good state was kept)"
            )

    def state(self) -> dict[str, Tensor]:
        found = {
            "policy": self.policy.mean.theta,
            "log_std": self.policy.log_std,
            "value": self.value.theta,
        }
        for name, adam in (("policy_adam", self.policy_adam), ("value_adam", self.value_adam)):
            found |= {f"{name}.{k}": v for k, v in adam.state().items()}
        return {f"{self.purpose}/{k}": v.detach().clone() for k, v in found.items()}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], steps: dict[str, int]) -> None:
        mine = {k.split("/", 1)[1]: v for k, v in tensors.items() if k.startswith(f"{self.purpose}/")}
        self.policy.mean.theta.copy_(mine["policy"])
        self.policy.log_std.copy_(mine["log_std"])
        self.value.theta.copy_(mine["value"])
        for name, adam in (("policy_adam", self.policy_adam), ("value_adam", self.value_adam)):
            prefix = f"{name}."
            inner = {k.removeprefix(prefix): v for k, v in mine.items() if k.startswith(prefix)}
            adam.load(inner, steps[f"{self.purpose}/{name}"])

    def step_counts(self) -> dict[str, int]:
        return {
            f"{self.purpose}/policy_adam": self.policy_adam.steps,
            f"{self.purpose}/value_adam": self.value_adam.steps,
        }


def member_first(x: Any) -> Tensor:
    """(T, P, L, ...) -> (P, T * L, ...)."""
    moved = np.ascontiguousarray(np.moveaxis(x, 1, 0))
    return torch.from_numpy(moved.reshape(moved.shape[0], -1, *moved.shape[3:]))


@torch.no_grad()
def ratio_statistics(mean: Tensor, log_std: Tensor, part: Batch, clip: Tensor, objective: Tensor) -> Tensor:
    """KL estimate (r - 1 - log r), share of ratios outside the clip range, mean |log r|, loss: (4, P)."""
    log_ratio = losses.log_prob(mean, log_std, part.actions) - part.log_probs
    ratio = log_ratio.exp()
    outside = ((ratio - 1.0).abs() > clip[:, None]).float().mean(1)
    kl = (ratio - 1.0 - log_ratio).mean(1)
    return torch.stack([kl, outside, log_ratio.abs().mean(1), objective.detach()])
