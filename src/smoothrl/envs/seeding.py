"""Seeds of lanes and of their episodes, derived by counting, never drawn from shared state."""

from __future__ import annotations

import numpy as np

from smoothrl.errors import UserError

SEED_LIMIT = 2**31
"""Seeds lie below this: the backends written in C++ store signed 32-bit numbers."""


def episode_seed(seed: int, lane: int, episode: int) -> int:
    """The seed of episode number `episode` of lane `lane` of a vector environment made with `seed`."""
    state = np.random.SeedSequence((seed, lane, episode)).generate_state(1)[0]
    return int(state) % SEED_LIMIT


def check_seed(seed: int) -> int:
    """`seed` as a plain int, or the reason why no backend can use it."""
    value = int(seed)
    if not 0 <= value < SEED_LIMIT:
        raise UserError(f"seed {seed} is outside 0 .. {SEED_LIMIT - 1}; pick one inside that range")
    return value
