"""Adam on all parameters of a network as one vector, and the twin in bfloat16 that computes its passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smoothrl import networks


def one_vector(parameters: Sequence[nn.Parameter]) -> Tensor:
    """A vector that holds the parameters one after another; they become views of it, strides kept."""
    flat = parameters[0].new_empty(sum(p.numel() for p in parameters))
    with torch.no_grad():
        for parameter, view in zip(parameters, views(flat, parameters), strict=True):
            view.copy_(parameter)
            parameter.data = view
    return flat


def views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Parts of `flat` with the parameters' shapes and strides."""
    found, start = [], 0
    for p in parameters:
        found.append(flat.as_strided(p.shape, p.stride(), start))
        start += p.numel()
    return found


class Descent:
    """One optimiser step of a Q-network.

    The network keeps float32 weights. With `half` its passes run in `fast`, a twin whose weights are rounded
    to bfloat16 after every step: the numbers of autocast, which rounds every weight again in every pass.
    """

    def __init__(self, network: nn.Module, lr: float, eps: float, half: bool) -> None:
        self.parameters = list(network.parameters())
        self.flat = one_vector(self.parameters)
        self.gradient = torch.zeros_like(self.flat)
        self._slots = views(self.gradient, self.parameters)
        self.network = self.fast = network
        self._rounded: Tensor | None = None
        if half:
            twin = networks.build(networks.describe(network)).to(self.flat.device, torch.bfloat16)
            self.fast = twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._rounded = one_vector(list(self.fast.parameters()))
        self.optimizer = torch.optim.Adam([self.flat], lr=lr, eps=eps, fused=True)
        self.refresh()

    @property
    def dtype(self) -> torch.dtype:
        """Of the passes."""
        return self.flat.dtype if self._rounded is None else self._rounded.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """The network's float32 outputs, with gradient."""
        return self.fast(x.to(self.dtype)).float()  # type: ignore[no-any-return]

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the weights anew, after they changed."""
        if self._rounded is not None:
            self._rounded.copy_(self.flat)

    def step(self, loss: Tensor, lr: float, clip: float = 0.0) -> None:
        """One Adam step down the loss, which may have looked at the network, its twin or both."""
        fast = [] if self._rounded is None else list(self.fast.parameters())
        found = torch.autograd.grad(loss, [*self.parameters, *fast], allow_unused=True)
        with torch.no_grad():
            self._gather(found[: len(self.parameters)], found[len(self.parameters) :])
            if clip > 0.0:
                norm = self.gradient.norm()
                self.gradient.mul_((clip / (norm + 1e-6)).clamp(max=1.0))
        self.flat.grad = self.gradient
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()
        self.refresh()

    def _gather(self, own: Sequence[Tensor | None], twin: Sequence[Tensor | None]) -> None:
        """Both sets of gradients into the vector."""
        first, second = (twin, own) if twin else (own, ())
        known = [(slot, g) for slot, g in zip(self._slots, first, strict=True) if g is not None]
        if len(known) < len(self._slots):
            self.gradient.zero_()
        torch._foreach_copy_([slot for slot, _ in known], [g for _, g in known])
        for slot, g in zip(self._slots, second, strict=False):
            if g is not None:
                slot.add_(g)
