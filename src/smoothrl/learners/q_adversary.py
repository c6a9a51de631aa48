"""S-PGD as S-DQN trains against it: attack the observation, through the noise, away from the clean action."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from smoothrl.learners.q_losses import s_pgd_objective

Draw = Callable[[Tensor], Tensor]
"""Noise of sigma, shaped like its argument."""


def s_pgd(
    q: Callable[[Tensor], Tensor],
    clean: Tensor,
    draw: Draw,
    epsilon: float,
    steps: int,
    valid: tuple[float, float] | None,
    leaking: Sequence[Tensor] = (),
) -> tuple[Tensor, list[Tensor]]:
    """`steps` sign steps of epsilon / steps up the cross-entropy, one fresh noise a step, zero start.

    Only the observation's gradient is computed. Also returns the last step's gradients of `leaking`, the
    parameters into whose update the released code lets them slip.
    """
    with torch.no_grad():
        actions = q(clean + draw(clean)).argmax(dim=1)
    x = clean
    slipped: list[Tensor] = []
    for i in range(steps):
        x = x.detach().requires_grad_(True)
        objective = s_pgd_objective(q(x + draw(x)), actions)
        wanted = [x, *leaking] if i == steps - 1 else [x]
        gradient, *slipped = torch.autograd.grad(objective, wanted)
        x = x.detach() + (epsilon / steps) * gradient.sign()
        x = torch.minimum(torch.maximum(x, clean - epsilon), clean + epsilon)
        if valid is not None:
            x = x.clamp(*valid)
    return x.detach(), slipped
