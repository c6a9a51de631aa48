"""Hyper-parameters as data: the paper's for Hopper and Walker2d, defaults for every other environment."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from smoothrl.errors import UserError, unknown
from smoothrl.learners.methods import Method

Growth = Literal["linear", "smooth", "exponential"]


@dataclass(frozen=True)
class PPOConfig:
    """Everything that decides the numbers of a PPO training."""

    method: str
    """The method's name; its parts choose smoothing, regulariser and adversary."""
    env_id: str
    """Environment."""
    seeds: tuple[int, ...] = (0,)
    """One pool member a seed."""
    steps: int = 2_000_000
    """Environment steps a seed (the agent's; an adversary plays as many again)."""
    protocol: str = "sound"
    """Which record of switches."""
    env_settings: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""

    sigma: float = 0.2
    """Standard deviation of the smoothing noise in training (`s-` methods), normalised-observation units."""
    train_samples: int = 20
    """Noise samples of one decision in training."""
    test_samples: int = 100
    """Noise samples the saved agent acts with."""
    common_noise: bool = False
    """Reuse the collection's noise in the update instead of fresh draws in every minibatch."""

    horizon: int = 2048
    """Environment steps of one iteration, a seed."""
    lanes: int = 1
    """Environments side by side, a seed; each plays horizon / lanes steps an iteration."""
    minibatches: int = 32
    """Minibatches an epoch."""
    epochs: int = 10
    """Passes over an iteration's data, policy."""
    value_epochs: int = 10
    """Passes over an iteration's data, value network."""
    discount: float = 0.99
    """gamma."""
    trace: float = 0.95
    """lambda of the advantage estimate."""
    clip: float = 0.2
    """Clip range of the ratio."""
    value_clip: float | None = None
    """Clip range of the value's move, None for none."""
    policy_lr: float = 3e-4
    """Adam's rate for the policy."""
    value_lr: float = 2.5e-4
    """Adam's rate for the value network."""
    anneal: bool = True
    """Rates fall linearly to zero, a step an iteration."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of every network."""
    observation_clip: float = 10.0
    """Normalised observations are clipped to +- this."""
    reward_clip: float = 10.0
    """Normalised rewards are clipped to +- this."""

    epsilon: float = 0.075
    """linf budget that robust ingredients train against, normalised-observation units."""
    robust_weight: float = 1.0
    """Weight of the SGLD or convex term."""
    sgld_steps: int = 10
    """Steps of the SGLD search."""
    growth: Growth = "linear"
    """How epsilon grows over the training."""
    worst_weight: float = 0.8
    """WocaR: weight of the worst-case advantage at the end of training."""
    worst_power: float = 1.0
    """WocaR: the weight is (worst_weight * progress) ** worst_power."""
    worst_lr: float = 4e-4
    """WocaR: Adam's rate of the worst-case Q."""

    adversary_lr: float = 3e-3
    """Adam's rate for the adversary."""
    adversary_value_lr: float = 3e-5
    """Adam's rate for the adversary's value network."""
    adversary_clip: float = 0.2
    """Clip range of the adversary's ratio."""
    adversary_entropy: float = 0.0
    """Weight of the adversary's entropy bonus."""

    @property
    def iterations(self) -> int:
        return self.steps // self.horizon

    @property
    def pool(self) -> int:
        return len(self.seeds)


Changes = Mapping[str, Any]

NOT_NEGATIVE = (
    *("policy_lr", "value_lr", "adversary_lr", "adversary_value_lr", "worst_lr"),
    *("entropy", "adversary_entropy", "robust_weight", "worst_weight", "worst_power"),
)

HOPPER: Changes = {"policy_lr": 3e-4, "value_lr": 2.5e-4}
WALKER: Changes = {"policy_lr": 4e-4, "value_lr": 3e-4, "value_clip": 0.2}
LONG: Changes = {"steps": 5_000_000}

ENVIRONMENTS: dict[str, Changes] = {
    "Hopper": HOPPER,
    "Walker2d": WALKER,
    "HalfCheetah": {**WALKER, "epsilon": 0.15},
    "Ant": {**WALKER, "epsilon": 0.15},
    "Humanoid": {**WALKER, "sigma": 0.4},
    "InvertedPendulum": {**HOPPER, "steps": 102_400},
    "Pendulum": {**HOPPER, "steps": 204_800, "discount": 0.9},
}
"""By the environment's name without its version."""

INGREDIENTS: dict[str, Changes] = {
    "sgld": {"robust_weight": 1.0},
    "convex": {"robust_weight": 1.0},
    "radial": {"growth": "smooth"},
    "wocar": {"robust_weight": 0.1},
    "atla": {**LONG, "entropy": 0.01},
    "pa-atla": {
        **LONG,
        "entropy": 0.01,
        "value_lr": 3e-4,
        "adversary_lr": 1e-2,
        "adversary_value_lr": 1e-3,
        "adversary_clip": 0.4,
        "adversary_entropy": 3e-4,
    },
}
"""By ingredient, as the reference has them for Hopper."""

_WALKER_ADVERSARY: Changes = {
    "entropy": 3e-4,
    "value_lr": 3e-4,
    "adversary_lr": 1e-3,
    "adversary_value_lr": 1e-4,
    "adversary_clip": 0.2,
    "adversary_entropy": 1e-5,
}
_WALKER_INGREDIENTS: dict[str, Changes] = {
    "sgld": {"robust_weight": 0.1},
    "convex": {"robust_weight": 0.1},
    "radial": {"growth": "exponential"},
    "wocar": {"worst_power": 3.0},
    "atla": _WALKER_ADVERSARY,
    "pa-atla": _WALKER_ADVERSARY,
}
SPECIAL: dict[tuple[str, str], Changes] = {
    (env, part): changes
    for env in ("Walker2d", "HalfCheetah", "Ant", "Humanoid")
    for part, changes in _WALKER_INGREDIENTS.items()
}
"""By environment and ingredient: Walker2d's table, also the default of the larger bodies."""


def base_name(env_id: str) -> str:
    """`Hopper-v2` -> `Hopper`."""
    return re.sub(r"-v\d+$", "", env_id)


def configure(method: Method, env_id: str, seeds: Sequence[int], overrides: Changes) -> PPOConfig:
    """The preset of this method and environment, then the user's own values; unknown names are refused."""
    overrides = {k: tuple(v) if isinstance(v, list) else v for k, v in overrides.items()}
    known = {f.name: str(f.type) for f in dataclasses.fields(PPOConfig)}
    for name, value in overrides.items():
        if name not in known:
            raise unknown("PPO setting", name, known)
        if not _fits(value, known[name]):
            raise UserError(f"PPO setting {name} is of type {known[name]}, got {value!r}")
    if "epsilon" in overrides and not method.robust:
        raise UserError(
            f"epsilon is the budget of a robust ingredient and {method.name} has none; try {method.name}+sgld"
        )
    if "sigma" in overrides and not method.smoothed:
        raise UserError(
            f"sigma is the noise of smoothed training and {method.name} has none; train s-{method.name}"
        )
    name = base_name(env_id)
    found: dict[str, Any] = dict(ENVIRONMENTS.get(name, {}))
    for part in (method.regulariser, method.adversary):
        if part is not None:
            found |= {**INGREDIENTS[part], **SPECIAL.get((name, part), {})}
    if name in ("InvertedPendulum", "Pendulum"):
        found["steps"] = ENVIRONMENTS[name]["steps"]
    found |= overrides
    config = PPOConfig(method.name, env_id, tuple(seeds), **found)
    check(config, method)
    return config


def _fits(value: Any, kind: str) -> bool:
    """Whether the value is of the type that the setting is declared with."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "int":
        return number and isinstance(value, int)
    if kind in ("float", "float | None"):
        return number or (value is None and kind != "float")
    if kind == "tuple[int, ...]":
        return isinstance(value, tuple) and all(_fits(v, "int") for v in value)
    if kind == "Growth":
        return value in get_args(Growth)
    return isinstance(value, {"bool": bool, "str": str}.get(kind, object))


def check(config: PPOConfig, method: Method) -> None:
    """Refuse numbers that cannot work, before any work."""
    if not config.seeds or len(set(config.seeds)) != config.pool or min(config.seeds) < 0:
        raise UserError(f"seeds must be different whole numbers from 0 up, got {list(config.seeds)}")
    if method.smoothed and not (config.sigma > 0 and math.isfinite(config.sigma)):
        raise UserError(
            f"{method.name} smooths with Gaussian noise and needs --sigma above 0, got {config.sigma:g}; "
            f"without noise train {method.name.removeprefix('s-')!r}"
        )
    if config.train_samples < 1 or config.test_samples < 1:
        raise UserError("at least one noise sample is needed in training and at test time")
    if not (config.epsilon >= 0 and math.isfinite(config.epsilon)):
        raise UserError(f"epsilon must be a finite number from 0 up, got {config.epsilon:g}")
    _check_sizes(config)
    if not config.hidden or min(config.hidden) < 1:
        raise UserError(f"hidden must name layers of at least one unit, got {config.hidden}")
    for name in NOT_NEGATIVE:
        value = getattr(config, name)
        if not (value >= 0 and math.isfinite(value)):
            raise UserError(f"{name} must be a finite number from 0 up, got {value:g}")
    if not (0 < config.discount <= 1 and 0 <= config.trace <= 1):
        raise UserError("discount must lie in (0, 1] and trace in [0, 1]")
    for name in ("clip", "adversary_clip", "value_clip", "observation_clip", "reward_clip"):
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise UserError(f"{name} must be above 0, got {value:g}")


def _check_sizes(config: PPOConfig) -> None:
    positive = ("horizon", "lanes", "minibatches", "epochs", "value_epochs", "sgld_steps")
    for name in positive:
        if getattr(config, name) < 1:
            raise UserError(f"{name} must be at least 1, got {getattr(config, name)}")
    if config.horizon % config.lanes:
        raise UserError(f"horizon {config.horizon} is no multiple of lanes {config.lanes}")
    if config.horizon % config.minibatches or config.horizon // config.minibatches < 2:
        raise UserError(
            f"horizon {config.horizon} does not split into {config.minibatches} minibatches of 2 or more"
        )
    if config.iterations < 1:
        raise UserError(f"{config.steps} steps are less than one iteration of {config.horizon}")
