"""What the rest of the house needs to know about an environment, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gymnasium import spaces


@dataclass(frozen=True)
class EnvSpec:
    """One environment with its settings: enough to make it again and to check an agent against it."""

    id: str
    """Environment id as the user wrote it."""
    obs_shape: tuple[int, ...]
    """Shape of one raw observation (images: channels first)."""
    obs_dtype: str
    """NumPy name of the observation's type."""
    obs_scale: float
    """Networks see the observation divided by this: 255 for uint8 images, 1 for all else."""
    scale: str
    """In which units epsilon and sigma count for this environment."""
    action: Literal["discrete", "continuous"]
    """Kind of action."""
    action_size: int
    """Number of actions, or dimension of the action vector."""
    action_low: tuple[float, ...]
    """Lower bounds (continuous; empty for discrete). Actions are never clipped here."""
    action_high: tuple[float, ...]
    """Upper bounds."""
    horizon: int | None
    """Agent steps after which an episode is truncated, None for never."""
    backend: str
    """`envpool`, `gymnasium`, `ale` or `numpy`: seeds mean the same only within one backend."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments that make the same environment again: `make(spec.id, ..., **spec.settings)`."""

    @property
    def is_image(self) -> bool:
        """Observations are uint8 frames, channels first."""
        return self.obs_dtype == "uint8" and len(self.obs_shape) == 3


def describe(
    env_id: str,
    observation: spaces.Box,
    action: spaces.Discrete | spaces.Box,
    *,
    horizon: int | None,
    backend: str,
    settings: dict[str, Any],
    obs_scale: float = 1.0,
) -> EnvSpec:
    """The EnvSpec of these spaces."""
    image = observation.dtype == "uint8" and len(observation.shape) == 3
    size, low, high = _action_numbers(action)
    return EnvSpec(
        id=env_id,
        obs_shape=tuple(observation.shape),
        obs_dtype=str(observation.dtype),
        obs_scale=obs_scale,
        scale="pixels in [0, 1]" if image else "normalised observation",
        action="discrete" if isinstance(action, spaces.Discrete) else "continuous",
        action_size=size,
        action_low=low,
        action_high=high,
        horizon=horizon,
        backend=backend,
        settings=settings,
    )


def _action_numbers(
    action: spaces.Discrete | spaces.Box,
) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    if isinstance(action, spaces.Discrete):
        return int(action.n), (), ()
    low, high = action.low.ravel().tolist(), action.high.ravel().tolist()
    return len(low), tuple(low), tuple(high)
