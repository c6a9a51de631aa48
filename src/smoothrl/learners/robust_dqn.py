"""SA-DQN, RADIAL-DQN and WocaR-DQN: each is DQN with another loss over certified bounds of its Q-values."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from smoothrl import bounds, envs, networks
from smoothrl.agents import Agent
from smoothrl.errors import UserError
from smoothrl.learners import q_losses as losses
from smoothrl.learners.dqn import (
    Device,
    DQNLearner,
    View,
    copied,
    load_optimizer,
    normaliser,
    on,
    optimizer_state,
    part,
)
from smoothrl.learners.q_config import DQNConfig, RobustDQNConfig
from smoothrl.learners.replay import Batch
from smoothrl.protocols import protocol


class RobustDQNLearner(DQNLearner):
    """What the three share: the radius at this point of the run."""

    config: RobustDQNConfig

    def __init__(
        self, config: DQNConfig, spec: envs.EnvSpec, init: Agent | None = None, device: Device = "cpu"
    ) -> None:
        assert isinstance(config, RobustDQNConfig)
        super().__init__(config, spec, init, device)
        self.valid = normaliser(spec).bounds

    def epsilon(self, progress: float) -> float:
        """SA-DQN's smoothed schedule."""
        c = self.config
        return losses.smoothed_ramp(progress, c.ramp_start, c.ramp_end, c.epsilon)

    def hinge(self, x: Tensor, q: Tensor, epsilon: float) -> Tensor:
        """SA-DQN's regulariser, its bounds annealed from CROWN-IBP to IBP: LB = b CROWN + (1 - b) IBP."""
        greedy = q.detach().argmax(dim=1)
        lower, upper = bounds.box(x, epsilon, self.valid)
        share = 1.0 - epsilon / self.config.epsilon
        margins = bounds.margins(self.q, lower, upper, greedy, "ibp")[0]
        if share > 1e-6:
            margins = torch.lerp(margins, bounds.margins(self.q, lower, upper, greedy, "crown-ibp")[0], share)
        return losses.sa_hinge(margins, greedy)


class SADQNLearner(RobustDQNLearner):
    """SA-DQN."""

    def loss(self, view: View) -> tuple[Tensor, dict[str, float]]:
        """L = mean_i w_i (Huber_i + kappa hinge_i)."""
        epsilon = self.epsilon(view.progress)
        if epsilon == 0.0:
            return super().loss(view)
        hinge = self.hinge(view.x.float(), view.q, epsilon)
        total = losses.weighted_mean(view.td + self.config.kappa * hinge, view.weights)
        return total, {"train_epsilon": epsilon, "hinge": hinge.detach().mean().item()}


class RadialDQNLearner(RobustDQNLearner):
    """RADIAL-DQN, its second approach."""

    def loss(self, view: View) -> tuple[Tensor, dict[str, float]]:
        """L = kappa L_standard + (1 - kappa) L_overlap, bounds by IBP of the advantages alone."""
        epsilon = self.epsilon(view.progress)
        difference = losses.chosen(view.q, view.actions) - view.y
        standard = losses.weighted_mean(losses.min_square_abs(difference), view.weights)
        if epsilon == 0.0:
            return standard, {}
        x = view.x.float()
        chain, count = advantages(self.q), view.q.shape[1]
        centre = (torch.eye(count, device=x.device) - 1.0 / count).expand(x.shape[0], -1, -1)
        lower, upper = bounds.ibp(chain, *bounds.box(x, epsilon), centre)
        overlap = losses.radial_overlap(view.q, view.actions, lower, upper).mean()
        total = self.config.kappa * standard + (1.0 - self.config.kappa) * overlap
        return total, {"train_epsilon": epsilon, "overlap": overlap.item()}


class WocarDQNLearner(RobustDQNLearner):
    """WocaR-DQN: a worst-case network W beside Q, and Q chosen with W in mind."""

    def __init__(
        self, config: DQNConfig, spec: envs.EnvSpec, init: Agent | None = None, device: Device = "cpu"
    ) -> None:
        super().__init__(config, spec, init, device)
        self.worst = copied(self.q).train().requires_grad_(True).to(device)
        self.worst_optimizer = torch.optim.Adam(
            self.worst.parameters(), lr=config.lr, eps=config.adam_eps, fused=True
        )
        self.tiny = protocol(config.protocol).wocar_tiny_ball

    def update_worst(self, batch: Batch, progress: float) -> float:
        """W(s, a) to R + gamma^n min over the actions that an attack can bring about at s'."""
        epsilon = 1e-7 if self.tiny else self.epsilon(progress)
        following = self.inputs(batch.following).float()
        returns, discounts = on(self.device, batch.returns), on(self.device, batch.discounts)
        with torch.no_grad():
            lower, upper = bounds.ibp(self.q, *bounds.box(following, epsilon, self.valid))
            possible = losses.reachable_actions(lower, upper)
            y = losses.worst_target(returns, discounts, self.worst(following), possible)
        values = self.worst(self.inputs(batch.observations).float())
        loss = losses.huber_td(values, on(self.device, batch.actions), y).mean()
        self.worst_optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.config.grad_clip > 0.0:
            nn.utils.clip_grad_norm_(self.worst.parameters(), self.config.grad_clip)
        self.worst_optimizer.step()
        return loss.item()

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The target action maximises (1 - ratio) Q_target + ratio W; Q_target values it."""
        following = self.inputs(batch.following).float()
        target_q, ratio = self.target_values(following), self.config.worst_ratio
        choice = (1.0 - ratio) * target_q + ratio * self.worst(following)
        returns, discounts = on(self.device, batch.returns), on(self.device, batch.discounts)
        return losses.td_target(returns, discounts, target_q, choice)

    def prepare(self, batch: Batch, progress: float) -> dict[str, float]:
        if self.updates % self.config.worst_every:
            return {}
        return {"worst_loss": self.update_worst(batch, progress)}

    def loss(self, view: View) -> tuple[Tensor, dict[str, float]]:
        """L = k TD + (1 - k) L_bounds + kappa hinge, k falling linearly from 1 to 1 - worst_weight."""
        epsilon = self.epsilon(view.progress)
        if epsilon == 0.0:
            return super().loss(view)
        x = view.x.float()
        k = 1.0 - self.config.worst_weight * view.progress
        lower, upper = bounds.ibp(self.q, *bounds.box(x, epsilon, self.valid))
        far = losses.radial_bounds_to_target(view.q, view.actions, view.y, lower, upper)
        hinge = self.hinge(x, view.q, epsilon)
        each = k * view.td + (1.0 - k) * far + self.config.kappa * hinge
        notes = {"train_epsilon": epsilon, "hinge": hinge.detach().mean().item()}
        return losses.weighted_mean(each, view.weights), notes

    def state(self) -> dict[str, Tensor]:
        found = super().state() | {f"worst.{k}": v for k, v in self.worst.state_dict().items()}
        return found | {f"worst_adam.{k}": v for k, v in optimizer_state(self.worst_optimizer).items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        self.worst.load_state_dict(part(state, "worst"))
        load_optimizer(self.worst_optimizer, part(state, "worst_adam"))


def advantages(q: nn.Module) -> nn.Sequential:
    """The chain from the observation to the advantages, sharing the network's weights."""
    if isinstance(q, networks.NatureQ):
        return nn.Sequential(*q.cnn, *q.advantage)
    if isinstance(q, networks.SmallQ):
        return nn.Sequential(*q.cnn, q.advantage)
    if isinstance(q, networks.DuelingMLP):
        body = [m for layer in q.body.layers for m in (layer, nn.ReLU())]
        return nn.Sequential(*body, q.advantage)
    raise UserError(f"RADIAL-DQN knows no advantages of a {type(q).__name__}")


LEARNERS: dict[str, type[RobustDQNLearner]] = {
    "sa": SADQNLearner,
    "radial": RadialDQNLearner,
    "wocar": WocarDQNLearner,
}
