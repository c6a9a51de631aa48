"""WocaR's worst-case action value: what the policy earns when an attacker picks its actions within reach."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from smoothrl import bounds
from smoothrl.learners.actor_critic import Batch, generators
from smoothrl.learners.pools import PoolAdam, PoolNet, PoolPolicy
from smoothrl.learners.presets import PPOConfig
from smoothrl.learners.regularisers import WorstCase
from smoothrl.protocols import Protocol

FIXED_EPSILON = 0.01
SEARCH_STEPS = 50
SOFT_UPDATE = 1e-3


def action_box(policy: PoolNet, states: Tensor, epsilon: float, wrong: bool) -> bounds.Interval:
    """Bounds of the mean over the ball; `wrong` reads the layers in the order [tanh, dense, dense, dense]."""
    box = bounds.box(states, epsilon)
    chain = policy.detached().chain()
    if wrong:
        chain = [chain[1], *chain[::2]]
    return bounds.chain_ibp(chain, *box)


def worst_action(q: PoolNet, policy: PoolNet, states: Tensor, epsilon: float, wrong: bool) -> Tensor:
    """The action in the box that minimises Q, by signed steps of a 50th of the box from the policy's mean."""
    low, high = action_box(policy, states, epsilon, wrong)
    step, size = (high - low) / SEARCH_STEPS, states.shape[-1]
    action = policy.detached()(states)
    frozen = q.detached()
    for _ in range(SEARCH_STEPS):
        gradient = frozen.input_gradient(torch.cat([states, action], dim=-1), torch.ones_like)[..., size:]
        action = torch.minimum(torch.maximum(action - step * gradient.sign(), low), high)
    return action


class WorstCaseLearner:
    """Q_worst and its slow copy, trained before the policy in each iteration."""

    def __init__(self, config: PPOConfig, states: int, actions: int) -> None:
        self.config = config
        sizes = (states + actions, *config.hidden, 1)
        self.q = PoolNet.orthogonal(sizes, 1.0, generators(config.seeds, 0, "worst/init"))
        self.slow = PoolNet(self.q.theta.detach().clone(), sizes)
        self.adam = PoolAdam([self.q.theta])

    def update(self, batch: Batch, policy: PoolPolicy, switches: Protocol, iteration: int) -> Tensor:
        """y = r + gamma Q_slow(s', a_worst), a_worst = argmin of Q over the actions reachable at s'."""
        config, sources = self.config, generators(self.config.seeds, iteration, "worst/update")
        epsilon = FIXED_EPSILON if switches.wocar_fixed_epsilon else config.epsilon
        factor = 1.0 - iteration / config.iterations if config.anneal else 1.0
        lr = torch.full((config.pool,), config.worst_lr * factor)
        found: list[Tensor] = []
        names = ("states", "actions", "rewards", "next_states", "goes_on")
        for _ in range(config.epochs):
            for part in batch.minibatches(sources, config.minibatches, names):
                assert part.rewards is not None
                assert part.next_states is not None
                assert part.goes_on is not None
                with torch.no_grad():
                    worst = worst_action(
                        self.q, policy.mean, part.next_states, epsilon, switches.wocar_wrong_bounds
                    )
                    after = self.slow(torch.cat([part.next_states, worst], dim=-1))[..., 0]
                    target = part.rewards + config.discount * part.goes_on * after
                q = self.q(torch.cat([part.states, part.actions], dim=-1))[..., 0]
                loss = (q - target).square().mean(1)
                self.adam.step(torch.autograd.grad(loss.sum(), [self.q.theta]), lr)
                with torch.no_grad():
                    self.slow.theta.lerp_(self.q.theta, SOFT_UPDATE)
                found.append(loss.detach())
        return torch.stack(found[-config.minibatches :]).mean(0)

    def at(self, iteration: int) -> WorstCase:
        """For the policy's loss; the weight is (w n / N)^p, at most 1."""
        config = self.config
        weight = (config.worst_weight * iteration / config.iterations) ** config.worst_power
        return WorstCase(self.slow, min(weight, 1.0))

    def state(self) -> dict[str, Tensor]:
        found = {"worst/q": self.q.theta.detach().clone(), "worst/slow": self.slow.theta.clone()}
        return found | {f"worst/adam.{k}": v.clone() for k, v in self.adam.state().items()}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], steps: int) -> None:
        self.q.theta.copy_(tensors["worst/q"])
        self.slow.theta.copy_(tensors["worst/slow"])
        prefix = "worst/adam."
        self.adam.load({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}, steps)


__all__: Sequence[str] = ("WorstCaseLearner", "action_box", "worst_action")
