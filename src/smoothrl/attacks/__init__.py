"""Attacks: batches of observations in, perturbed observations within a budget out."""

from smoothrl.attacks.adversary import (
    Adversary,
    AdversaryInfo,
    check_adversary,
    load_adversary,
    save_adversary,
)
from smoothrl.attacks.base import Attack, RandomAttack
from smoothrl.attacks.budget import NORMS, Budget, make_budget
from smoothrl.attacks.catalogue import ENTRIES, Overrides, catalogue, check_fit, make_attack, suitable
from smoothrl.attacks.gradient import GradientAttack, QAttack
from smoothrl.attacks.loop import Search

__all__ = [
    "ENTRIES",
    "NORMS",
    "Adversary",
    "AdversaryInfo",
    "Attack",
    "Budget",
    "GradientAttack",
    "Overrides",
    "QAttack",
    "RandomAttack",
    "Search",
    "catalogue",
    "check_adversary",
    "check_fit",
    "load_adversary",
    "make_attack",
    "make_budget",
    "save_adversary",
    "suitable",
]
