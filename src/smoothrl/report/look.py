"""One look for all pictures: the hue says the base method, the line says how it is smoothed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

HUES = {
    "": "#4c78d8",
    "sgld": "#e0a21b",
    "sa": "#e0a21b",
    "radial": "#e4593f",
    "wocar": "#2fa79b",
    "atla": "#9a5fd6",
    "pa-atla": "#4aa54e",
    "convex": "#9a6b4f",
    "s-pgd": "#d7599b",
    "no-denoiser": "#7d8794",
}
"""Middle tones that read on white and on near-black."""
GROUP_HUES = {"ours": "#3f74d8", "smoothed": "#d98a1f", "plain": "#c2475b"}
OTHER = ("#5b8f2f", "#b0553a", "#7f6bd0", "#2b8ab5", "#b3832a")


def part(agent: str) -> str:
    """The ingredient in a name, e.g. `sgld` of `s-ppo+sgld`."""
    pieces = agent.partition(" ")[0].split("+")[1:]
    return "+".join(p for p in pieces if p != "rs")


Palette = Callable[[str], str]
"""The colour of a method, the same in every picture of a page."""


def palette(agents: Iterable[str]) -> Palette:
    """Colours by ingredient; by the way of smoothing where all methods of a family share one ingredient."""
    parts: dict[bool, set[str]] = {}
    for agent in agents:
        parts.setdefault("dqn" in agent, set()).add(part(agent))
    by_group = all(len(found) == 1 for found in parts.values())
    return partial(colour, by_group=by_group)


def colour(agent: str, *, by_group: bool = False) -> str:
    """The hue of a method's ingredient, or of its way of smoothing."""
    name = part(agent)
    if name not in HUES or " @" in agent:
        return OTHER[sum(map(ord, agent)) % len(OTHER)]
    return GROUP_HUES[group(agent)] if by_group else HUES[name]


def group(agent: str) -> str:
    """ours (smoothed in training), smoothed (at test time only) or plain."""
    if agent.startswith("s-"):
        return "ours"
    return "smoothed" if "+rs" in agent else "plain"


GROUPS = {
    "ours": "smoothed in training",
    "smoothed": "smoothed at test time only (+rs)",
    "plain": "not smoothed",
}


def dash(agent: str) -> str:
    """Solid for smoothed training, long dashes for +rs, dots for plain agents."""
    return {"ours": "", "smoothed": "7 4", "plain": "2 3"}[group(agent)]


METRIC_NAMES = {
    "clean": "clean return",
    "mad": "MAD",
    "s-mad": "S-MAD",
    "min-rs": "Min-RS",
    "s-min-rs": "S-Min-RS",
    "optimal": "Optimal",
    "s-optimal": "S-Optimal",
    "pa-ad": "PA-AD",
    "s-pa-ad": "S-PA-AD",
    "pgd": "PGD",
    "s-pgd": "S-PGD",
    "random": "random",
    "fgsm": "FGSM",
    "worst": "worst attack",
    "suite": "worst of the suite",
    "certified_radius": "certified radius",
    "adiv": "action divergence (ADIV)",
    "reward_lower_bound": "certified return bound",
    "seconds_per_step": "seconds a decision",
}
ATTACKS = (
    "mad", "s-mad", "min-rs", "s-min-rs", "optimal", "s-optimal", "pa-ad", "s-pa-ad", "pgd", "s-pgd",
    "random", "fgsm", "worst", "suite", "targeted",
)  # fmt: skip


def metric_name(metric: str) -> str:
    return METRIC_NAMES.get(metric, metric)
