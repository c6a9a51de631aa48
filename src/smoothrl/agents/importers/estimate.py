"""Observation statistics that nobody saved, estimated by playing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from smoothrl import envs
from smoothrl.agents.agent import Agent, Smoothing
from smoothrl.agents.normaliser import Moments
from smoothrl.errors import UserError

LANES = 8


def with_estimated_normaliser(agent: Agent, steps: int, seed: int = 0, clip: float = 10.0) -> Agent:
    """The agent with the running statistics of about `steps` of its own steps, learnt from nothing while it
    plays without noise: the statistics and the play find each other, as in CleanRL's evaluation."""
    if steps < 100:
        raise UserError(f"{steps} steps are too few to estimate observation statistics; take at least 100")
    if len(agent.info.observation_shape) != 1:
        raise UserError("only vector observations have statistics to estimate")
    playing = agent.with_smoothing(Smoothing())
    running = envs.make(agent.info.env_id, LANES, seed, **agent.info.env_settings)
    moments = Moments.zeros(agent.info.observation_shape)
    try:
        raw, _ = running.reset(seed=seed)
        for _ in range(-(-steps // LANES)):
            moments.push(np.asarray(raw, np.float64))
            seen = moments.frozen(clip)(np.asarray(raw))
            raw = running.step(playing.act(seen).cpu().numpy())[0]
    finally:
        running.close()
    notes = {**agent.info.notes, "normaliser": f"estimated from {int(moments.count)} steps"}
    return Agent(agent.network, moments.frozen(clip), replace(agent.info, notes=notes), agent.smoothing)
