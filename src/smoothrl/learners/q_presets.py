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
    "steps": 300_000,
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
    "eval_every": 50_000,
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

ROBUST: dict[str, dict[str, Values]] = {
    "sa": {
        "paper": {"kappa": 0.005, "ramp_start": 0.25, "ramp_end": 5.5 / 6.0, "explore_steps": 1_500_000},
        "cpu": {"kappa": 0.005, "ramp_start": 0.25, "ramp_end": 0.9},
        "minatar": {"kappa": 0.02, "epsilon": 0.05, "ramp_start": 0.3, "ramp_end": 0.9},
        "vector": {"kappa": 0.02, "epsilon": 0.02, "ramp_start": 0.3, "ramp_end": 0.9},
    },
    "radial": {
        "paper": {
            "kappa": 0.8,
            "steps": 4_500_000,
            "batch": 128,
            "update_every": 4,
            "warmup": 50_000,
            "lr": 1.25e-4,
            "adam_eps": 1e-8,
            "alpha": 0.0,
            "double": True,
            "target_every": 1_000,
            "explore_final": 0.01,
            "explore_steps": 0,
            "explore_to_zero": False,
            "ramp_start": 1.0 / 90.0,
            "ramp_end": 8.0 / 9.0,
        },
        "cpu": {"kappa": 0.8, "ramp_start": 0.25, "ramp_end": 0.9},
        "minatar": {"kappa": 0.8, "epsilon": 0.05, "ramp_start": 0.3, "ramp_end": 0.9},
        "vector": {"kappa": 0.8, "epsilon": 0.02, "ramp_start": 0.3, "ramp_end": 0.9},
    },
    "wocar": {
        "paper": {
            "kappa": 0.005,
            "steps": 2_000_000,
            "warmup": 50_000,
            "explore_steps": 500_000,
            "ramp_start": 0.0,
            "ramp_end": 1.0,
            "worst_weight": 0.1,
        },
        "cpu": {"kappa": 0.005, "ramp_start": 0.25, "ramp_end": 0.9, "worst_weight": 0.1},
        "minatar": {"kappa": 0.02, "epsilon": 0.05, "ramp_start": 0.3, "ramp_end": 0.9, "worst_weight": 0.1},
        "vector": {"kappa": 0.02, "epsilon": 0.02, "ramp_start": 0.3, "ramp_end": 0.9, "worst_weight": 0.1},
    },
}
"""What a regulariser changes; epsilon is 1/255 on Atari."""
ROADRUNNER_PAPER: dict[str, Values] = {
    "sa": {"kappa": 0.01, "target_every": 32_000},
    "radial": {"adam_eps": 1.5e-4},
}
"""What RoadRunner changes in the preset `paper` of a regulariser."""

PAPER_SDQN: Values = {
    "steps": 300_000,
    "lanes": 1,
    "batch": 64,
    "update_every": 1,
    "warmup": 5_000,
    "capacity": 200_000,
    "lr": 1e-3,
    "explore_final": 0.05,
    "explore_steps": 0,
    "explore_to_zero": True,
    "checkpoint_every": 50_000,
    "sigma": 0.1,
    "epsilon": 0.05,
    "denoiser": "dncnn",
    "lambda_reconstruction": 1_000.0,
}
CPU_SDQN: Values = {
    "steps": 60_000,
    "lanes": 16,
    "batch": 32,
    "update_every": 3,
    "warmup": 5_000,
    "capacity": 60_000,
    "lr": 5e-3,
    "lr_final": 0.05,
    "adam_eps": 1e-8,
    "explore_final": 0.05,
    "explore_steps": 0,
    "explore_to_zero": True,
    "precision": "bf16",
    "eval_every": 30_000,
    "log_every": 5_000,
    "sigma": 0.1,
    "epsilon": 0.05,
    "denoiser_width": 16,
    "denoiser_depth": 4,
    "lambda_reconstruction": 1_000.0,
    "lambda_td": 100.0,
    "td_target": "base",
    "attack_steps": 3,
}
MINATAR_SDQN: Values = {
    "steps": 80_000,
    "lanes": 16,
    "batch": 64,
    "update_every": 16,
    "warmup": 5_000,
    "capacity": 100_000,
    "n_step": 1,
    "lr": 6e-3,
    "lr_final": 0.05,
    "adam_eps": 1e-6,
    "explore_final": 0.05,
    "explore_steps": 0,
    "explore_to_zero": True,
    "eval_every": 40_000,
    "eval_episodes": 20,
    "sigma": 0.2,
    "epsilon": 0.1,
    "denoiser_width": 32,
    "denoiser_depth": 3,
    "denoiser_factor": 1,
    "lambda_reconstruction": 1_000.0,
    "attack_steps": 3,
}
VECTOR_SDQN: Values = {
    "steps": 60_000,
    "lanes": 8,
    "batch": 64,
    "update_every": 8,
    "warmup": 2_000,
    "capacity": 50_000,
    "lr": 1e-3,
    "lr_final": 0.05,
    "adam_eps": 1e-6,
    "alpha": 0.0,
    "explore_final": 0.05,
    "explore_steps": 0,
    "explore_to_zero": True,
    "eval_every": 20_000,
    "eval_episodes": 20,
    "sigma": 0.1,
    "epsilon": 0.05,
    "denoiser": "mlp",
    "denoiser_width": 128,
    "denoiser_depth": 3,
    "attack_steps": 3,
}

SDQN_GAMES: dict[str, dict[str, Values]] = {
    "roadrunner": {
        "paper": {"sigma": 0.05, "epsilon": 0.03},
        "cpu": {"sigma": 0.05, "epsilon": 0.03},
    },
}

GAMES: dict[str, dict[str, Values]] = {
    "pong": {
        "cpu": {
            "env_settings": {"profile": "standard", "actions": 4},
            "double": False,
            "noise": 0.1,
            "noise_start": 0.52,
        }
    },
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


def robust_preset(env_id: str, image: bool, regulariser: str, name: str | None = None) -> Values:
    """The preset of plain DQN and what the regulariser changes in it."""
    kind = family(env_id, image)
    chosen = (name or "cpu") if kind == "atari" else kind
    values = {**dqn_preset(env_id, image, name), "noise": 0.0, **ROBUST[regulariser][chosen]}
    if (game_of(env_id), chosen) == ("roadrunner", "paper"):
        values |= ROADRUNNER_PAPER.get(regulariser, {})
    return values


def s_dqn_preset(env_id: str, image: bool, name: str | None = None) -> Values:
    """The same for S-DQN; the environment's settings come from the base agent."""
    kind = family(env_id, image)
    if kind != "atari":
        if name not in (None, "cpu"):
            raise UserError(f"preset {name!r} is for the paper's Atari games; {env_id} has 'cpu' only")
        return MINATAR_SDQN if kind == "minatar" else VECTOR_SDQN
    table = {"cpu": CPU_SDQN, "paper": PAPER_SDQN}
    chosen = name or "cpu"
    if chosen not in table:
        raise unknown("preset", chosen, table)
    return {**table[chosen], **SDQN_GAMES.get(game_of(env_id), {}).get(chosen, {})}
