"""What the gradient attacks maximise: each objective is one function from the agent's sampled outputs at the
perturbed observation, (rows, draws, outputs), to one number a row.

`merge` stands for the smoothed decision in a differentiable form: the draw itself without smoothing, the mean
of the draws for a policy (its median differs little and has a noisier gradient), and soft votes for a
Q-agent that votes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from smoothrl.smoothing import Kind


@dataclass(frozen=True)
class Aim:
    """What the outputs are compared with; one entry a row."""

    clean: Tensor
    """The clean observations."""
    reference: Tensor | None = None
    """Policies: the clean decision under the same noise, (rows, outputs)."""
    action: Tensor | None = None
    """Q-agents: the action of the deployed agent on the clean observation."""
    values: Tensor | None = None
    """Q-agents: mean clean Q-values (rows, actions)."""
    target: Tensor | None = None
    """Q-agents: the action to provoke; -1 for any other than the clean one."""
    direction: Tensor | None = None
    """PA-AD on policies: the change of the action to provoke."""


BEYOND = 0.01
"""Weight of a change of the action that the environment clips away."""
Objective: TypeAlias = Callable[[Tensor, Aim], Tensor]
Critic: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Q(clean observations, actions) -> (rows,)."""


def maximal_action_difference(outputs: Tensor, aim: Aim) -> Tensor:
    """MAD: the squared change of the (smoothed) action."""
    assert aim.reference is not None
    return (outputs.mean(1) - aim.reference).square().sum(-1)


def executed_difference(low: Tensor, high: Tensor) -> Objective:
    """MAD on the action that is executed: clipped to the environment's box; what lies beyond hardly counts.

    The little that does keeps a gradient where both actions are clipped.
    """

    def objective(outputs: Tensor, aim: Aim) -> Tensor:
        assert aim.reference is not None
        action, reference = outputs.mean(1), aim.reference
        executed = torch.clamp(action, low, high) - torch.clamp(reference, low, high)
        return executed.square().sum(-1) + BEYOND * (action - reference).square().sum(-1)

    return objective


def lowest_value(critic: Critic) -> Objective:
    """Min-RS: the action that the critic values least, Q evaluated at the clean observation."""

    def objective(outputs: Tensor, aim: Aim) -> Tensor:
        return -critic(aim.clean, outputs.mean(1))

    return objective


def directed(norm_sign: float = 1.0) -> Objective:
    """PA-AD on policies: move the action along the director's direction, cosine plus length."""

    def objective(outputs: Tensor, aim: Aim) -> Tensor:
        assert aim.direction is not None
        assert aim.reference is not None
        change = outputs.mean(1) - aim.reference
        cosine = torch.nn.functional.cosine_similarity(change, aim.direction, dim=-1)
        return norm_sign * (cosine + torch.sqrt(change.square().sum(-1) + 1e-12))

    return objective


def cross_entropy(outputs: Tensor, aim: Aim) -> Tensor:
    """PGD: cross entropy of the Q-values as logits, away from the clean action or towards the target."""
    logs = torch.log_softmax(outputs, dim=-1).mean(1)
    assert aim.action is not None
    if aim.target is None:
        return -_pick(logs, aim.action)
    towards = _pick(logs, aim.target.clamp_min(0))
    return torch.where(aim.target >= 0, towards, -_pick(logs, aim.action))


def vote_margin(kind: Kind) -> Objective:
    """How far the smoothed decision is beyond the clean action, or towards the target.

    The decision's scores are the votes (softened), the mean Q-values, or the Q-values themselves.
    """

    def objective(outputs: Tensor, aim: Aim) -> Tensor:
        assert aim.action is not None
        scores = soft_votes(outputs) if kind == "vote" else outputs.mean(1)
        held = _pick(scores, aim.action)
        away = _others(scores, aim.action) - held
        if aim.target is None:
            return away
        wanted = aim.target.clamp_min(0)
        return torch.where(aim.target >= 0, _pick(scores, wanted) - _others(scores, wanted), away)

    return objective


def soft_votes(outputs: Tensor) -> Tensor:
    """Log of the mean vote with each draw's argmax softened; (rows, outputs).

    The temperature is the row's typical gap between the best two actions, so that a draw far from the
    decision boundary still pulls a little and one near it pulls most.
    """
    top = outputs.detach().topk(min(2, outputs.shape[-1]), dim=-1).values
    gap = (top[..., 0] - top[..., -1]).mean(1).clamp_min(1e-6)
    soft = torch.log_softmax(outputs / gap.view(-1, 1, 1), dim=-1)
    return torch.logsumexp(soft, dim=1) - float(torch.tensor(outputs.shape[1]).log())


def _pick(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _others(values: Tensor, index: Tensor) -> Tensor:
    """The largest value among the other actions."""
    return values.scatter(-1, index.unsqueeze(-1), -torch.inf).amax(-1)
