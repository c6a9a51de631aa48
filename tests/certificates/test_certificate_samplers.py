"""Samplers: right counts, early stopping that saves, refusals before work."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import certificate_toys as toys
import numpy as np
import pytest
import torch
from torch import nn

from smoothrl.certificates import intervals, radius
from smoothrl.certificates.samplers import (
    check_samplewise,
    count_votes,
    decide_probability,
    decide_radius,
    looks,
    refuse_batch_dependent,
    refuse_live_normaliser,
    sample_counts,
    sample_outputs,
)
from smoothrl.errors import UserError


def coin(states: Any, m: int, generator: np.random.Generator) -> np.ndarray:
    """Votes for 1 with the probability that is the state."""
    return (generator.random((len(states), m)) < np.asarray(states)[:, None]).astype(np.int64)


def test_votes_are_counted() -> None:
    votes = np.array([[0, 2, 2, 1], [1, 1, 1, 1]])
    assert count_votes(votes, 3).tolist() == [[1, 1, 2], [0, 4, 0]]
    assert count_votes(torch.tensor(votes), 3).tolist() == [[1, 1, 2], [0, 4, 0]]


@pytest.mark.parametrize("votes", [np.array([[0, 3]]), np.array([[0.0, 1.0]]), np.array([0, 1])])
def test_bad_votes_are_refused(votes: np.ndarray) -> None:
    with pytest.raises(UserError):
        count_votes(votes, 3)


@pytest.mark.parametrize("max_batch", [3, 64, 10_000])
def test_every_state_gets_its_samples(max_batch: int) -> None:
    seen: list[tuple[int, int]] = []
    drawn: list[int] = []

    def sample(states: Any, m: int, generator: np.random.Generator) -> np.ndarray:
        drawn.append(len(states) * m)
        return coin(states, m, generator)

    counts = sample_counts(
        sample, np.linspace(0, 1, 11), 50, 2, np.random.default_rng(0), max_batch=max_batch,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert (counts.sum(axis=1) == 50).all()
    assert counts[0].tolist() == [50, 0]
    assert counts[-1].tolist() == [0, 50]
    assert seen[-1] == (11, 11)
    assert max(drawn) <= max_batch


def test_outputs_keep_states_apart_and_nan_is_refused() -> None:
    def sample(states: Any, m: int, generator: Any) -> np.ndarray:
        return np.repeat(np.asarray(states)[:, None, None], m, axis=1)

    states = np.arange(5.0)
    found = sample_outputs(sample, states, 7, None, max_batch=3)
    assert found.shape == (5, 7, 1)
    assert np.array_equal(found[:, 0, 0], states)
    with pytest.raises(UserError, match="NaN"):
        sample_outputs(sample, np.array([np.nan]), 7, None)


def test_looks_are_the_first_crossings() -> None:
    sizes = looks(float(toys.phi(1.0)), 0.05, 100)
    assert sizes[0] == 22
    for failures, n in enumerate(sizes):
        for m in range(max(failures, 1), n + 1):
            proved = intervals.log_e_value(m - failures, m, toys.phi(1.0)) >= np.log(20)
            assert proved == (m == n)


def test_confident_states_need_few_samples() -> None:
    """Radius of one sigma, most states confident: at most 40 samples a state instead of 100."""
    rng = np.random.default_rng(1)
    states = np.concatenate([np.full(800, 0.995), np.full(100, 0.95), np.full(50, 0.85), np.full(50, 0.6)])
    decision = decide_radius(coin, states, 0.1, 0.1, 2, rng)
    assert decision.mean_samples < 36
    assert decision.certified[:800].mean() > 0.98
    assert not decision.certified[950:].any()
    assert (decision.result.radius[decision.certified] >= 0.1).all()
    assert (decision.result.action[decision.certified] == 1).all()
    assert (decision.samples <= 105).all()
    assert len(decision.rows()) == 1000
    assert decision.rows()[0]["status"] == "certified"


def test_pilot_votes_are_not_evidence() -> None:
    drawn: list[int] = []

    def counted(states: Any, m: int, generator: np.random.Generator) -> np.ndarray:
        drawn.append(len(states) * m)
        return coin(states, m, generator)

    decision = decide_radius(counted, np.ones(4), 1.0, 1.0, 2, np.random.default_rng(2), pilot=9)
    assert sum(drawn) == 4 * 31
    assert decision.pilot[:, 1].tolist() == [9] * 4
    assert decision.counts[:, 1].tolist() == [22] * 4
    assert decision.samples.tolist() == [31] * 4


def test_the_decision_is_reproducible_and_replayable() -> None:
    states = np.random.default_rng(3).random(40)
    first, second = (decide_radius(coin, states, 0.5, 1.0, 2, np.random.default_rng(4)) for _ in range(2))
    assert np.array_equal(first.counts, second.counts)
    again = radius(first.counts, 1.0, 0.05, "anytime", selection_counts=first.pilot)
    assert np.array_equal(again.radius, first.result.radius)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"target": 3.0, "cap": 100}, "at least"),
        ({"target": 50.0}, "out of reach"),
        ({"target": 0.0}, "positive"),
        ({"sigma": 0.0}, "sigma"),
        ({"alpha": 0.9}, "alpha"),
    ],
)
def test_hopeless_targets_are_refused_before_sampling(options: dict[str, float], word: str) -> None:
    def sample(states: Any, m: int, generator: Any) -> np.ndarray:
        raise AssertionError("sampled before refusing")

    arguments = {"target": 1.0, "sigma": 1.0, "cap": 100, "alpha": 0.05} | options
    with pytest.raises(UserError, match=word):
        decide_radius(
            sample, np.zeros(3), arguments["target"], arguments["sigma"], 2, None,
            alpha=arguments["alpha"], cap=int(arguments["cap"]),
        )  # fmt: skip


def test_sequential_probability() -> None:
    rng = np.random.default_rng(5)
    easy = decide_probability(lambda m: int(rng.binomial(m, 0.95)), 0.7)
    assert easy.proved
    assert easy.trials <= 64
    assert easy.lower > 0.7
    hard = decide_probability(lambda m: int(rng.binomial(m, 0.3)), 0.7, cap=300)
    assert not hard.proved
    assert hard.trials < 300
    with pytest.raises(UserError, match="at least"):
        decide_probability(lambda m: m, 0.999, cap=100)


# --- agents that cannot be certified ----------------------------------------------------------------


def test_batch_norm_in_training_mode_is_refused() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    with pytest.raises(UserError, match="training mode"):
        refuse_batch_dependent(network)
    refuse_batch_dependent(network.eval())
    bare = nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False)).eval()
    with pytest.raises(UserError, match="no running statistics"):
        refuse_batch_dependent(bare)
    with pytest.raises(UserError, match="Dropout"):
        refuse_batch_dependent(nn.Sequential(nn.Dropout(0.1)))
    refuse_batch_dependent(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
    refuse_batch_dependent(lambda x: x)


def test_the_runtime_check_sees_batch_statistics() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    noisy = torch.randn(100, 3)
    with torch.no_grad():
        with pytest.raises(UserError, match="changes with its batch"):
            check_samplewise(lambda x: network(x) if len(x) > 1 else network.eval()(x), noisy)
        check_samplewise(network.eval(), noisy)
    with pytest.raises(UserError, match="changes with its batch"):
        check_samplewise(lambda x: (x - x.mean(0) > 0.5).float(), noisy)
    with pytest.raises(UserError, match="at least 8"):
        check_samplewise(network, noisy[:5])


def test_hidden_randomness_is_seen() -> None:
    rng = np.random.default_rng(6)
    with pytest.raises(UserError, match="randomness"):
        check_samplewise(lambda x: x + rng.normal(size=x.shape), np.zeros((16, 2)))


def test_live_normalisers_are_refused() -> None:
    for live in (SimpleNamespace(training=True), SimpleNamespace(live=True), SimpleNamespace(frozen=False)):
        with pytest.raises(UserError, match="freeze"):
            refuse_live_normaliser(live)
    refuse_live_normaliser(SimpleNamespace(frozen=True, training=False))
    refuse_live_normaliser(None)


def test_certificates_do_not_import_torch() -> None:
    modules = "smoothrl.certificates.samplers, smoothrl.certificates.files"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
