"""The policy loss of every method. Each defence reads as the diff of its loss to PPO's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from smoothrl.learners import losses
from smoothrl.learners.actor_critic import Batch, Rates
from smoothrl.learners.methods import Method
from smoothrl.learners.pools import PoolPolicy
from smoothrl.learners.presets import PPOConfig
from smoothrl.protocols import Protocol


def ppo(policy: PoolPolicy, mean: Tensor, batch: Batch, rates: Rates) -> Tensor:
    """L = -E[min(r A, clip(r, 1 - c, 1 + c) A)] - entropy bonus, Eq. (14).

    `mean` is the smoothed policy's for S-PPO: r is then the ratio of smoothed policies.
    """
    ratio = torch.exp(losses.log_prob(mean, policy.log_std, batch.actions) - batch.log_probs)
    gain = losses.surrogate(ratio, losses.normalise(batch.advantages), rates.clip[:, None]).mean(1)
    return -gain - rates.entropy * losses.entropy(policy.log_std)


@dataclass
class Plain:
    """The loss of PPO and S-PPO."""

    rates: Rates
    epsilon: float = 0.0

    def __call__(self, policy: PoolPolicy, mean: Tensor, batch: Batch, number: int) -> Tensor:
        return ppo(policy, mean, batch, self.rates)


def policy_loss(method: Method, config: PPOConfig, switches: Protocol, rates: Rates, iteration: int) -> Plain:
    return Plain(rates)
