"""Errors that are meant for a person: what is wrong, why, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user asked for cannot be done; the message is one readable sentence or two."""


def near(name: str, choices: Iterable[str], count: int = 3) -> list[str]:
    """The choices that look most like `name`, ignoring case."""
    by_lower = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), list(by_lower), n=count, cutoff=0.4)
    return [by_lower[key] for key in found]


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """The error for an unknown name: the near ones, or all of them where there are few."""
    listed = sorted(choices)
    close = near(name, listed)
    if close:
        hint = f"did you mean {' or '.join(repr(c) for c in close)}?"
    elif len(listed) <= 12:
        hint = f"valid: {', '.join(listed)}."
    else:
        hint = f"there are {len(listed)} of them; `smoothrl list` shows all."
    return UserError(f"unknown {kind} {name!r}: {hint}")
