"""Meeting other libraries halfway: agents like a Stable-Baselines3 model, attacks as Gymnasium wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch

from smoothrl.agents import Agent
from smoothrl.attacks import Adversary, Attack, make_attack
from smoothrl.errors import UserError
from smoothrl.networks import Bounded, GaussianPolicy, unclipped
from smoothrl.noise import GeneratorNoise
from smoothrl.protocols import SOUND, Protocol


class SmoothedPolicy:
    """An agent with the `predict` of Stable-Baselines3: raw observations in, actions out.

    SB3's `evaluate_policy`, its `VecVideoRecorder` loops and whatever else only calls `predict` run on it.
    The observations must be raw: the agent normalises them itself. The noise of the smoothing comes from
    `seed` and goes on from call to call.
    """

    def __init__(self, agent: Agent, seed: int = 0) -> None:
        self.agent = agent
        self._generator = torch.Generator().manual_seed(seed)

    def predict(
        self,
        observation: npt.NDArray[Any] | dict[str, npt.NDArray[Any]],
        state: tuple[npt.NDArray[Any], ...] | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[Any], tuple[npt.NDArray[Any], ...] | None]:
        """The action (of each row of a batch) and the unchanged state.

        `deterministic=False` draws from the Gaussian of a policy that has one; other agents do not change.
        """
        if isinstance(observation, dict):
            raise UserError("this agent takes one array as its observation, not a dictionary")
        rows = np.asarray(observation)
        shape = tuple(self.agent.info.observation_shape)
        single = rows.shape == shape
        if not single and rows.shape[1:] != shape:
            raise UserError(
                f"the observation has shape {rows.shape}, the agent takes {shape} or (n, *{shape})"
            )
        seen = self.agent.observe(rows[None] if single else rows)
        actions = self.agent.act(seen, GeneratorNoise(self._generator))
        if not deterministic:
            actions = self._drawn(actions)
        found = actions.cpu().numpy()
        return (found[0] if single else found), state

    def _drawn(self, actions: torch.Tensor) -> torch.Tensor:
        network = self.agent.network
        policy = unclipped(network)
        if not isinstance(policy, GaussianPolicy):
            return actions
        noise = torch.randn(actions.shape, generator=self._generator).to(actions)
        drawn = actions + noise * policy.log_std.exp()
        if isinstance(network, Bounded):
            drawn = torch.minimum(
                torch.maximum(drawn, drawn.new_tensor(network.low)), drawn.new_tensor(network.high)
            )
        return drawn


class AttackedObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A Gymnasium environment whose observations an attack has tampered with; see `wrap_attack`."""

    def __init__(self, env: gymnasium.Env[Any, Any], agent: Agent, attack: Attack, seed: int = 0) -> None:
        super().__init__(env)
        self.agent, self.attack = agent, attack
        self._noise = GeneratorNoise(torch.Generator().manual_seed(seed))
        self._step = 0
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        low, high = (
            (-np.inf, np.inf) if agent.normaliser.bounds is None else (space.low.min(), space.high.max())
        )
        self.observation_space = gymnasium.spaces.Box(float(low), float(high), space.shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """A seed here makes the attack's own draws repeat as well."""
        if seed is not None:
            self._noise = GeneratorNoise(torch.Generator().manual_seed(seed))
        self.attack.reset(1)
        self._step = 0
        observation, info = self.env.reset(seed=seed, options=options)
        return self.observation(observation), info

    def observation(self, observation: Any) -> npt.NDArray[Any]:
        """The raw observation that the agent normalises to the perturbed one."""
        clean = self.agent.observe(np.asarray(observation)[None])
        perturbed = self.attack.perturb(clean, [0], self._noise, self._step)
        self._step += 1
        if perturbed is clean:
            return np.asarray(observation, np.float32)
        moved = self.agent.normaliser.raw(perturbed - clean) - self.agent.normaliser.raw(clean - clean)
        return np.asarray(np.asarray(observation, np.float64) + moved[0], np.float32)


def wrap_attack(
    env: gymnasium.Env[Any, Any],
    agent: Agent,
    attack: Attack | str,
    epsilon: float | None = None,
    norm: str = "linf",
    *,
    protocol: Protocol = SOUND,
    adversary: Adversary | None = None,
    seed: int = 0,
) -> AttackedObservation:
    """The environment as the agent sees it under attack: an ordinary Gymnasium wrapper.

    `attack` is a name (then `epsilon` is its budget) or a finished attack on this agent. Observations keep
    their raw units; they become float32, since a perturbation is smaller than a grey level.
    """
    if isinstance(attack, str):
        if epsilon is None:
            raise UserError("wrap_attack needs epsilon, the budget, beside the attack's name")
        attack = make_attack(attack, agent, epsilon, norm, protocol=protocol, adversary=adversary)
    elif attack.agent.digest != agent.digest:
        raise UserError("this attack holds another agent; make it with the agent that acts")
    shape = getattr(env.observation_space, "shape", None)
    if shape != tuple(agent.info.observation_shape):
        raise UserError(
            f"the environment shows observations of shape {shape}, the agent takes "
            f"{tuple(agent.info.observation_shape)}"
        )
    return AttackedObservation(env, agent, attack, seed)
