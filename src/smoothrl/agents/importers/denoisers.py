"""The released S-DQN denoisers, and the Q-networks they stand in front of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from smoothrl.agents.agent import Agent, AgentInfo, Smoothing
from smoothrl.agents.importers.containers import TorchFile, state_dict
from smoothrl.agents.importers.safe_pickle import Refusal
from smoothrl.agents.importers.weights import adopted, nature
from smoothrl.agents.normaliser import Normaliser
from smoothrl.agents.parts import Part
from smoothrl.errors import UserError
from smoothrl.networks import DenoisedQ, DnCNN, Statistics, frozen


def import_denoiser(path: str | Path, statistics: Statistics = "frozen") -> Part:
    """A released `.pth` denoiser, as a network file.

    It was trained on transposed frames and with batch statistics; `batch` keeps those (protocol `paper`),
    `frozen` uses the running ones (protocol `sound`).
    """
    target = Path(path)
    if not target.is_file():
        raise UserError(f"{target}: no such file")
    try:
        file = TorchFile(target)
        network = _denoiser(state_dict(file, file.content, "the denoiser"), statistics)
    except Refusal as error:
        raise UserError(f"{target}: {error}; `--from released` reads the released .pth denoisers") from error
    return Part(
        "denoiser",
        network,
        {"origin": "released", "file": target.name, "transposed": True, **_denoiser_facts(target)},
    )


def _denoiser_facts(path: Path) -> dict[str, Any]:
    match = re.match(r"([a-z]+)_(?:(rad|adv|cov)_)?denoiser(?:_(adv))?_([0-9.]+)$", path.stem.lower())
    if match is None:
        return {}
    return {
        "game": match[1],
        "base": match[2] or "vanilla",
        "adversarial": bool(match[3]),
        "sigma": float(match[4]),
    }


def _denoiser(state: Mapping[str, Tensor], statistics: Statistics) -> DnCNN:
    convolutions = sorted(
        (
            int(k.split(".")[1])
            for k, v in state.items()
            if re.fullmatch(r"dncnn\.\d{1,4}\.weight", k) and v.ndim == 4
        )
    )
    if len(convolutions) < 3 or convolutions[0] != 0:
        raise Refusal("no released denoiser: its convolutions are missing")
    width, channels = state["dncnn.0.weight"].shape[:2]
    description = {
        "kind": "dncnn",
        "channels": channels,
        "width": width,
        "depth": len(convolutions),
        "statistics": statistics,
    }
    found = {
        name.replace("dncnn.", "net.", 1): value
        for name, value in state.items()
        if not name.endswith(".num_batches_tracked")
    }
    network = adopted(description, found, "the denoiser")
    assert isinstance(network, DnCNN)
    frozen(network)
    return network


def turned(network: DnCNN) -> DnCNN:
    """The denoiser of upright frames from one of transposed frames, and the reverse: D'(x) = D(x^T)^T."""
    twin = DnCNN(**{k: v for k, v in network.description.items() if k != "kind"})
    twin.load_state_dict(
        {
            k: v.transpose(2, 3).contiguous() if v.ndim == 4 else v.clone()
            for k, v in network.state_dict().items()
        }
    )
    return twin


def denoised_agent(part: Part, base: Agent, *, sigma: float | None = None, samples: int = 100) -> Agent:
    """S-DQN: a denoiser file in front of a Q-agent, voting over `samples` draws."""
    network = part.network
    if not base.discrete or isinstance(base.network, DenoisedQ):
        raise UserError("a denoiser stands in front of a plain Q-agent; --base names another kind of agent")
    if not isinstance(network, DnCNN):
        raise UserError("the denoiser file holds another kind of network")
    shape = base.info.observation_shape
    if len(shape) != 3 or shape[0] != network.description["channels"]:
        raise UserError(
            f"the denoiser takes {network.description['channels']} frame(s) an observation; "
            f"the base agent was trained on observations of shape {shape}"
        )
    if bool(part.about.get("transposed")) != bool(base.info.env_settings.get("transpose")):
        network = turned(network)
    noise = sigma if sigma is not None else part.about.get("sigma")
    if not isinstance(noise, float):
        raise UserError("the denoiser file does not say its sigma; add --sigma")
    live = network.description["statistics"] == "batch"
    info = replace(
        base.info,
        method="s-dqn",
        trained_with=Smoothing("vote", noise, samples),
        notes={**base.info.notes, "denoiser": part.about, "base": base.digest},
    )
    return Agent(DenoisedQ(network, base.network), base.normaliser, info, batch_statistics=live)


def import_q_network(
    path: str | Path, env_id: str, *, method: str = "dqn", env_settings: Mapping[str, Any] | None = None
) -> Agent:
    """A Q-network of the same authors and their predecessors (SA-DQN, RADIAL): the dueling Nature CNN."""
    target = Path(path)
    if not target.is_file():
        raise UserError(f"{target}: no such file")
    try:
        file = TorchFile(target)
        state = {
            k.removeprefix("module.").removeprefix("features."): v
            for k, v in state_dict(file, file.content, "the Q-network").items()
        }
        network = nature(state, "the Q-network")
    except Refusal as error:
        raise UserError(f"{target}: {error}; a dueling Nature CNN was expected") from error
    channels = int(network.description["channels"])
    info = AgentInfo(
        method=method,
        env_id=env_id,
        action_kind="discrete",
        actions=int(network.description["actions"]),
        observation_shape=(channels, 84, 84),
        env_settings=dict(env_settings or {}),
        notes={"origin": "released", "file": target.name},
    )
    return Agent(network, Normaliser("scale", 1.0 / 255.0), info)
