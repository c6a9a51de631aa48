"""PA-AD's director against a Q-agent: PPO over target actions, a targeted gradient search as its actor.

The directors of a grid share their environments' steps and the victim's batches; each has its own networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from smoothrl import envs, networks
from smoothrl.agents import Agent
from smoothrl.attacks.learned import DirectedQAttack
from smoothrl.errors import UserError
from smoothrl.learners import losses
from smoothrl.learners.dqn import load_optimizer, optimizer_state, part
from smoothrl.learners.run_directory import RunDirectory
from smoothrl.noise import StreamNoise, episode_seeds

Progress = Callable[[float, str], None]
STRETCHES = 8
"""A fit restarts its environments this often, and keeps its state there."""


@dataclass(frozen=True)
class DirectorConfig:
    """One director of a grid."""

    lr: float = 5e-4
    """Adam's rate, falling linearly to zero."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    clip: float = 0.2
    """Clip range of the ratio."""


@dataclass(frozen=True)
class DirectorSettings:
    """What all directors of a fit share."""

    steps: int = 200_000
    """Environment steps a director."""
    lanes: int = 8
    """Environments side by side, a director."""
    horizon: int = 64
    """Steps of each environment an iteration."""
    epochs: int = 4
    """Passes over an iteration's data."""
    minibatches: int = 4
    """Minibatches a pass."""
    discount: float = 0.99
    """gamma."""
    trace: float = 0.95
    """lambda of the advantage estimate; 1: bootstrapped returns."""
    scaled_rewards: bool = True
    """Rewards divided by the deviation of the discounted return."""
    seed: int = 0
    """Seed."""

    @property
    def iterations(self) -> int:
        return self.steps // (self.lanes * self.horizon)

    @property
    def stretch(self) -> int:
        """Iterations between two restarts of the environments, where a killed fit goes on."""
        return max(1, self.iterations // STRETCHES)


PAPER_DIRECTOR = DirectorSettings(
    steps=1_000_000, lanes=1, horizon=64, minibatches=32, trace=1.0, scaled_rewards=False
)
"""As published: one environment, minibatches of two, raw rewards."""


@dataclass
class FittedDirectors:
    """The directors of a grid and how the victim's return fell."""

    directors: list[nn.Module]
    curves: list[list[float]] = field(default_factory=list)


def director_network(shape: Sequence[int], outputs: int) -> nn.Module:
    """A small network for this kind of observation."""
    if len(shape) == 1:
        return networks.DuelingMLP(shape[0], outputs, (64, 64), dueling=False)
    if tuple(shape[1:]) == (84, 84):
        return networks.NatureQ(shape[0], outputs, hidden=128, width=0.5, dueling=False)
    if len(shape) == 3 and shape[1] == shape[2]:
        return networks.SmallQ(shape[0], outputs, size=shape[1], dueling=False)
    raise UserError(f"there is no director for observations of shape {tuple(shape)}")


class _Member:
    """One director with its critic and optimiser."""

    def __init__(self, config: DirectorConfig, shape: Sequence[int], actions: int, seed: int) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor, self.critic = director_network(shape, actions), director_network(shape, 1)
        parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.adam = torch.optim.Adam(parameters, lr=config.lr, eps=1e-5)

    def state(self) -> dict[str, dict[str, Tensor]]:
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "adam": optimizer_state(self.adam),
        }

    def load(self, state: dict[str, dict[str, Tensor]]) -> None:
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        load_optimizer(self.adam, state["adam"])

    def update(self, rows: dict[str, Tensor], settings: DirectorSettings, left: float, seed: int) -> None:
        """PPO on (N, ...) rows; `left` of the fit scales the rate."""
        generator = torch.Generator().manual_seed(seed)
        for group in self.adam.param_groups:
            group["lr"] = self.config.lr * left
        count = rows["target"].shape[0]
        size = max(2, count // settings.minibatches)
        for _ in range(settings.epochs):
            for batch in torch.split(torch.randperm(count, generator=generator), size):
                loss = self._loss({k: v[batch] for k, v in rows.items()})
                self.adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                for module in (self.actor, self.critic):
                    nn.utils.clip_grad_norm_(module.parameters(), 0.5)
                self.adam.step()

    def _loss(self, part: dict[str, Tensor]) -> Tensor:
        logs = torch.log_softmax(self.actor(part["state"]), -1)
        chosen = logs.gather(1, part["target"][:, None])[:, 0]
        advantage = part["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        clip = torch.tensor(self.config.clip)
        gain = losses.surrogate((chosen - part["log_prob"]).exp(), advantage, clip).mean()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        error = (self.critic(part["state"])[:, 0] - part["return"]).square().mean()
        loss: Tensor = 0.5 * error - gain - self.config.entropy * entropy
        return loss


class DirectorFit:
    """The directors of a grid in training."""

    def __init__(
        self,
        attack: DirectedQAttack,
        victim: Agent,
        env_id: str,
        grid: Sequence[DirectorConfig],
        settings: DirectorSettings,
    ) -> None:
        """`attack` turns targets into observations, `victim` is who acts."""
        self.attack, self.victim, self.settings = attack, victim, settings
        shape, actions = victim.info.observation_shape, victim.info.actions
        self.members = [_Member(g, shape, actions, settings.seed + i) for i, g in enumerate(grid)]
        self.total, self.env_id, self.grid = len(grid) * settings.lanes, env_id, tuple(grid)
        self.curves: list[list[float]] = [[] for _ in grid]
        self.moments = [0.0, 0.0, 0.0]
        self.iteration = 0

    def run(self, progress: Progress | None = None, state_dir: str | Path | None = None) -> FittedDirectors:
        """Fit; with `state_dir` a killed fit goes on where its last stretch ended, to the same bits."""
        if state_dir is None:
            return self._run(progress, None)
        victim = self.victim
        described = {
            "victim": victim.digest,
            "grid": [asdict(g) for g in self.grid],
            "settings": asdict(self.settings),
            "attack": self.attack.describe(),
            "smoothing": str(victim.smoothing),
        }
        with RunDirectory.open(state_dir, described, resume=True, tensorboard=False) as run:
            return self._run(progress, run)

    def _run(self, progress: Progress | None, run: RunDirectory | None) -> FittedDirectors:
        saved = None if run is None else run.load_state()
        if saved is not None:
            self._load(*saved)
        total = self.settings.iterations
        while self.iteration < total:
            self._stretch(min(self.iteration + self.settings.stretch, total), progress)
            if run is not None:
                run.save_state(*self._state())
        return FittedDirectors([m.actor for m in self.members], self.curves)

    def _stretch(self, end: int, progress: Progress | None) -> None:
        """Iterations up to `end` in environments, and with draws, of their own."""
        seed = episode_seeds(self.settings.seed, 1, "stretch", self.iteration)[0] & 0x7FFFFFFF
        self.noise = StreamNoise(episode_seeds(seed, self.total, "director"))
        self.generator = torch.Generator().manual_seed(seed)
        self.running = np.zeros(self.total)
        self.env = envs.make(self.env_id, self.total, seed, **self.victim.info.env_settings)
        try:
            states = self.victim.observe(self.env.reset()[0])
            while self.iteration < end:
                states = self._iterate(states, self.iteration)
                self.iteration += 1
                if progress is not None:
                    progress(self.iteration / self.settings.iterations, "fitting directors")
        finally:
            self.env.close()

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors: dict[str, Any] = {"curves": np.array(self.curves), "moments": np.array(self.moments)}
        for i, member in enumerate(self.members):
            for name, found in member.state().items():
                tensors |= {f"{name}{i}.{k}": v for k, v in found.items()}
        return tensors, {"step": self.iteration, "iteration": self.iteration}

    def _load(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        for i, member in enumerate(self.members):
            member.load({name: part(tensors, f"{name}{i}") for name in ("actor", "critic", "adam")})
        self.curves = [list(map(float, row)) for row in tensors["curves"]]
        self.moments = [float(v) for v in tensors["moments"]]
        self.iteration = int(meta["iteration"])

    def _each(self, states: Tensor, name: str) -> Tensor:
        parts = states.view(len(self.members), -1, *states.shape[1:])
        with torch.no_grad():
            return torch.cat([getattr(m, name)(p) for m, p in zip(self.members, parts, strict=True)])

    def _iterate(self, states: Tensor, k: int) -> Tensor:
        s = self.settings
        index, kept, finished = range(self.total), [], []
        rewards, values, ends = (np.zeros((s.horizon, self.total)) for _ in range(3))
        for t in range(s.horizon):
            logs = torch.log_softmax(self._each(states, "actor"), -1)
            target = torch.multinomial(logs.exp(), 1, generator=self.generator)[:, 0]
            shown = self.attack.towards(states, target, index, self.noise, t)
            actions = self.victim.act(shown, self.noise, index).cpu().numpy()
            values[t] = self._each(states, "critic")[:, 0].numpy()
            raw, reward, terminated, truncated, info = self.env.step(actions)
            ends[t] = terminated | truncated
            rewards[t] = -self._scaled(reward, ends[t] > 0)
            kept.append((states, target, logs.gather(1, target[:, None])[:, 0]))
            for lane in np.flatnonzero(info.get("_episode_return", np.zeros(self.total))):
                finished.append((lane // s.lanes, float(info["episode_return"][lane])))
            states = self.victim.observe(raw)
        following = np.concatenate([values[1:], self._each(states, "critic")[:, 0].numpy()[None]])
        following[ends > 0] = 0.0
        gained = losses.advantages(rewards, values, following, ends > 0, s.discount, s.trace)
        self._update(kept, gained, values, k)
        for i, curve in enumerate(self.curves):
            mine = [r for member, r in finished if member == i]
            curve.append(float(np.mean(mine)) if mine else float("nan"))
        return states

    def _update(
        self,
        kept: list[tuple[Tensor, Tensor, Tensor]],
        gained: npt.NDArray[np.float64],
        values: npt.NDArray[np.float64],
        k: int,
    ) -> None:
        s = self.settings
        columns = [torch.stack(parts) for parts in zip(*kept, strict=True)]
        columns += [torch.from_numpy(x.astype(np.float32)) for x in (gained, gained + values)]
        names = ("state", "target", "log_prob", "advantage", "return")
        left = 1.0 - k / s.iterations
        for i, member in enumerate(self.members):
            mine = slice(i * s.lanes, (i + 1) * s.lanes)
            rows = {n: c[:, mine].flatten(0, 1) for n, c in zip(names, columns, strict=True)}
            member.update(rows, s, left, s.seed * 1_000_003 + k)
            if not all(torch.isfinite(p).all() for p in member.actor.parameters()):
                raise UserError(f"director {i} became NaN or infinite; lower its rate")

    def _scaled(
        self, reward: npt.NDArray[np.float64], ended: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float64]:
        """The reward over the deviation of the discounted return seen so far."""
        if not self.settings.scaled_rewards:
            return reward
        self.running = self.settings.discount * self.running + reward
        for value in self.running:
            self.moments[0] += 1.0
            delta = value - self.moments[1]
            self.moments[1] += delta / self.moments[0]
            self.moments[2] += delta * (value - self.moments[1])
        self.running = np.where(ended, 0.0, self.running)
        deviation = np.sqrt(self.moments[2] / max(self.moments[0] - 1.0, 1.0))
        return np.asarray(np.clip(reward / (deviation + 1e-8), -10.0, 10.0))
