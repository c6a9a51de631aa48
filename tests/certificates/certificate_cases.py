"""Every certificate on every toy it must be sound on (`SOUND`), and what the harness must flag (`BAD`)."""

from __future__ import annotations

import certificate_toys as toys
import numpy as np
import numpy.typing as npt
import torch
from certificate_harness import Case, Outcome
from certificate_toys import phi, z
from scipy import stats

from smoothrl.certificates import (
    action_bound,
    crop_radius,
    deployed_radius,
    intervals,
    joint_radius,
    per_step_return_bound,
    radius,
    return_bound,
)
from smoothrl.certificates.samplers import decide_probability, decide_radius, looks

ALPHA = 0.05
EDGE = 1e-9
SOUND: dict[str, Case] = {}
BAD: dict[str, Case] = {}
Array = npt.NDArray[np.float64]


def wrong_radius(result: object, truth: Array) -> Outcome:
    """False: an issued certificate longer than the true radius of the action it names."""
    action, r, issued = result.action, result.radius, result.certified  # type: ignore[attr-defined]
    limit = np.where(issued, truth[np.maximum(action, 0)], np.inf)
    return Outcome(issued & (r > np.maximum(limit, 0.0) + EDGE), issued, result.alpha)  # type: ignore[attr-defined]


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**62))


# --- radius from counts (toy 4) ---------------------------------------------------------------------


def _oracle(p: list[float], mode: str) -> Case:
    def case(rng: np.random.Generator, reps: int) -> Outcome:
        truth = toys.oracle_radius(p)
        if mode == "cohen":
            first, second = rng.multinomial(20, p, reps), rng.multinomial(80, p, reps)
            return wrong_radius(radius(second, 1.0, ALPHA, "cohen", selection_counts=first), truth)
        return wrong_radius(radius(rng.multinomial(100, p, reps), 1.0, ALPHA, mode), truth)

    return case


def _stopped(p: list[float], target: float) -> Case:
    """The production sampler with early stopping, its radius at the stopping time."""

    def case(rng: np.random.Generator, reps: int) -> Outcome:
        cumulative = np.cumsum(p)

        def sample(states: Array, m: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
            drawn = np.searchsorted(cumulative, generator.random((len(states), m)))
            return np.minimum(drawn, len(p) - 1)

        decision = decide_radius(
            sample, np.zeros(reps), target, 1.0, len(p), rng, cap=200, futility=0.0, max_batch=1 << 20
        )
        return wrong_radius(decision.result, toys.oracle_radius(p))

    return case


for label, probabilities in toys.ORACLES.items():
    for kind in ("majority", "rank", "cohen", "anytime"):
        SOUND[f"radius {kind}, counts {label}"] = _oracle(probabilities, kind)
    SOUND[f"radius anytime stopped, counts {label}"] = _stopped(probabilities, 0.8)


# --- radius of toy agents (toys 1, 2, 3) --------------------------------------------------------------


def _agent_radius(build: object, state: list[float], truth: Array, mode: str) -> Case:
    def case(rng: np.random.Generator, reps: int) -> Outcome:
        toy = build()  # type: ignore[operator]
        counts = toys.counts_of(toy, state, reps, 100, _seed(rng))
        options = {}
        if mode == "cohen":
            options["selection_counts"] = toys.counts_of(toy, state, reps, 10, _seed(rng))
        return wrong_radius(radius(counts, toy.smoothing.sigma, ALPHA, mode, **options), truth)

    return case


for margin in (0.0, 0.4, 1.3):
    linear_truth = np.array([-1.0, abs(margin) / 5.0]) if margin else np.zeros(2)
    for kind in ("majority", "rank", "cohen", "anytime"):
        SOUND[f"radius {kind}, linear agent, margin {margin}"] = _agent_radius(
            lambda: toys.linear_agent([3.0, 4.0], 0.0, 0.2),
            [0.12 * margin, 0.16 * margin],
            linear_truth,
            kind,
        )
for fillers, x in ((1, 0.35), (2, 0.1)):
    slab_truth = np.array([(0.5 + 0.9) / 2 - x, -1.0, *[-1.0] * fillers])
    for kind in ("majority", "rank", "cohen", "anytime"):
        SOUND[f"radius {kind}, slabs with {fillers} fillers"] = _agent_radius(
            lambda fillers=fillers: toys.slab_agent(0.5, 0.9, 0.4, fillers), [x, 0.0, 0.0], slab_truth, kind
        )
BINS = [-1.0, 0.0, 0.6, 1.4]
for x in (0.3, 1.1):
    top = int(toys.bins_probabilities(BINS, x, 0.5).argmax())
    bins_truth = np.full(5, -1.0)
    bins_truth[top] = toys.bins_radius(BINS, x, 0.5)
    for kind in ("majority", "rank", "cohen", "anytime"):
        SOUND[f"radius {kind}, bins agent at {x}"] = _agent_radius(
            lambda: toys.bins_agent(BINS, 0.5), [x], bins_truth, kind
        )
for inside in (0.9, 0.6):
    c = float(z((1 + inside) / 2)) * 0.5
    band_truth = np.array([-1.0, toys.band_radius(c, 0.5)])
    for kind in ("majority", "rank", "cohen", "anytime"):
        SOUND[f"radius {kind}, band agent, p = {inside}"] = _agent_radius(
            lambda c=c: toys.band_agent(c, 0.5), [0.0], band_truth, kind
        )


def _deployed(p: float, m: int, eta: float) -> Case:
    """The m-vote agent at the worst perturbation of length r_eta must be right w.p. >= 1 - eta."""

    def case(rng: np.random.Generator, reps: int) -> Outcome:
        sigma, length = 0.2, 5.0
        margin = float(z(p)) * sigma * length
        toy = toys.linear_agent([3.0, 4.0], 0.0, sigma)
        counts = toys.counts_of(toy, [0.12 * margin, 0.16 * margin], reps, 100, _seed(rng))
        result = deployed_radius(radius(counts, sigma, ALPHA, "cohen", action=1), m, eta)
        issued = result.action >= 0
        reliable = toys.vote_reliability(margin, length, sigma, m, result.radius) >= 1 - eta - EDGE
        return Outcome(issued & ~reliable, issued, ALPHA)

    return case


for p_a, votes, eta_ in ((0.8, 100, 0.01), (0.95, 100, 0.01), (0.97, 5, 0.05)):
    SOUND[f"deployed radius, p = {p_a}, m = {votes}"] = _deployed(p_a, votes, eta_)


# --- CROP -------------------------------------------------------------------------------------------


def _crop(method: str, shape: str, fixed: bool) -> Case:
    """Q(x) in [0, 1], switch of the mean action at x = 0: true radius |x|."""

    def case(rng: np.random.Generator, reps: int) -> Outcome:
        x, sigma, kappa = 0.5, 1.0, 0.3

        def q_values(v: torch.Tensor) -> torch.Tensor:
            up = (v[:, 0] > 0).float() if shape == "half-space" else torch.special.ndtr(v[:, 0] / kappa)
            return torch.stack([1 - up, up, torch.full_like(up, 0.2)], dim=1)

        toy = toys.agent(q_values, 1, 3, sigma)
        drawn = toys.outputs_of(toy, np.array([x]), reps, 100, _seed(rng))
        result = crop_radius(drawn, (0.0, 1.0), sigma, ALPHA, method=method, action=1 if fixed else None)
        return wrong_radius(result, np.array([-1.0, x, -1.0]))

    return case


for bound in ("betting", "empirical-bernstein", "hoeffding"):
    for law in ("half-space", "smooth"):
        SOUND[f"crop {bound}, {law}"] = _crop(bound, law, fixed=False)
SOUND["crop betting, half-space, fixed action"] = _crop("betting", "half-space", fixed=True)


# --- action bounds (toy 5) ----------------------------------------------------------------------------

ROWS = np.array([[1.0, 2.0, 0.0, 0.5], [2.0, -1.0, 0.5, 0.0], [0.25, 0.0, -1.0, 0.5]])
SQUASH = {
    "linear": lambda x: x,
    "clipped": lambda x: (5 * x).clamp(-1, 1),
    "sign": torch.sign,
    "cubic": lambda x: x**3,
}
STATE = np.array([0.1, -0.05, 0.2, 0.03])
SIGMA = 0.2


def _squashed(name: str, values: Array) -> Array:
    return SQUASH[name](torch.tensor(np.atleast_1d(values))).numpy()  # type: ignore[no-any-return]


def _worst_medians(name: str, eps: float) -> tuple[Array, Array]:
    centre, reach = ROWS @ STATE, eps * np.linalg.norm(ROWS, axis=1)
    return _squashed(name, centre - reach), _squashed(name, centre + reach)


def _action(name: str, ratio: float, mode: str, reading: str = "numpy", jointly: bool = True) -> Case:
    """All coordinates, both worst perturbations, against the true median there."""

    def case(rng: np.random.Generator, reps: int) -> Outcome:
        eps = ratio * SIGMA
        toy = toys.policy_agent(ROWS, SIGMA, SQUASH[name])
        drawn = toys.outputs_of(toy, STATE, reps, 100, _seed(rng))
        result = action_bound(drawn, eps, SIGMA, alpha=ALPHA, mode=mode, reading=reading)
        low, high = _worst_medians(name, eps)
        false_low, false_high = result.lower > low + 1e-6, result.upper < high - 1e-6
        issued = np.isfinite(result.lower).any(axis=1) | np.isfinite(result.upper).any(axis=1)
        false = (false_low | false_high).any(axis=1) if jointly else false_low[:, 0]
        return Outcome(false, issued, ALPHA)

    return case


def _deployed_action(name: str, ratio: float, direction: int) -> Case:
    """The median of fresh samples at s + Delta, Delta the worst for one coordinate."""

    def case(rng: np.random.Generator, reps: int) -> Outcome:
        eps = ratio * SIGMA
        toy = toys.policy_agent(ROWS, SIGMA, SQUASH[name])
        drawn = toys.outputs_of(toy, STATE, reps, 100, _seed(rng))
        result = action_bound(drawn, eps, SIGMA, alpha=ALPHA / 2, eta=ALPHA / 2, mode="deployed")
        row = ROWS[0] / np.linalg.norm(ROWS[0])
        attacked = toys.outputs_of(toy, STATE + direction * eps * row, reps, 100, _seed(rng))
        median = np.sort(attacked, axis=1)[:, 49]
        false = ((result.lower > median) | (result.upper < median)).any(axis=1)
        return Outcome(false, np.isfinite(result.lower).any(axis=1), ALPHA)

    return case


for squash in SQUASH:
    for shift in (0.5, 1.0, 1.5, 2.0):
        SOUND[f"action exact, {squash}, {shift} sigma"] = _action(squash, shift, "exact")
for squash in ("linear", "sign"):
    for sign in (-1, 1):
        SOUND[f"action deployed, {squash}, direction {sign}"] = _deployed_action(squash, 0.5, sign)


# --- return bounds (toys 6, 7) ------------------------------------------------------------------------

BUDGETS = (0.0, 0.5, 1.0, 1.5)
RETURN_CASES = (
    ("quantile", "order"),
    ("quantile", "dkw"),
    ("quantile", "berk-jones"),
    ("threshold", "order"),
    ("mean", "dkw"),
    ("mean", "berk-jones"),
    ("cvar", "dkw"),
    ("cvar", "berk-jones"),
)


def _return(toy: toys.Monotone, kind: str, band: str, episodes: int = 100) -> Case:
    """All budgets at once, against the exact value under the worst attack."""

    def case(rng: np.random.Generator, reps: int) -> Outcome:
        truth = {
            "quantile": [toy.quantile(0.5, b) for b in BUDGETS],
            "threshold": [toy.tail(b) for b in BUDGETS],
            "mean": [toy.cvar(1.0, b) for b in BUDGETS],
            "cvar": [toy.cvar(0.2, b) for b in BUDGETS],
        }[kind]
        slack = 1e-4 if kind in ("mean", "cvar") else EDGE
        false, issued = np.zeros(reps, dtype=bool), np.zeros(reps, dtype=bool)
        for r, returns in enumerate(toy.h(rng.standard_normal((reps, episodes)))):
            result = return_bound(
                returns, 1.0, budget=BUDGETS, kind=kind, band=band, floor=toy.floor,
                threshold=toy.threshold, tail=0.2, alpha=ALPHA,
            )  # fmt: skip
            false[r] = bool((result.bound > np.asarray(truth) + slack).any())
            issued[r] = bool(result.found.any())
        return Outcome(false, issued, ALPHA)

    return case


for law, monotone in toys.MONOTONE.items():
    for kind, band in RETURN_CASES:
        if monotone.floor is not None or kind in ("quantile", "threshold"):
            SOUND[f"return {kind} {band}, {law}"] = _return(monotone, kind, band)


def _switch(kind: str) -> Case:
    """Clean episodes of the switch game; the adaptive optimum is the truth."""

    def case(rng: np.random.Generator, reps: int) -> Outcome:
        c, b = 1.0, 0.7
        attacked = float(phi(c - b))
        false, issued = np.zeros(reps, dtype=bool), np.zeros(reps, dtype=bool)
        for r, returns in enumerate(toys.switch_returns(c, 0.0, (reps, 100), rng)):
            result = return_bound(returns, 1.0, budget=b, kind=kind, threshold=1.0, floor=0.0, p=0.45)
            bound = float(result.bound[0])
            true = (1.0 if attacked > 1 - 0.45 else 0.0) if kind == "quantile" else attacked
            false[r], issued[r] = bound > true + EDGE, bool(result.found[0])
        return Outcome(false, issued, ALPHA)

    return case


for kind in ("quantile", "threshold", "mean"):
    SOUND[f"return {kind}, switch game, adaptive adversary"] = _switch(kind)


def _per_step(rng: np.random.Generator, reps: int) -> Outcome:
    """r_t = 1{mean of t+1 noises > -c}: e_t = -eps is worst at every step at once."""
    horizon, eps, c = 8, 0.3, 1.2
    root = np.sqrt(np.arange(1, horizon + 1))
    truth = float(phi(c - eps * root).sum())
    false = np.zeros(reps, dtype=bool)
    for r in range(reps):
        walk = np.cumsum(rng.standard_normal((100, horizon)), axis=1) / root
        false[r] = per_step_return_bound((walk > -c).astype(float), eps, 1.0, floor=0.0).bound > truth + EDGE
    return Outcome(false, np.ones(reps, dtype=bool), ALPHA)


SOUND["return per step, walk"] = _per_step


# --- anytime (toy 9), bands, episodes (toy 10) ---------------------------------------------------------


def _null_crossing(p0: float) -> Case:
    """Streams exactly at the null: whoever looks after every sample may cross with probability alpha."""

    def case(rng: np.random.Generator, reps: int) -> Outcome:
        sizes = np.array(looks(p0, ALPHA, 4000))
        crossed = np.zeros(reps, dtype=bool)
        for block in np.array_split(np.arange(reps), max(1, reps // 500)):
            failures = np.cumsum(rng.random((len(block), 4000)) >= p0, axis=1, dtype=np.int16)
            crossed[block] = (failures[:, sizes - 1] <= np.arange(len(sizes))).any(axis=1)
        return Outcome(crossed, crossed, ALPHA)

    return case


SOUND["anytime null crossing, p0 = .6"] = _null_crossing(0.6)
SOUND["anytime null crossing, p0 = .9"] = _null_crossing(0.9)


def _sequential_threshold(rng: np.random.Generator, reps: int) -> Outcome:
    proved = np.array(
        [decide_probability(lambda m: int(rng.binomial(m, 0.7)), 0.7, cap=400).proved for _ in range(reps)]
    )
    return Outcome(proved, proved, ALPHA)


SOUND["sequential test of a probability at its null"] = _sequential_threshold


def _band(kind: str) -> Case:
    def case(rng: np.random.Generator, reps: int) -> Outcome:
        levels = intervals.band_levels(kind, 100, ALPHA)
        ordered = np.sort(rng.random((reps, 100)), axis=1)
        return Outcome((ordered > levels).any(axis=1), np.ones(reps, dtype=bool), ALPHA)

    return case


SOUND["band dkw"] = _band("dkw")
SOUND["band berk-jones"] = _band("berk-jones")


def _joint(adaptive: bool, schedule: str) -> Case:
    """T = 50 steps of the linear agent; the next margin may depend on the last count."""

    def case(rng: np.random.Generator, reps: int) -> Outcome:
        steps, sigma = 50, 1.0
        margins = np.tile(np.linspace(0.02, 2.0, steps), (reps, 1))
        counts = np.zeros((reps, steps, 2), dtype=np.int64)
        for t in range(steps):
            if adaptive and t:
                close = counts[:, t - 1, 1] >= 85
                margins[:, t] = np.where(close, 0.05, 1.2)
            k = rng.binomial(100, phi(margins[:, t] / sigma))
            counts[:, t] = np.stack([100 - k, k], axis=1)
        false = np.zeros(reps, dtype=bool)
        for r in range(reps):
            cap = steps if schedule == "uniform" else None
            result = joint_radius(counts[r], sigma, ALPHA, "majority", cap=cap, schedule=schedule)
            wrong = (result.steps.action == 0) | (result.radius > margins[r] + EDGE)
            false[r] = bool((result.steps.certified & wrong).any())
        return Outcome(false, np.ones(reps, dtype=bool), ALPHA)

    return case


SOUND["joint, grid of margins"] = _joint(adaptive=False, schedule="uniform")
SOUND["joint, adaptive states"] = _joint(adaptive=True, schedule="uniform")
SOUND["joint, adaptive states, any length"] = _joint(adaptive=True, schedule="anytime")


# --- known bad --------------------------------------------------------------------------------------


def _plug_in(rng: np.random.Generator, reps: int) -> Outcome:
    p = [0.7, 0.3]
    share = rng.multinomial(100, p, reps) / 100
    r = 0.5 * (z(share.max(axis=1)) - z(share.min(axis=1)))
    issued = r > 0
    truth = toys.oracle_radius(p)[share.argmax(axis=1)]
    return Outcome(issued & (r > np.maximum(truth, 0.0) + EDGE), issued, ALPHA)


def _naive_selection(rng: np.random.Generator, reps: int) -> Outcome:
    """CP at full alpha on the samples that chose the action, no gate."""
    p = [0.5, 0.5]
    counts = rng.multinomial(100, p, reps)
    result = radius(counts, 1.0, ALPHA, "cohen", selection_counts=counts)
    return wrong_radius(result, toys.oracle_radius(p))


def _antithetic(inside: float) -> Case:
    """CP on 50 antithetic pairs: in a symmetric region both members always agree."""

    def case(rng: np.random.Generator, reps: int) -> Outcome:
        sigma = 0.5
        c = float(z((1 + inside) / 2)) * sigma
        half = rng.standard_normal((reps, 50)) * sigma
        k = (np.abs(np.concatenate([half, -half], axis=1)) < c).sum(axis=1)
        result = radius(np.stack([100 - k, k], axis=1), sigma, ALPHA, "cohen", action=1)
        issued = result.certified
        return Outcome(issued & (result.p_lower > inside + EDGE), issued, ALPHA)

    return case


def _peeking(rng: np.random.Generator, reps: int) -> Outcome:
    """CP after every sample, stop when it proves p > p0."""
    p0, cap = 0.6, 4000
    n = np.arange(1, cap + 1)
    needed = stats.binom.isf(ALPHA, n, p0) + 1
    crossed = np.zeros(reps, dtype=bool)
    for block in np.array_split(np.arange(reps), max(1, reps // 500)):
        k = np.cumsum(rng.random((len(block), cap)) < p0, axis=1, dtype=np.int16)
        crossed[block] = (k >= needed).any(axis=1)
    return Outcome(crossed, crossed, ALPHA)


def _paper_return(rng: np.random.Generator, reps: int) -> Outcome:
    """Theorem 6 at B/sigma = 2.5 with 1000 episodes of a Gaussian return."""
    false = np.zeros(reps, dtype=bool)
    for r in range(reps):
        bound = return_bound(rng.standard_normal(1000), 1.0, budget=2.5, mode="paper").bound[0]
        false[r] = bound > -2.5
    return Outcome(false, np.ones(reps, dtype=bool), ALPHA)


def _paper_crop(rng: np.random.Generator, reps: int) -> Outcome:
    """An estimated range and no clip: one value in a hundred is far below it and turns the mean round."""
    q = np.stack([np.full((reps, 100), 0.3), np.full((reps, 100), 0.9)], axis=2)
    q[..., 1] = np.where(rng.random((reps, 100)) < 0.01, -1000.0, q[..., 1])
    result = crop_radius(q, (0.0, 1.0), 1.0, ALPHA, mode="paper")
    return wrong_radius(result, np.array([0.1, -1.0]))


def _batch_norm(rng: np.random.Generator, reps: int) -> Outcome:
    """Train-mode batch statistics: votes are centred by the batch, the certified action is the wrong one."""
    sigma, threshold, u = 1.0, -0.5, -1.5
    noisy = u + sigma * rng.standard_normal((reps, 100))
    k = (noisy - noisy.mean(axis=1, keepdims=True) > threshold).sum(axis=1)
    truth = np.array([abs(u - threshold), -1.0])
    return wrong_radius(radius(np.stack([100 - k, k], axis=1), sigma, ALPHA, "majority"), truth)


def _joint_without_union(rng: np.random.Generator, reps: int) -> Outcome:
    """Every step at full alpha, claimed jointly."""
    p = float(phi(0.8))
    k = rng.binomial(100, p, (reps, 50))
    pl = radius(np.stack([100 - k, k], axis=2).reshape(-1, 2), 1.0, ALPHA, "cohen", action=1).p_lower
    return Outcome((pl.reshape(reps, 50) > p).any(axis=1), np.ones(reps, dtype=bool), ALPHA)


BAD |= {
    "plug-in radius at .7/.3": _plug_in,
    "CP at full alpha on the selecting samples at .5/.5": _naive_selection,
    "CP on antithetic pairs, band agent, p = .9": _antithetic(0.9),
    "CP on antithetic pairs, band agent, p = .97": _antithetic(0.97),
    "peeking with CP after every sample, p0 = .6": _peeking,
    "paper action bound at 1.5 sigma, one side": _action("linear", 1.5, "paper", jointly=False),
    "paper action bound at 1 sigma, three dimensions": _action("linear", 1.0, "paper"),
    "paper return bound at 2.5 sigma": _paper_return,
    "CROP without a clip": _paper_crop,
    "batch norm in training mode": _batch_norm,
    "joint certificate without a union bound": _joint_without_union,
}
