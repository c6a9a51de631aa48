"""smoothrl: train, attack and certify agents whose observations someone tampers with."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from smoothrl.agents import Agent, Smoothing, load_agent, save_agent
    from smoothrl.interop import SmoothedPolicy, wrap_attack

_LAZY = {
    "Agent": "smoothrl.agents",
    "Smoothing": "smoothrl.agents",
    "load_agent": "smoothrl.agents",
    "save_agent": "smoothrl.agents",
    "SmoothedPolicy": "smoothrl.interop",
    "wrap_attack": "smoothrl.interop",
}
__all__ = [
    "__version__",
    "Agent",
    "Smoothing",
    "load_agent",
    "save_agent",
    "SmoothedPolicy",
    "wrap_attack",
]


def __getattr__(name: str) -> Any:
    """Torch is imported only when something that needs it is asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'smoothrl' has no attribute {name!r}")
