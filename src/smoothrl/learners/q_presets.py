"""Presets as data: `paper` (reference procedure, single frames), `cpu` (a playing agent in an hour or two on
one core), MinAtar and classic control (minutes)."""

from __future__ import annotations

from typing import Any

from smoothrl.errors import UserError, unknown

Values = dict[str, Any]

PAPER_DQN: Values = {
    "steps": 6_000_000,
    "lanes": 1,
    "update_every": 1,
    "warmup": 80_000,
    "capacity": 200_000,
    "lr": 6.25e-5,
    "double": False,
    "explore_final": 0.05,
    "explore_steps": 1_500_000,
    "explore_to_zero": True,
    "target_every": 2_000,
    "checkpoint_every": 50_000,
    "env_settings": {"profile": "single-frame"},
}
CPU_DQN: Values = {
    "steps": 1_000_000,
    "lanes": 16,
    "update_every": 4,
    "warmup": 10_000,
    "capacity": 150_000,
    "n_step": 3,
    "lr": 2e-4,
    "lr_final": 0.1,
    "adam_eps": 1e-5,
    "grad_clip": 10.0,
    "explore_final": 0.01,
    "explore_steps": 120_000,
    "target_every": 1_000,
    "width": 0.5,
    "hidden": 192,
    "precision": "bf16",
}
MINATAR_DQN: Values = {
    "steps": 500_000,
    "lanes": 16,
    "batch": 64,
    "update_every": 8,
    "warmup": 5_000,
    "capacity": 100_000,
    "n_step": 3,
    "lr": 5e-4,
    "lr_final": 0.1,
    "adam_eps": 1e-5,
    "grad_clip": 10.0,
    "explore_final": 0.02,
    "explore_steps": 50_000,
    "target_every": 500,
    "hidden": 128,
    "eval_every": 100_000,
    "eval_episodes": 20,
}
VECTOR_DQN: Values = {
    "steps": 100_000,
    "lanes": 8,
    "batch": 64,
    "update_every": 4,
    "warmup": 2_000,
    "capacity": 50_000,
    "n_step": 3,
    "lr": 5e-4,
    "adam_eps": 1e-6,
    "explore_final": 0.05,
    "explore_steps": 10_000,
    "target_every": 250,
    "hidden": 128,
    "alpha": 0.0,
    "eval_every": 20_000,
    "eval_episodes": 20,
}

GAMES: dict[str, dict[str, Values]] = {
    "pong": {"cpu": {"env_settings": {"profile": "standard", "actions": 4}, "double": False}},
    "freeway": {"paper": {"explore_steps": 100_000}},
    "roadrunner": {"cpu": {"env_settings": {"profile": "standard", "actions": 6}}},
}
"""What a game changes in a preset."""


def game_of(env_id: str) -> str:
    """`PongNoFrameskip-v4` and `ALE/Pong-v5` are both pong."""
    name = env_id.split("/")[-1].split("-")[0]
    return name.removesuffix("NoFrameskip").removesuffix("Deterministic").lower()


def family(env_id: str, image: bool) -> str:
    """Which presets suit the environment: atari, minatar or vector."""
    if env_id.startswith("MinAtar/"):
        return "minatar"
    return "atari" if image else "vector"


def dqn_preset(env_id: str, image: bool, name: str | None = None) -> Values:
    """The values of a preset for this environment (default: `cpu` for Atari, the only one elsewhere)."""
    kind = family(env_id, image)
    if kind == "atari":
        table = {"cpu": CPU_DQN, "paper": PAPER_DQN}
        chosen = name or "cpu"
        if chosen not in table:
            raise unknown("preset", chosen, table)
        standard: Values = {"env_settings": {"profile": "standard"}} if chosen == "cpu" else {}
        return {**table[chosen], **standard, **GAMES.get(game_of(env_id), {}).get(chosen, {})}
    if name not in (None, "cpu"):
        raise UserError(f"preset {name!r} is for the paper's Atari games; {env_id} has the preset 'cpu' only")
    return MINATAR_DQN if kind == "minatar" else VECTOR_DQN
