"""Meeting other libraries halfway: agents that answer like a Stable-Baselines3 model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smoothrl.agents import Agent
from smoothrl.errors import UserError
from smoothrl.networks import Bounded, GaussianPolicy, unclipped
from smoothrl.noise import GeneratorNoise


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
