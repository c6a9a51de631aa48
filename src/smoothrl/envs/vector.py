"""The vector environment that learners step: same-step autoreset over any lanes, with exact save and restore.

When an episode ends inside a step, the observation returned is already the first of the lane's next episode,
and `info` tells about the one that ended:

    final_obs       (num_envs, ...) true last observations, valid where _final_obs
    episode_return  (num_envs,) raw, unclipped return, valid where _episode_return
    episode_length  (num_envs,) agent steps, valid where _episode_length

The keys are there only in steps that end an episode. With episodic life (Atari in training) a lost life
ends an episode (`terminated`, `final_obs`) but not the game: return and length are the whole game's and
come at its end.

State is kept as what made it: the number of the game each lane plays and the actions taken since it began.
Playing them again in fresh simulators gives the same bits, warm starts and generators included, on every
backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from smoothrl.envs.lanes import Array, Ids, Lanes, Mask, Step
from smoothrl.envs.seeding import check_seed, episode_seed
from smoothrl.envs.spec import EnvSpec
from smoothrl.errors import UserError

Factory = Callable[[Sequence[int]], Lanes]
"""Makes lanes from their seeds."""

HISTORY_SLACK = 1000
"""Steps kept beyond twice the longest running game before the actions of finished games are dropped."""

StepResult = tuple[Array, NDArray[np.float64], Mask, Mask, dict[str, Any]]


class SmoothVectorEnv(VectorEnv[Array, Array, Array]):
    """Lanes with same-step autoreset. `step` is `send`, then `recv`; the network may think in between."""

    def __init__(
        self, description: EnvSpec, factory: Factory, num_envs: int, seed: int, *, clip_rewards: bool = False
    ) -> None:
        """`clip_rewards`: the learner sees the sign of each reward; `episode_return` stays raw."""
        self.description = description
        self.num_envs = num_envs
        self.clip_rewards = clip_rewards
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._factory = factory
        self._horizon = description.horizon or np.iinfo(np.int64).max
        self._all: Ids = np.arange(num_envs)
        self._lanes = self._build(check_seed(seed))
        self.single_observation_space: gymnasium.Space[Any] = self._lanes.observation_space
        self.single_action_space: gymnasium.Space[Any] = self._lanes.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._fresh = True
        self._sent: Array | None = None

    def _build(self, seed: int) -> Lanes:
        self._seed = seed
        self._episode = np.zeros(self.num_envs, dtype=np.int64)
        self._return = np.zeros(self.num_envs)
        self._length = np.zeros(self.num_envs, dtype=np.int64)
        self._history: list[Array] = []
        return self._factory([episode_seed(seed, lane, 0) for lane in range(self.num_envs)])

    def restart(self, seed: int) -> Array:
        """Forget everything and begin as a new environment made with `seed` would; first observations.

        Cheap enough (milliseconds for MuJoCo lanes) to call at every checkpoint of a training.
        """
        self._lanes.close()
        self._lanes = self._build(check_seed(seed))
        return self._start(self._all)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """With a seed: `restart`. Without: the first call begins episode 0, later ones the next episodes.

        `options={"reset_mask": mask}` resets only these lanes; the other rows of the result are zero.
        """
        if isinstance(seed, list):
            raise UserError("pass one seed: the lanes' seeds are derived from it")
        if seed is not None:
            return self.restart(seed), {}
        if self._fresh:
            return self._start(self._all), {}
        mask = (options or {}).get("reset_mask")
        ids = self._all if mask is None else np.flatnonzero(mask)
        self._episode[ids] += 1
        obs = np.zeros(self.observation_space.shape or (), dtype=self.observation_space.dtype)
        obs[ids] = self._start(ids)
        return obs, {}

    def _start(self, ids: Ids) -> Array:
        self._fresh = False
        self._sent = None
        self._return[ids], self._length[ids] = 0.0, 0
        return self._lanes.reset(ids, [episode_seed(self._seed, int(i), int(self._episode[i])) for i in ids])

    def send(self, actions: Array) -> None:
        """Begin a step and return; `recv` must follow before the next `send`."""
        if self._fresh or self._sent is not None:
            raise RuntimeError("send() needs a reset() first and a recv() after each send()")
        self._sent = np.array(actions, copy=True)
        self._lanes.send(self._all, self._sent)

    def recv(self) -> StepResult:
        """End the step that `send` began."""
        if self._sent is None:
            raise RuntimeError("recv() without a send()")
        actions, self._sent = self._sent, None
        result = self._finish(self._all, self._lanes.recv())
        self._history.append(actions)
        longest = int(self._length.max())
        if len(self._history) > 2 * longest + HISTORY_SLACK:
            del self._history[: len(self._history) - longest]
        return result

    def step(self, actions: Array) -> StepResult:
        """One step of every lane."""
        self.send(actions)
        return self.recv()

    def _finish(self, ids: Ids, step: Step) -> StepResult:
        self._return[ids] += step.reward
        self._length[ids] += 1
        truncated = step.truncated | (self._length[ids] >= self._horizon)
        terminated = step.terminated | step.life_lost
        reward = np.sign(step.reward) if self.clip_rewards else step.reward
        ended = terminated | truncated
        if not ended.any():
            return step.obs, reward, terminated, truncated, {}
        goes_on = step.life_lost & ~step.terminated & ~truncated
        obs = step.obs.copy()
        over = ended & ~goes_on
        if goes_on.any():
            resumed, died = self._lanes.resume(ids[goes_on])
            obs[goes_on] = resumed
            over[np.flatnonzero(goes_on)[died]] = True
        info = self._ending_info(ids, step.obs, ended, over)
        if over.any():
            finished = ids[over]
            self._episode[finished] += 1
            obs[over] = self._start(finished)
        return obs, reward, terminated, truncated, info

    def _ending_info(self, ids: Ids, final: Array, ended: Mask, over: Mask) -> dict[str, Any]:
        info: dict[str, Any] = {"final_obs": np.where(_like(ended, final), final, np.zeros_like(final))}
        info["_final_obs"] = ended
        info["episode_return"] = np.where(over, self._return[ids], 0.0)
        info["episode_length"] = np.where(over, self._length[ids], 0)
        info["_episode_return"] = over
        info["_episode_length"] = over.copy()
        return info

    def get_state(self) -> dict[str, Array]:
        """Plain arrays from which `set_state` continues with the same bits."""
        if self._fresh or self._sent is not None:
            raise RuntimeError("get_state() between reset() or recv() and the next send() only")
        taken = [
            [row[lane] for row in self._history[len(self._history) - n :]]
            for lane, n in enumerate(self._length)
        ]
        shape = self.single_action_space.shape or ()
        return {
            "seed": np.array(self._seed),
            "episode": self._episode.copy(),
            "length": self._length.copy(),
            "actions": np.array([action for lane in taken for action in lane]).reshape(-1, *shape),
            "return": self._return.copy(),
        }

    def set_state(self, state: Mapping[str, Array]) -> Array:
        """Continue from `get_state` of an environment made with the same arguments; current observations."""
        episode, length = np.asarray(state["episode"]), np.asarray(state["length"])
        if episode.shape != (self.num_envs,):
            raise UserError(f"the state has {len(episode)} environments, this one has {self.num_envs}")
        self._lanes.close()
        self._lanes = self._build(int(state["seed"]))
        self._skip_to(episode)
        self._episode[:] = episode
        obs = self._start(self._all)
        ends = np.cumsum(length)
        for left in range(int(length.max()), 0, -1):
            ids = np.flatnonzero(length >= left)
            actions = np.asarray(state["actions"])[ends[ids] - left]
            self._lanes.send(ids, actions)
            obs[ids] = self._finish(ids, self._lanes.recv())[0]
            row = np.zeros((self.num_envs, *actions.shape[1:]), dtype=actions.dtype)
            row[ids] = actions
            self._history.append(row)
        if not (np.array_equal(self._episode, episode) and np.array_equal(self._return, state["return"])):
            raise UserError(
                f"{self.description.id} gave other rewards when its actions were played again: it is "
                "not deterministic given its seed, or its version changed; training cannot resume bit by bit"
            )
        return obs

    def _skip_to(self, episode: Ids) -> None:
        """Backends whose generators run on: draw the resets of all earlier episodes."""
        if self._lanes.per_episode_seeds:
            return
        for k in range(int(episode.max(initial=0))):
            ids = np.flatnonzero(episode > k)
            self._lanes.reset(ids, [0] * len(ids))

    def render_frame(self, lane: int) -> NDArray[np.uint8] | None:
        """A picture of one lane, or None where the backend cannot draw."""
        return self._lanes.render(lane)

    def close_extras(self, **kwargs: Any) -> None:
        """Called once by `close`."""
        self._lanes.close()


def _like(mask: Mask, array: Array) -> Mask:
    return mask.reshape(-1, *[1] * (array.ndim - 1))
