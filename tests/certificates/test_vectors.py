"""Shared test vectors: every function against numbers computed by an independent program.

`SMOOTHRL_CERT_VECTORS` names another file of the same schema.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import certificate_toys as toys
import numpy as np
import pytest
from scipy import special

from smoothrl.certificates import actions, episodes, intervals, norms, returns
from smoothrl.certificates.crop import crop_formula
from smoothrl.certificates.radius import deployed_radius, radius, vote_level

FILE = Path(os.environ.get("SMOOTHRL_CERT_VECTORS") or Path(__file__).with_name("vectors.json"))
Inputs = dict[str, Any]
Answer = dict[str, Any]


def _sample(spec: Any) -> np.ndarray:
    """A list of numbers, or a recipe: {'arange': [start, step, n], 'set': {i: value}} or {'repeat': ...}."""
    if not isinstance(spec, dict):
        return np.asarray(spec, dtype=float)
    if "repeat" in spec:
        return np.sort(
            np.concatenate([np.full(count, value, dtype=float) for value, count in spec["repeat"]])
        )
    start, step, n = spec["arange"]
    values = start + step * np.arange(n, dtype=float)
    for i, value in spec.get("set", {}).items():
        values[int(i)] = value
    return np.sort(values)


def _radius_answer(result: Any, **extra: Any) -> Answer:
    certified = bool(result.certified[0])
    return {
        "certified": certified,
        "action": int(result.action[0]) if certified else None,
        "radius": result.radius[0],
        "p_lower": result.p_lower[0],
        "pA_lower": result.p_lower[0],
        "pB_upper": result.p_upper[0],
        **extra,
    }


def _paper_radius(i: Inputs) -> Answer:
    return _radius_answer(radius(i["counts"], i["sigma"], i["alpha"], "paper"))


def _cohen(i: Inputs) -> Answer:
    counts = [i["k"], i["n"] - i["k"]]
    return _radius_answer(radius(counts, i["sigma"], i["alpha"], "cohen", action=0))


def _majority(i: Inputs) -> Answer:
    alpha = i["alpha_s"] + i["alpha_e"]
    split = (i["alpha_s"] / alpha, i["alpha_e"] / alpha)
    return _radius_answer(radius(i["counts"], i["sigma"], alpha, "majority", split=split))


def _rank(i: Inputs) -> Answer:
    alpha = i["alpha_s"] + i["alpha_A"] + i["alpha_B"]
    split = tuple(i[name] / alpha for name in ("alpha_s", "alpha_A", "alpha_B"))
    result = radius(i["counts"], i["sigma"], alpha, "rank", split=split)
    return _radius_answer(result, rank_pvalue=result.pvalue[0])


def _vote_radius(i: Inputs) -> Answer:
    ideal = radius([i["k"], i["n"] - i["k"]], i["sigma"], i["alpha"], "cohen", action=0)
    result = deployed_radius(ideal, i["m"], i["eta"])
    return {"pi": result.level, "radius": result.radius[0], "certified": bool(result.action[0] >= 0)}


def _crop(i: Inputs) -> Answer:
    q1, q2, values = i["q1"], i["q2"], (i["vmin"], i["vmax"])
    certified, r, _, _ = crop_formula(q1, q2, values, i["sigma"], i["m"], i["alpha"])
    return {"certified": bool(certified), "radius": float(r) if certified else 0.0}


def _index_answer(index: actions.PaperIndex) -> Answer:
    return {"j": index.j, "sup": index.sup, "max_in_sample": index.max, "side": index.side}


def _levels(i: Inputs) -> Answer:
    levels = actions.paper_levels(i["p"], i["m"], i["alpha"], i["budget"], i["sigma"])
    return {
        "p_lower": levels.lower,
        "p_upper": levels.upper,
        "lower_index": _index_answer(actions.paper_index(i["m"], levels.lower)),
        "upper_index": _index_answer(actions.paper_index(i["m"], levels.upper)),
    }


def _action_bound(i: Inputs) -> Answer:
    samples = np.asarray(i["samples"], dtype=float).T
    common = {"eps": i["eps"], "sigma": i["sigma"], "p": i["p"], "alpha": i["alpha"]}
    jointly = i.get("simultaneous_dims", True)
    exact = actions.action_bound(samples, mode="exact", simultaneous=jointly, **common)
    answer = {
        "lower_index0": exact.lower_position,
        "upper_index0": exact.upper_position,
        "lower": exact.lower,
        "upper": exact.upper,
        "adiv": exact.adiv(),
    }
    for name, reading in (("sup", "sup"), ("max_in_sample", "max"), ("numpy_linear", "numpy")):
        bound = actions.action_bound(samples, mode="paper", reading=reading, **common)
        answer[name] = {"lower": bound.lower, "upper": bound.upper, "adiv": bound.adiv()}
    return answer


def _deployed_levels(i: Inputs) -> Answer:
    p_minus, p_plus = actions.deployed_median_levels(i["m_act"], i["k"], i["eta"])
    levels = actions.shifted_levels(p_minus, p_plus, i["eps"], i["sigma"])
    return {"p_minus": p_minus, "p_plus": p_plus, "p_lower": levels.lower, "p_upper": levels.upper}


def _reward(i: Inputs) -> Answer:
    sample = _sample(i["returns"])
    common = {"p": i["p"], "alpha": i["alpha"], "eps": i["eps"], "horizon": i["H"]}
    paper = {
        r: returns.return_bound(sample, i["sigma"], mode="paper", reading=r, **common)
        for r in actions.READINGS
    }
    exact = returns.return_bound(sample, i["sigma"], **common)
    return {
        "B": exact.budget[0],
        "sup": paper["sup"].bound[0],
        "max_in_sample": paper["max"].bound[0],
        "numpy_linear": paper["numpy"].bound[0],
        "index0": exact.position[0],
        "bound": exact.bound[0],
        "p_lower": (exact if i["mode"] == "exact" else paper["sup"]).level[0],
    }


def _band_index(kind: str) -> Callable[[Inputs], Answer]:
    def answer(i: Inputs) -> Answer:
        level = special.ndtr(special.ndtri(i.get("p", 0.5)) - i["B_over_sigma"])
        index = intervals.band_index(kind, i["n"], float(level), i["alpha"])
        return {"index0": index, "count": 0 if index is None else index + 1}

    return answer


def _mean(band: str) -> Callable[[Inputs], Answer]:
    def answer(i: Inputs) -> Answer:
        result = returns.return_bound(
            _sample(i["returns"]), 1.0, budget=i["B_over_sigma"], kind="mean", band=band,
            floor=i["floor"], alpha=i["alpha"],
        )  # fmt: skip
        return {"bound": result.bound[0]}

    return answer


def _wang_plugin(i: Inputs) -> Answer:
    return {"bound": toys.wang_plugin(_sample(i["returns"]), i["floor"], i["B_over_sigma"])}


def _threshold(i: Inputs) -> Answer:
    wins = np.repeat([0.0, 1.0], [i["n"] - i["k"], i["k"]])
    result = returns.return_bound(
        wins, 1.0, budget=i["B_over_sigma"], kind="threshold", threshold=1.0, alpha=i["alpha"]
    )
    return {"prob_lower": result.bound[0]}


def _joint(i: Inputs) -> Answer:
    p_lower, r = episodes.joint_step_radius(i["k"], i["n"], i["T"], i["alpha"], i["sigma"])
    return {"p_lower": p_lower, "radius": r}


def _prior(i: Inputs) -> tuple[float, float]:
    first, second = i.get("prior", intervals.JEFFREYS)
    return float(first), float(second)


FUNCTIONS: dict[str, Callable[[Inputs], Answer]] = {
    "delta": lambda i: {"delta": intervals.hoeffding_delta(i["m"], i["alpha"])},
    "paper_radius": _paper_radius,
    "cohen_radius": _cohen,
    "one_stage_majority": _majority,
    "one_stage_rank": _rank,
    "crop_radius": _crop,
    "cp_lower": lambda i: {"lower": intervals.cp_lower(i["k"], i["n"], i["alpha"])},
    "cp_upper": lambda i: {"upper": intervals.cp_upper(i["k"], i["n"], i["alpha"])},
    "rank_pvalue": lambda i: {"pvalue": intervals.rank_pvalue(i["k1"], i["k2"])},
    "vote_level": lambda i: {"pi": vote_level(i["m"], i["eta"])},
    "vote_radius": _vote_radius,
    "levels": _levels,
    "paper_index": lambda i: _index_answer(actions.paper_index(i["m"], i["p"])),
    "lower_index": lambda i: {"index0": intervals.lower_index(i["n"], i["p"], i["alpha"])},
    "upper_index": lambda i: {"index0": intervals.upper_index(i["n"], i["p"], i["alpha"])},
    "min_samples": lambda i: {"n": intervals.min_samples(i["p"], i["alpha"])},
    "action_bound": _action_bound,
    "deployed_median_levels": _deployed_levels,
    "reward_lower_bound": _reward,
    "prob_return_ge": _threshold,
    "berk_jones_gamma": lambda i: {"gamma": intervals.berk_jones_gamma(i["n"], i["alpha"])},
    "noncrossing": lambda i: {
        "prob": intervals.noncrossing(intervals.berk_jones_boundary(i["n"], i["gamma"]))
    },
    "bj_quantile_index": _band_index("berk-jones"),
    "dkw_quantile_index": _band_index("dkw"),
    "mean_dkw": _mean("dkw"),
    "mean_berk_jones": _mean("berk-jones"),
    "mean_wang_plugin": _wang_plugin,
    "log_e_value": lambda i: {"log_e": intervals.log_e_value(i["k"], i["n"], i["p0"], _prior(i))},
    "cs_lower": lambda i: {"lower": intervals.cs_lower(i["k"], i["n"], i["alpha"], _prior(i))},
    "joint_radius_per_step": _joint,
    "max_false_certificates": lambda i: {
        "v": episodes.max_false_certificates(i["T"], i["alpha"], i["beta"])
    },
    "linf_radius": lambda i: {
        "linf": norms.linf_radius(i["l2_radius"], i["dim"]),
        "l1": norms.l1_radius(i["l2_radius"], i["dim"]),
    },
    "budget": lambda i: {"B": norms.total_budget(i["eps"], i["H"])},
    "l2_of_linf": lambda i: {"l2": norms.l2_of_linf(i["eps_inf"], i["dim"])},
    "linear_two_action": lambda i: dataclasses.asdict(toys.linear_two_action(**i)),
    "three_slab": lambda i: dataclasses.asdict(toys.three_slab(**i)),
    "linear_policy_adiv_population": lambda i: {"adiv": toys.linear_policy_adiv(i["W"])},
    "linear_policy_adiv_hoeffding_population": lambda i: {"adiv": toys.linear_policy_adiv_paper(**i)},
    "two_step_switch_game": lambda i: toys.switch_game(i["c"], i["B_over_sigma"]),
}  # fmt: skip


def _same(expected: Any, found: Any, rtol: float, where: str) -> None:
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert name in found, f"{where}: nothing computed for {name!r}"
            _same(value, found[name], rtol, f"{where}.{name}")
    elif expected is None or isinstance(expected, bool):
        assert found is None if expected is None else bool(found) == expected, (
            f"{where}: {found} != {expected}"
        )
    elif isinstance(expected, str) and expected not in ("inf", "-inf"):
        assert found == expected, where
    else:
        want, got = np.asarray(expected, dtype=float), np.asarray(found, dtype=float)
        assert want.shape == got.shape, where
        finite = np.isfinite(want)
        assert np.array_equal(want[~finite], got[~finite]), f"{where}: {got} != {want}"
        assert np.allclose(got[finite], want[finite], rtol=rtol, atol=1e-9), f"{where}: {got} != {want}"
        tiny = finite & (want != 0.0) & (np.abs(want) < 1e-9)
        assert np.allclose(got[tiny], want[tiny], rtol=1e-3, atol=0.0), f"{where}: {got} != {want}"


DATA = json.loads(FILE.read_text())


@pytest.mark.parametrize("vector", DATA["vectors"], ids=lambda v: f"{v['id']}-{v['fn']}")
def test_vector(vector: dict[str, Any]) -> None:
    assert vector["fn"] in FUNCTIONS, (
        f"vector {vector['id']} asks for {vector['fn']!r} (group {vector['group']}), which this file cannot "
        f"compute; it knows {sorted(FUNCTIONS)}"
    )
    inputs = vector["inputs"]
    if vector["fn"] == "reward_lower_bound":
        inputs = {**inputs, "mode": vector["mode"]}
    found = FUNCTIONS[vector["fn"]](inputs)
    _same(vector["expected"], found, vector.get("rtol", 1e-6), vector["id"])


def test_the_file_is_whole() -> None:
    assert DATA["schema"] == "v1"
    assert DATA["count"] == len(DATA["vectors"])


def test_a_wrong_number_is_noticed() -> None:
    with pytest.raises(AssertionError):
        _same({"delta": 0.5}, {"delta": 0.5000011}, 1e-6, "self-check")
    with pytest.raises(AssertionError):
        _same({"bound": "-inf"}, {"bound": 0.0}, 1e-6, "self-check")
    assert math.isinf(float("-inf"))
