"""The one training loop of all Q-learners: collect with many lanes, update, log, evaluate, checkpoint.

While the environments step in their own threads the networks update; what happens when is a function of the
step counter alone, so a resumed run does the same as an unbroken one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from smoothrl import envs
from smoothrl.agents import Agent, Smoothing, save_agent
from smoothrl.errors import UserError
from smoothrl.learners.q_config import QConfig
from smoothrl.learners.replay import Batch, Replay, ReplayConfig
from smoothrl.learners.run_directory import RunDirectory
from smoothrl.protocols import protocol
from smoothrl.rollout import evaluate

Array = npt.NDArray[Any]
Report = Callable[[int, str], None]
"""Called with the step and a note for the person who waits."""


class QLearner(Protocol):
    """What the loop needs of an algorithm."""

    def greedy(self, observations: Array) -> Array:
        """Actions for raw observations of all lanes, without exploration."""
        ...

    def update(self, batch: Batch, progress: float) -> tuple[npt.NDArray[np.float64], dict[str, float]]:
        """One gradient step at this fraction of the run: new priorities, and what to log."""
        ...

    def agent(self, steps: int) -> Agent:
        """The agent as it is now, with networks of its own."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All tensors that resuming needs."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        ...


def exploration(config: QConfig, step: int) -> float:
    """Epsilon: 1 in the warm-up, linear to `explore_final`, then constant or linear to 0 at the end."""
    since = step - config.warmup
    if since < 0:
        return 1.0
    if since < config.explore_steps:
        return 1.0 + (config.explore_final - 1.0) * since / config.explore_steps
    if not config.explore_to_zero:
        return config.explore_final
    left = config.steps - config.warmup - config.explore_steps
    return config.explore_final * max(0.0, 1.0 - (since - config.explore_steps) / max(1, left))


def learning_rate(config: QConfig, progress: float) -> float:
    """Linear from `lr` to `lr * lr_final`."""
    return config.lr * (1.0 + (config.lr_final - 1.0) * progress)


def updates_due(config: QConfig, step: int) -> int:
    """Updates that should have been made when this many steps are in the replay."""
    return max(0, (step - config.warmup) // config.update_every)


class Training:
    """A run between two checkpoints: environment, replay, learner, counters."""

    def __init__(
        self,
        learner: QLearner,
        config: QConfig,
        directory: RunDirectory,
        *,
        refill: bool = False,
        threads: int | None = None,
    ):
        self.learner, self.config, self.directory = learner, config, directory
        settings = dict(config.env_settings)
        self.env = envs.make(
            config.env, config.lanes, config.seed, training=True, threads=threads, **settings
        )
        self.replay = make_replay(config, self.env.description, directory, refill)
        self.rng = np.random.default_rng([config.seed, 0x51])
        self.step = self.updates = 0
        self.best = -math.inf
        self.finished: list[float] = []
        self.sums: dict[str, float] = {}
        self.timing = {"stepping": 0.0, "learning": 0.0}
        state = directory.load_state()
        if state is None:
            self.observations, _ = self.env.reset()
            self.replay.begin(self.observations)
        else:
            self._load(*state, refill)

    # ------------------------------------------------------------------------------------ the loop

    def run(self, report: Report | None = None) -> None:
        """To the last step."""
        while self.step < self.config.steps:
            self.advance()
            if self._crossed(self.config.log_every):
                note = self._log()
                if report is not None:
                    report(self.step, note)
            if self.config.eval_every and self._crossed(self.config.eval_every):
                self._evaluate()
            if self._crossed(self.config.checkpoint_every) or self.replay.checkpoint_due:
                self.save()

    def advance(self) -> None:
        """One step of every lane, and the updates that are due."""
        actions = self._act()
        clock = time.perf_counter
        start = clock()
        self.env.send(actions)
        sent = clock()
        while self.updates < updates_due(self.config, self.step):
            self._update()
        learned = clock()
        following, rewards, terminated, truncated, info = self.env.recv()
        self.timing["learning"] += learned - sent
        self.timing["stepping"] += sent - start + clock() - learned
        self.replay.push(actions, rewards, terminated, truncated, following, info)
        self.observations = following
        if "_episode_return" in info:
            self.finished += info["episode_return"][info["_episode_return"]].tolist()
        self.step += self.config.lanes

    def _act(self) -> Array:
        count = int(self.env.description.action_size)
        epsilon = exploration(self.config, self.step)
        actions: Array = self.rng.integers(count, size=self.config.lanes)
        explores = self.rng.random(self.config.lanes) < epsilon
        if explores.all():
            return actions
        return np.where(explores, actions, self.learner.greedy(self.observations))

    def _update(self) -> None:
        config = self.config
        progress = self.step / config.steps
        batch = self.replay.sample(config.batch, config.beta + (1.0 - config.beta) * progress, self.rng)
        priorities, metrics = self.learner.update(batch, progress)
        if not math.isfinite(metrics["loss"]):
            raise UserError(
                f"the loss is {metrics['loss']} at update {self.updates}, step {self.step:,}; "
                f"the last checkpoint is kept in {self.directory.path}/state; start again with a smaller lr"
            )
        self.replay.update(batch.index, priorities)
        self.updates += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.sums["updates"] = self.sums.get("updates", 0.0) + 1.0

    def _crossed(self, every: int) -> bool:
        """Whether the last vector step passed a multiple of `every`, or the end."""
        return self.step >= self.config.steps or self.step // every > (self.step - self.config.lanes) // every

    # -------------------------------------------------------------------------------- bookkeeping

    def _log(self) -> str:
        count = self.sums.pop("updates", 0.0)
        row: dict[str, float] = {name: value / count for name, value in self.sums.items()}
        row |= {"updates": float(self.updates), "epsilon": exploration(self.config, self.step)}
        if self.finished:
            row |= {
                "train_return": float(np.mean(self.finished)),
                "train_episodes": float(len(self.finished)),
            }
        self.directory.log(self.step, row)
        note = f"return {row['train_return']:.2f}" if self.finished else ""
        self.sums, self.finished = {}, []
        return note

    def _evaluate(self) -> None:
        agent = self.learner.agent(self.step)
        one_draw = agent.smoothing.kind != "none"
        played = agent.with_smoothing(Smoothing("vote", agent.smoothing.sigma, 1)) if one_draw else agent
        found = evaluate(played, episodes=self.config.eval_episodes, seed=self.config.seed + 1_000_003)
        mean = float(found.returns.mean())
        self.directory.log(self.step, {"eval_return": mean, "eval_std": float(found.returns.std())})
        if mean >= self.best:
            self.best = mean
            save_agent(agent, self.directory.path / "best.safetensors")
        self.directory.save_agent(agent)

    def save(self) -> None:
        """A checkpoint from which the run goes on with the same bits."""
        tensors: dict[str, Tensor | Array] = {f"learner.{k}": v for k, v in self.learner.state().items()}
        tensors |= {f"replay.{k}": v for k, v in self.replay.state().items()}
        tensors |= {f"env.{k}": np.asarray(v) for k, v in self.env.get_state().items()}
        tensors["finished"] = np.asarray(self.finished, np.float64)
        meta = {
            "step": self.step,
            "updates": self.updates,
            "rng": self.rng.bit_generator.state,
            "best": self.best if math.isfinite(self.best) else None,
            "sums": self.sums,
        }
        self.directory.save_state(tensors, meta)
        if not self.config.eval_every or self.step >= self.config.steps:
            self.directory.save_agent(self.learner.agent(self.step))

    def _load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], refill: bool) -> None:
        def part(name: str) -> dict[str, Tensor]:
            return {k[len(name) + 1 :]: v for k, v in tensors.items() if k.startswith(name + ".")}

        self.learner.load(part("learner"))
        self.observations = self.env.set_state({k: v.numpy() for k, v in part("env").items()})
        self.step, self.updates = int(meta["step"]), int(meta["updates"])
        self.rng.bit_generator.state = meta["rng"]
        self.best = -math.inf if meta["best"] is None else float(meta["best"])
        self.sums, self.finished = dict(meta["sums"]), tensors["finished"].tolist()
        if refill:
            self.replay.begin(self.observations)
            self._refill()
        else:
            self.replay.load({k: v.numpy() for k, v in part("replay").items()})

    def _refill(self) -> None:
        """Play with the networks as they are until the new replay holds what the warm-up would have given."""
        while len(self.replay) < self.config.warmup:
            actions = self._act()
            following, rewards, terminated, truncated, info = self.env.step(actions)
            self.replay.push(actions, rewards, terminated, truncated, following, info)
            self.observations = following


def make_replay(config: QConfig, spec: envs.EnvSpec, directory: RunDirectory, refill: bool = False) -> Replay:
    """The replay of a run, its frames in the run's state folder."""
    stack = spec.obs_shape[0] if spec.is_image and spec.backend == "ale" else 1
    shape = ReplayConfig(
        lanes=config.lanes,
        capacity=config.capacity,
        shape=tuple(spec.obs_shape),
        dtype=spec.obs_dtype,
        stack=stack,
        n_step=config.n_step,
        gamma=config.gamma,
        alpha=config.alpha,
        margin=2 * -(-config.checkpoint_every // config.lanes) + 16 * (stack + 1),
        limits_terminate=protocol(config.protocol).time_limit_is_terminal,
    )
    path = directory.path / "state" / "replay.frames"
    resuming = (directory.path / "state" / "state.safetensors").exists()
    if refill:
        path.unlink(missing_ok=True)
    elif resuming and not path.is_file():
        raise UserError(
            f"{path} is missing, so the run cannot go on exactly as it was; --refill-replay keeps the "
            "networks and fills a new replay"
        )
    return Replay(shape, path)


def config_json(config: QConfig) -> dict[str, Any]:
    """The config as config.json keeps it."""
    return asdict(config)


def amp(config: QConfig, device: torch.device) -> torch.autocast:
    """Autocast of the config's precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")
