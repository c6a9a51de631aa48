"""Toy agents whose certificates have closed forms; the truth never comes from the code under test."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import optimize, special, stats
from torch import nn

from smoothrl.agents import Agent, AgentInfo, Normaliser, Smoothing
from smoothrl.certificates.samplers import sample_counts, sample_outputs
from smoothrl.noise import GeneratorNoise

Array = npt.NDArray[np.float64]
phi = special.ndtr
z = special.ndtri


# --- the production sampling path -------------------------------------------------------------------


class Map(nn.Module):
    """Any function of a batch of observations as a network."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def agent(
    function: Callable[[torch.Tensor], torch.Tensor],
    dim: int,
    outputs: int,
    sigma: float,
    *,
    policy: bool = False,
) -> Agent:
    """A toy as a real agent: noise is drawn by the code that certifies trained ones."""
    info = AgentInfo(
        method="toy",
        env_id="toy",
        action_kind="continuous" if policy else "discrete",
        actions=outputs,
        observation_shape=(dim,),
    )
    return Agent(Map(function), Normaliser(), info, Smoothing("median" if policy else "vote", sigma, 100))


def counts_of(toy: Agent, state: list[float], repeats: int, samples: int, seed: int) -> npt.NDArray[np.int64]:
    """Votes of `repeats` independent certificates at one state."""
    noise = GeneratorNoise(torch.Generator().manual_seed(seed))
    states = torch.tensor([state]).expand(repeats, -1)

    def votes(block: torch.Tensor, m: int, source: GeneratorNoise) -> torch.Tensor:
        return toy.sample_outputs(block, source, samples=m).argmax(dim=-1)

    return sample_counts(votes, states, samples, toy.info.actions, noise, max_batch=1 << 20)


def outputs_of(toy: Agent, state: Array, repeats: int, samples: int, seed: int) -> Array:
    """(repeats, samples, outputs) of independent certificates at one state."""
    noise = GeneratorNoise(torch.Generator().manual_seed(seed))
    states = torch.tensor(np.asarray(state), dtype=torch.float32).expand(repeats, -1)

    def draw(block: torch.Tensor, m: int, source: GeneratorNoise) -> torch.Tensor:
        return toy.sample_outputs(block, source, samples=m)

    return sample_outputs(draw, states, samples, noise, max_batch=1 << 20)


# --- toy 1: two actions, linear ---------------------------------------------------------------------


@dataclass(frozen=True)
class LinearTwoAction:
    p_action1: float
    true_radius: float


def linear_two_action(w: list[float], b: float, s: list[float], sigma: float) -> LinearTwoAction:
    """Q(s, 1) - Q(s, 0) = w.s + b: the vote for 1 has probability Phi(u / (sigma ||w||))."""
    weights = np.asarray(w, dtype=float)
    margin, length = float(weights @ np.asarray(s, dtype=float) + b), float(np.linalg.norm(weights))
    return LinearTwoAction(float(phi(margin / (sigma * length))), abs(margin) / length)


def linear_agent(w: list[float], b: float, sigma: float) -> Agent:
    weights = torch.tensor(w)

    def q_values(x: torch.Tensor) -> torch.Tensor:
        margin = x @ weights + b
        return torch.stack([torch.zeros_like(margin), margin], dim=1)

    return agent(q_values, len(w), 2, sigma)


def vote_reliability(margin: float, length: float, sigma: float, m: int, shift: Array) -> Array:
    """P(more than half of m votes are right) after the worst perturbation of length `shift`."""
    p = phi((abs(margin) / length - shift) / sigma)
    return np.asarray(stats.binom.sf(m // 2, m, p))


# --- toy 2: slabs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThreeSlab:
    pA: float
    pB: float
    true_radius: float
    formula_radius: float


def three_slab(t1: float, t2: float, u: float, sigma: float) -> ThreeSlab:
    """A where x <= t1, B where x >= t2, filler between; moving towards B ties at the middle."""
    p_a, p_b = float(phi((t1 - u) / sigma)), float(phi((u - t2) / sigma))
    return ThreeSlab(p_a, p_b, (t1 + t2) / 2 - u, sigma / 2 * float(z(p_a) - z(p_b)))


def slab_agent(t1: float, t2: float, sigma: float, fillers: int) -> Agent:
    """Filler mass shared by `fillers` actions by the angle of two coordinates orthogonal to x."""

    def q_values(x: torch.Tensor) -> torch.Tensor:
        angle = (torch.atan2(x[:, 2], x[:, 1]) / (2 * math.pi) + 0.5).clamp(0.0, 1.0 - 1e-6)
        action = 2 + (angle * fillers).long()
        action = torch.where(x[:, 0] <= t1, 0, torch.where(x[:, 0] >= t2, 1, action))
        return nn.functional.one_hot(action, 2 + fillers).float()

    return agent(q_values, 3, 2 + fillers, sigma)


def bins_agent(thresholds: list[float], sigma: float) -> Agent:
    """Action = index of x among thresholds."""
    edges = torch.tensor(thresholds)

    def q_values(x: torch.Tensor) -> torch.Tensor:
        action = (x[:, :1] > edges).sum(dim=1)
        return nn.functional.one_hot(action, len(thresholds) + 1).float()

    return agent(q_values, 1, len(thresholds) + 1, sigma)


def bins_probabilities(thresholds: list[float], x: float, sigma: float) -> Array:
    edges = np.concatenate([[-np.inf], thresholds, [np.inf]])
    return np.asarray(np.diff(phi((edges - x) / sigma)))


def bins_radius(thresholds: list[float], x: float, sigma: float) -> float:
    """Shortest move after which another action leads, by root finding on each side."""
    top = int(bins_probabilities(thresholds, x, sigma).argmax())

    def lead(d: float) -> float:
        p = bins_probabilities(thresholds, x + d, sigma)
        return float(p[top] - np.delete(p, top).max())

    roots = []
    for far in (-8.0 * sigma, 8.0 * sigma):
        ends = np.linspace(0.0, far, 400)
        leads = np.array([lead(d) for d in ends])
        lost = np.flatnonzero(leads < 0.0)
        if lost.size:
            roots.append(abs(optimize.brentq(lead, ends[lost[0] - 1], ends[lost[0]])))
    return min(roots, default=math.inf)


# --- toy 3: a symmetric band ------------------------------------------------------------------------


def band_agent(c: float, sigma: float) -> Agent:
    """Action 1 where |x| < c."""

    def q_values(x: torch.Tensor) -> torch.Tensor:
        inside = (x[:, 0].abs() < c).long()
        return nn.functional.one_hot(inside, 2).float()

    return agent(q_values, 1, 2, sigma)


def band_radius(c: float, sigma: float) -> float:
    """Root of P(1) = 1/2 as the centre moves."""

    def excess(d: float) -> float:
        return float(phi((c - d) / sigma) - phi((-c - d) / sigma)) - 0.5

    return float(optimize.brentq(excess, 0.0, c + 10 * sigma))


# --- toy 4: the multinomial oracle ------------------------------------------------------------------

ORACLES: dict[str, list[float]] = {
    ".5/.5": [0.5, 0.5],
    ".55/.45": [0.55, 0.45],
    ".7/.3": [0.7, 0.3],
    ".9/.1": [0.9, 0.1],
    ".97/.03": [0.97, 0.03],
    ".99/.01": [0.99, 0.01],
    "thirds": [0.34, 0.33, 0.33],
    ".5/.49/.01": [0.5, 0.49, 0.01],
    ".6+5x.08": [0.6] + [0.08] * 5,
    ".99+5x.002": [0.99] + [0.002] * 5,
    "18 uniform": [1 / 18] * 18,
    ".4+17x": [0.4] + [0.6 / 17] * 17,
    ".9+17x": [0.9] + [0.1 / 17] * 17,
}


def oracle_radius(p: list[float], sigma: float = 1.0) -> Array:
    """True radius of each action as the certified one; not positive unless it is the unique best."""
    probabilities = np.asarray(p)
    best_other = np.array([np.delete(probabilities, a).max() for a in range(len(p))])
    return np.asarray(sigma / 2 * (z(probabilities) - z(best_other)))


# --- toy 5: linear policies -------------------------------------------------------------------------


def linear_policy_adiv(weights: list[list[float]]) -> float:
    """||W||_F, for every epsilon."""
    return float(np.linalg.norm(np.asarray(weights, dtype=float)))


def linear_policy_adiv_paper(W: list[list[float]], eps: float, sigma: float, m: int, alpha: float) -> float:
    """||W||_F (1 + sigma z(.5 + D)/eps): infinitely many samples at the paper's inflated levels."""
    delta = np.sqrt(np.log(1 / alpha) / (2 * m))
    return linear_policy_adiv(W) * (1 + sigma * float(z(0.5 + delta)) / eps)


def policy_agent(weights: Array, sigma: float, squash: Callable[[torch.Tensor], torch.Tensor]) -> Agent:
    """a = squash(W s), squash increasing in each coordinate."""
    matrix = torch.tensor(weights, dtype=torch.float32)
    return agent(lambda x: squash(x @ matrix.T), weights.shape[1], weights.shape[0], sigma, policy=True)


# --- toy 6: the two-step switch game ----------------------------------------------------------------


def switch_game(c: float, b: float) -> dict[str, float]:
    """Return 1 iff z2 sign(z1) > -c; the adaptive optimum waits for z1 and spends all on z2."""
    return {"clean": float(phi(c)), "adaptive_worst": float(phi(c - b)), "bound": float(phi(z(phi(c)) - b))}


def switch_game_static(c: float, b: float, points: int = 20001) -> float:
    """The best attack fixed in advance: a grid over directions (d1, d2) of length b."""
    angle = np.linspace(0.0, 2 * np.pi, points)
    d1, d2 = b * np.cos(angle), b * np.sin(angle)
    return float((phi(d1) * phi(c + d2) + phi(-d1) * phi(c - d2)).min())


# --- toy 7: monotone functions of one Gaussian ------------------------------------------------------


def wang_plugin(returns: np.ndarray, floor: float, shift: float) -> float:
    """The Wang-transformed mean of the empirical law itself: no confidence, for cross-checks."""
    ordered = np.sort(returns)
    n = len(ordered)
    survival = 1.0 - np.arange(n) / n
    return float(floor + (np.diff(ordered, prepend=floor) * phi(z(survival) - shift)).sum())


def switch_returns(c: float, b: float, episodes: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Returns under the adaptive optimum with budget b (b = 0: clean play)."""
    first, second = rng.standard_normal((2, *episodes))
    attacked = second - b * np.sign(first)
    return (attacked * np.sign(first) > -c).astype(float)


@dataclass(frozen=True)
class Monotone:
    """Return h(g), g standard normal; the worst attack of budget B lowers g by B/sigma."""

    h: Callable[[Array], Array]
    floor: float | None
    threshold: float

    def quantile(self, p: float, shift: float) -> float:
        return float(self.h(np.array([z(p) - shift]))[0])

    def tail(self, shift: float) -> float:
        """P(F >= threshold) under attack, by bisection for the edge of h."""
        low, high = -12.0, 12.0
        for _ in range(80):
            middle = 0.5 * (low + high)
            reached = self.h(np.array([middle]))[0] >= self.threshold
            low, high = (low, middle) if reached else (middle, high)
        return float(phi(-high - shift))

    def cvar(self, b: float, shift: float, points: int = 200_000) -> float:
        """Mean of the worst share b under attack; b = 1 is the mean."""
        u = b * (np.arange(points) + 0.5) / points
        return float(self.h(z(u) - shift).mean())


MONOTONE: dict[str, Monotone] = {
    "gaussian": Monotone(lambda g: 31 + 1.2 * g, None, 30.0),
    "clipped": Monotone(lambda g: np.clip(31 + 1.2 * g, 0, 34), 0.0, 30.0),
    "integer": Monotone(lambda g: np.floor(np.clip(28.3 + 2 * g, 0, 34)), 0.0, 27.0),
    "two-point": Monotone(lambda g: np.where(g > -1.3, 21.0, -21.0), -21.0, 21.0),
}
