"""The agent: a network, its normaliser and its smoothing; everything needed to act."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothrl import networks, smoothing
from smoothrl.agents.normaliser import Normaliser
from smoothrl.errors import UserError, unknown
from smoothrl.noise import Noise

CHUNK_FLOATS = 1 << 20
"""Noisy inputs are made and forwarded in chunks of at most this many numbers: memory does not grow with m."""
CHUNK_ROWS = 8192
MOST_OUTPUTS = 1 << 26
"""The most sampled outputs of one decision: 256 MiB, and as much again to sort them."""
ROW_TILE = 8
"""Batches are padded to a multiple of this (and to two tiles at least): matrix kernels treat odd remainders
differently, and a result would otherwise depend in its last bit on how many episodes run side by side."""


@dataclass(frozen=True)
class Smoothing:
    """How sampled outputs become one decision."""

    kind: smoothing.Kind = "none"
    """none, mean (CROP), vote (hard randomized smoothing, Q-agents) or median (policies)."""
    sigma: float = 0.0
    """Standard deviation of the noise, in units of the normalised observation."""
    samples: int = 1
    """Noise samples m of one decision."""

    def __post_init__(self) -> None:
        if self.kind not in ("none", "mean", "vote", "median"):
            raise unknown("smoothing", self.kind, ("none", "mean", "vote", "median"))
        if self.kind != "none" and not (self.sigma > 0.0 and np.isfinite(self.sigma)):
            raise UserError(
                f"smoothing {self.kind!r} needs a finite sigma above 0, got {self.sigma}; "
                "without noise use --smooth none"
            )
        if self.samples < 1:
            raise UserError(f"smoothing needs at least one sample, got {self.samples}")

    def __str__(self) -> str:
        if self.kind == "none":
            return "none"
        return f"{self.kind}, sigma {self.sigma:g}, {self.samples} samples"


@dataclass(frozen=True)
class AgentInfo:
    """What an agent file says about its agent."""

    method: str
    env_id: str
    action_kind: Literal["discrete", "continuous"]
    actions: int
    """Number of actions, or the dimension of a continuous one."""
    observation_shape: tuple[int, ...]
    env_settings: dict[str, Any] = field(default_factory=dict)
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    seed: int | None = None
    steps: int = 0
    trained_with: Smoothing = field(default_factory=Smoothing)
    """The smoothing used in training."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Free facts: training protocol, hyper-parameters, origin of an import, versions."""


class Agent:
    """A frozen agent. `act` is one batched forward for all observations x noise samples.

    Its parts are never changed: `with_smoothing` gives another agent that shares the network.
    """

    def __init__(
        self,
        network: nn.Module,
        normaliser: Normaliser,
        info: AgentInfo,
        smooth: Smoothing | None = None,
        *,
        device: str | torch.device = "cpu",
        batch_statistics: bool = False,
    ) -> None:
        self.network = networks.frozen(network).to(device)
        self.normaliser, self.info = normaliser, info
        self.smoothing = info.trained_with if smooth is None else smooth
        self.device = torch.device(device)
        self.batch_statistics = batch_statistics
        mixing = networks.batch_dependent(self.network)
        if mixing and not batch_statistics:
            raise UserError(
                f"layer {mixing[0]} uses the statistics of the batch, so the agent would be no function of "
                "one observation and no vote or certificate of it means anything; use frozen or per-image "
                "statistics (protocol `paper` may ask for batch statistics, and certifies nothing then)"
            )
        self._layers = tuple(self.network.modules())
        self._check_smoothing()

    def _check_smoothing(self) -> None:
        kind, action = self.smoothing.kind, self.info.action_kind
        if kind == "vote" and action == "continuous":
            raise UserError(
                "vote smoothing needs discrete actions; a policy with continuous actions takes median or mean"
            )
        if kind == "median" and action == "discrete":
            raise UserError("median smoothing needs continuous actions; a Q-agent takes vote or mean")
        most = MOST_OUTPUTS // self.info.actions
        if kind != "none" and self.smoothing.samples > most:
            raise UserError(
                f"{self.smoothing.samples:,} samples of {self.info.actions} outputs do not fit into 2 GB of "
                f"memory; take at most {most:,}"
            )

    def _check_mode(self) -> None:
        if any(module.training for module in self._layers):
            raise UserError(
                "the agent's network was put into training mode after the agent was made; nothing acts or "
                "votes in training mode: give the agent a copy of the network that is trained"
            )

    def with_smoothing(self, smooth: Smoothing) -> Agent:
        return Agent(
            self.network,
            self.normaliser,
            self.info,
            smooth,
            device=self.device,
            batch_statistics=self.batch_statistics,
        )

    @property
    def discrete(self) -> bool:
        return self.info.action_kind == "discrete"

    @property
    def name(self) -> str:
        """The method, with `+RS` where smoothing was added only at test time."""
        added = self.smoothing.kind != "none" and self.info.trained_with.kind == "none"
        return self.info.method + ("+rs" if added else "")

    def observe(self, raw: npt.NDArray[Any]) -> Tensor:
        """Raw observations to normalised ones, where sigma and epsilon live."""
        return self.normaliser(raw).to(self.device)

    def forward(self, observations: Tensor) -> Tensor:
        """The base network without noise, differentiable in the observations: (b, ...) -> (b, outputs).

        With batch statistics each observation is a batch of its own, as in the paper's attacks.
        """
        self._check_mode()
        if self.batch_statistics:
            return torch.cat([self.network(row) for row in torch.split(observations, 1)])
        return self.network(observations)  # type: ignore[no-any-return]

    @torch.no_grad()
    def sample_outputs(
        self,
        observations: Tensor,
        noise: Noise,
        index: Sequence[int] | None = None,
        samples: int | None = None,
    ) -> Tensor:
        """Outputs at `samples` noisy copies of each observation: (b, m, outputs), in bounded memory.

        The noise of a row comes from its own stream and does not depend on the other rows; with batch
        statistics a batch holds the noisy copies of one observation, as in the paper's votes.
        """
        self._check_mode()
        m = self.smoothing.samples if samples is None else samples
        ids = range(observations.shape[0]) if index is None else index
        shape = observations.shape[1:]
        size = max(1, observations[0].numel())
        per_draw = min(m, max(1, CHUNK_FLOATS // size))
        rows = max(1, min(CHUNK_FLOATS // (size * per_draw), CHUNK_ROWS // per_draw))
        if self.batch_statistics:
            rows = 1
        out = torch.empty(observations.shape[0], m, self.info.actions, device=self.device)
        for start in range(0, observations.shape[0], rows):
            block = observations[start : start + rows]
            for drawn in range(0, m, per_draw):
                count = min(per_draw, m - drawn)
                z = noise.normal(ids[start : start + rows], count, shape).to(self.device)
                noisy = z.mul_(self.smoothing.sigma).add_(block.unsqueeze(1)).flatten(0, 1)
                out[start : start + rows, drawn : drawn + count] = self._forward_rows(noisy).view(
                    block.shape[0], count, -1
                )
        return out

    @torch.no_grad()
    def outputs(
        self, observations: Tensor, noise: Noise | None = None, index: Sequence[int] | None = None
    ) -> Tensor:
        """All outputs of one decision, (b, m, outputs); m is 1 without smoothing."""
        if self.smoothing.kind != "none":
            if noise is None:
                raise UserError("a smoothed agent needs a noise source to act")
            return self.sample_outputs(observations, noise, index)
        if self.batch_statistics:
            return self.forward(observations).unsqueeze(1)
        self._check_mode()
        rows = max(1, min(CHUNK_ROWS, CHUNK_FLOATS // max(1, observations[0].numel())))
        parts = [self._forward_rows(part) for part in torch.split(observations, rows)]
        return torch.cat(parts).unsqueeze(1)

    def decide(self, outputs: Tensor) -> Tensor:
        """The action from the sampled outputs: indices (b,) or continuous actions (b, dim)."""
        kind = self.smoothing.kind
        if kind == "vote":
            return smoothing.vote(outputs)
        if kind == "median":
            return smoothing.median(outputs)
        merged = smoothing.mean(outputs) if kind == "mean" else outputs[:, 0]
        return merged.argmax(dim=-1) if self.discrete else merged

    def act(
        self, observations: Tensor, noise: Noise | None = None, index: Sequence[int] | None = None
    ) -> Tensor:
        """The deployed decision for normalised observations."""
        return self.decide(self.outputs(observations, noise, index))

    def _forward_rows(self, rows: Tensor) -> Tensor:
        count = rows.shape[0]
        padded = max(2 * ROW_TILE, -(-count // ROW_TILE) * ROW_TILE)
        if padded != count and not self.batch_statistics:
            rows = torch.cat([rows, rows[:1].expand(padded - count, *rows.shape[1:])])
        return self.network(rows)[:count]  # type: ignore[no-any-return]

    def tensors(self) -> dict[str, Tensor]:
        """Everything an agent file stores as tensors."""
        found = {f"network.{k}": v.contiguous() for k, v in self.network.state_dict().items()}
        if self.normaliser.kind == "moments":
            found["normaliser.mean"] = torch.from_numpy(self.normaliser.mean)
            found["normaliser.std"] = torch.from_numpy(self.normaliser.std)
        return found

    def header(self) -> dict[str, Any]:
        """Everything an agent file stores as JSON."""
        return {
            "info": json.loads(json.dumps(asdict(self.info))),
            "network": networks.describe(self.network),
            "normaliser": {
                "kind": self.normaliser.kind,
                "scale": self.normaliser.scale,
                "clip": self.normaliser.clip,
            },
            "batch_statistics": self.batch_statistics,
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 over header and tensors: the identity that results and certificates carry."""
        return content_digest(self.header(), self.tensors())


def content_digest(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    sha = hashlib.sha256(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        sha.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return sha.hexdigest()


def renamed(agent: Agent, method: str) -> Agent:
    """The same agent under another method name."""
    return Agent(
        agent.network,
        agent.normaliser,
        replace(agent.info, method=method),
        agent.smoothing,
        device=agent.device,
        batch_statistics=agent.batch_statistics,
    )
