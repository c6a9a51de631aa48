"""Streams: what an episode draws depends on its own seed and its own requests."""

from __future__ import annotations

import pytest
import torch

from smoothrl.noise import GeneratorNoise, StreamNoise, episode_seeds


@pytest.mark.parametrize("count", [1, 3, 100, 400])
def test_company_does_not_matter(count: int) -> None:
    together = StreamNoise([11, 22, 33])
    alone = StreamNoise([33])
    steps = [([0, 1, 2], 2), ([0, 2], 1), ([2], 0), ([1, 2], 1)]
    for index, row in steps:
        drawn = together.normal(index, count, (11,))[row]
        assert torch.equal(drawn, alone.normal([0], count, (11,))[0])


def test_requests_of_changing_size_stay_independent_of_company() -> None:
    together, alone = StreamNoise([1, 2]), StreamNoise([2])
    for count in (5, 5, 7, 5):
        assert torch.equal(together.normal([0, 1], count, (3,))[1], alone.normal([0], count, (3,))[0])


def test_draws_are_fresh_and_standard_normal() -> None:
    noise = StreamNoise([5, 6])
    many = torch.stack([noise.normal([0, 1], 100, (11,)) for _ in range(200)])
    assert abs(many.mean().item()) < 0.01
    assert abs(many.std().item() - 1.0) < 0.01
    assert not torch.equal(many[0], many[1])
    assert not torch.equal(many[0, 0], many[0, 1])


def test_generator_noise_takes_its_generator() -> None:
    a = GeneratorNoise(torch.Generator().manual_seed(1)).normal([0, 1], 4, (2,))
    b = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(a, b)


def test_episode_seeds_are_stable_and_apart() -> None:
    seeds = episode_seeds(7, 100, "env")
    assert seeds == episode_seeds(7, 50, "env") + episode_seeds(7, 50, "env", start=50)
    assert len(set(seeds) | set(episode_seeds(7, 100, "noise")) | set(episode_seeds(8, 100, "env"))) == 300
