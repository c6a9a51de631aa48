"""A pool of fitted adversaries played side by side on the same episodes, to choose among them.

Selection has its own episodes: what is reported later is scored on others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothrl import envs
from smoothrl.agents import Agent
from smoothrl.attacks.base import Attack
from smoothrl.networks import MLP, GaussianPolicy, PoolMLP
from smoothrl.noise import StreamNoise, episode_seeds

HELD_OUT = 0x5EED
"""Seeds of held-out episodes are this far from the seeds of the test."""
Make = Callable[[nn.Module], Attack]
"""From a (pooled) network to the attack that carries it."""
Progress = Callable[[float, str], None]


class Grouped(nn.Module):
    """A pool on rows that come member by member, `each` rows a member, once for every restart."""

    def __init__(self, members: Sequence[nn.Module], each: int) -> None:
        super().__init__()
        first = [plain(m) for m in members]
        inputs, *hidden, outputs = first[0].sizes
        self.pool = PoolMLP(len(members), inputs, outputs, hidden, first[0].activation)
        for i, member in enumerate(first):
            self.pool.set_member(i, member)
        self.each = each

    def forward(self, rows: Tensor) -> Tensor:
        count = len(self.pool.layers) and self.pool.pool
        blocks = rows.view(-1, count, self.each, rows.shape[-1]).transpose(0, 1).flatten(1, 2)
        out: Tensor = self.pool(blocks)
        return out.view(count, -1, self.each, out.shape[-1]).transpose(0, 1).reshape(rows.shape[0], -1)


def plain(network: nn.Module) -> MLP:
    """The MLP of an adversary or a critic."""
    found = network.mean if isinstance(network, GaussianPolicy) else network
    assert isinstance(found, MLP)
    return found


@dataclass(frozen=True)
class Arena:
    """Where and how the pool is compared."""

    agent: Agent
    env_id: str
    seed: int
    """Seed of the episodes."""
    max_steps: int | None = None
    """Episodes are cut after this many steps."""


def play_members(
    arena: Arena, make: Make, members: Sequence[nn.Module], episodes: int
) -> npt.NDArray[np.float64]:
    """Returns (members, episodes): every member meets the same episodes and the same noise."""
    agent, pool = arena.agent, len(members)
    seeds = {p: episode_seeds(arena.seed, episodes, p) * pool for p in ("env", "noise", "attack")}
    running = envs.make_episodes(arena.env_id, seeds["env"], **agent.info.env_settings)
    act_noise, attack_noise = StreamNoise(seeds["noise"]), StreamNoise(seeds["attack"])
    attack = make(Grouped(members, episodes))
    attack.reset(pool * episodes)
    index = range(pool * episodes)
    returns = np.zeros(pool * episodes)
    try:
        raw = np.array(running.reset())
        ids, step = np.arange(len(raw)), 0
        while ids.size and (arena.max_steps is None or step < arena.max_steps):
            observations = agent.observe(raw)
            seen = attack.perturb(observations, index, attack_noise, step)
            chosen = agent.act(seen[torch.from_numpy(ids)], act_noise, ids.tolist()).cpu().numpy()
            raw[ids], rewards, terminated, truncated = running.step(ids, chosen)
            returns[ids] += rewards
            ids = ids[~(terminated | truncated)]
            step += 1
    finally:
        running.close()
    return returns.reshape(pool, episodes)


@dataclass(frozen=True)
class Choice:
    """The member that hurt most."""

    member: int
    scores: list[float]
    """Mean return of each member, over all its selection episodes."""
    episodes: list[int]


def choose(
    arena: Arena,
    make: Make,
    members: Sequence[nn.Module],
    *,
    first: int = 4,
    then: int = 12,
    keep: int = 4,
    progress: Progress | None = None,
) -> Choice:
    """All members on a few episodes, the best on more, a quarter of them or `keep`; the lowest mean wins."""
    early = play_members(arena, make, members, max(first, -(-8 // len(members))))
    if progress is not None:
        progress(0.5, "selecting")
    scores, counts = early.mean(1), np.full(len(members), early.shape[1])
    finalists = np.argsort(scores, kind="stable")[: max(keep, len(members) // 4)]
    if len(members) > 1 and then > 0:
        fresh = Arena(arena.agent, arena.env_id, arena.seed + 1, arena.max_steps)
        late = play_members(fresh, make, [members[i] for i in finalists], max(then, -(-8 // len(finalists))))
        both = np.concatenate([early[finalists], late], axis=1)
        scores[finalists], counts[finalists] = both.mean(1), both.shape[1]
    best = int(finalists[np.argmin(scores[finalists])])
    return Choice(best, [float(s) for s in scores], [int(c) for c in counts])


def choose_on_test(arena: Arena, make: Make, members: Sequence[nn.Module], episodes: int) -> Choice:
    """The released procedure: every member on the test episodes themselves, the lowest mean reported."""
    scores = play_members(arena, make, members, episodes).mean(1)
    return Choice(int(scores.argmin()), [float(s) for s in scores], [episodes] * len(members))
