"""The grammar of method names: `s-ppo+sgld` is PPO, median smoothing in training, SGLD regulariser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smoothrl.errors import UserError, unknown


@dataclass(frozen=True)
class Ingredient:
    """One part that plugs into an algorithm."""

    name: str
    role: str
    """`regulariser` changes the loss, `adversary` the observations of the training."""
    summary: str


@dataclass(frozen=True)
class Algorithm:
    """What learns, and the ingredients it takes."""

    name: str
    summary: str
    smoothed: str
    """What `s-` in front means."""
    ingredients: tuple[Ingredient, ...]


PPO = Algorithm(
    "ppo",
    "proximal policy optimisation, continuous actions",
    "median smoothing when collecting and when updating",
    (
        Ingredient("sgld", "regulariser", "SA-PPO: the policy moves little inside the ball (SGLD search)"),
        Ingredient("convex", "regulariser", "SA-PPO: the same, bounded by IBP and CROWN"),
        Ingredient("radial", "regulariser", "RADIAL: the worst surrogate under interval bounds"),
        Ingredient("wocar", "regulariser", "WocaR: a worst-case Q beside the advantage, and SGLD"),
        Ingredient("atla", "adversary", "alternating training with a learned observation adversary"),
        Ingredient("pa-atla", "adversary", "the adversary directs the action; FGSM finds the observation"),
    ),
)
DQN = Algorithm(
    "dqn",
    "deep Q-learning, discrete actions",
    "a denoiser trained in front of a frozen Q-network (--base)",
    (
        Ingredient("sa", "regulariser", "SA-DQN: hinge on certified action margins"),
        Ingredient("radial", "regulariser", "RADIAL: overlap of the interval bounds"),
        Ingredient("wocar", "regulariser", "WocaR: a worst-case Q-network beside the nominal one"),
    ),
)
ALGORITHMS = {a.name: a for a in (PPO, DQN)}


@dataclass(frozen=True)
class Method:
    """What a method's name says."""

    algorithm: str
    smoothed: bool = False
    regulariser: str | None = None
    adversary: str | None = None

    @property
    def name(self) -> str:
        parts = [self.algorithm, self.regulariser, self.adversary]
        return ("s-" if self.smoothed else "") + "+".join(p for p in parts if p)

    @property
    def robust(self) -> bool:
        """Whether an ingredient trains against an epsilon."""
        return self.regulariser is not None or self.adversary is not None

    def __str__(self) -> str:
        return self.name


def parse(name: str) -> Method:
    """The method a name says; near names are offered for an unknown one."""
    head, *rest = name.strip().lower().split("+")
    smoothed = head.startswith("s-")
    algorithm = ALGORITHMS.get(head.removeprefix("s-"))
    if algorithm is None:
        raise unknown("method", name, names())
    if "rs" in rest:
        raise UserError(
            f"{name!r}: +rs is smoothing added at test time only; train {name.lower().replace('+rs', '')!r} "
            "and evaluate it with --smooth"
        )
    by_name = {i.name: i for i in algorithm.ingredients}
    chosen: dict[str, str] = {}
    for part in rest:
        if part not in by_name:
            raise unknown(f"ingredient of {algorithm.name}", part, by_name)
        role = by_name[part].role
        if role in chosen:
            raise UserError(
                f"{name!r} names two ingredients of one kind, {chosen[role]!r} and {part!r} (both {role}); "
                "keep one"
            )
        chosen[role] = part
    return Method(algorithm.name, smoothed, chosen.get("regulariser"), chosen.get("adversary"))


def _methods() -> Iterator[Method]:
    for algorithm in ALGORITHMS.values():
        for smoothed in (False, True):
            yield Method(algorithm.name, smoothed)
            for part in algorithm.ingredients:
                is_regulariser = part.role == "regulariser"
                yield Method(
                    algorithm.name,
                    smoothed,
                    part.name if is_regulariser else None,
                    None if is_regulariser else part.name,
                )


def names() -> list[str]:
    """Every method with at most one ingredient (others may be combined freely, one of each role)."""
    return [m.name for m in _methods()]


def catalogue() -> list[tuple[str, str]]:
    """(name, what it is) of every method, for `smoothrl list methods`."""
    rows = []
    for method in _methods():
        algorithm = ALGORITHMS[method.algorithm]
        parts = [algorithm.summary]
        if method.smoothed:
            parts.append(algorithm.smoothed)
        wanted = {method.regulariser, method.adversary}
        parts += [i.summary for i in algorithm.ingredients if i.name in wanted]
        rows.append((method.name, "; ".join(parts)))
    return rows
