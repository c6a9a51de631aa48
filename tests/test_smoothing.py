"""Smoothing on numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from smoothrl import smoothing


def test_votes_counted_by_hand() -> None:
    outputs = torch.tensor([[[1.0, 2.0, 0.0], [3.0, 2.0, 1.0], [0.0, 5.0, 4.0], [0.0, 1.0, 0.5]]])
    assert smoothing.vote_counts(outputs).tolist() == [[1, 3, 0]]
    assert smoothing.vote(outputs).tolist() == [1]


def test_a_tied_vote_goes_to_the_first_action() -> None:
    outputs = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    assert smoothing.vote(outputs).tolist() == [0]


def test_mean_and_its_clip() -> None:
    outputs = torch.tensor([[[0.0], [10.0]]])
    assert smoothing.mean(outputs).tolist() == [[5.0]]
    assert smoothing.mean(outputs, 0.0, 1.0).tolist() == [[0.5]]


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (2, 1), (3, 2), (20, 10), (100, 50)])
def test_lower_median_rank(count: int, rank: int) -> None:
    assert smoothing.median_rank(count) == rank
    values = torch.arange(count, dtype=torch.float32)[torch.randperm(count)]
    assert smoothing.median(values.view(1, -1, 1)).item() == rank - 1


def test_median_is_torchs_lower_median_with_and_without_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(7, 20, 3, generator=generator)
    expected = torch.median(outputs, dim=1).values
    assert torch.equal(smoothing.median(outputs), expected)
    assert torch.equal(smoothing.median(outputs.requires_grad_(True)).detach(), expected)


def test_median_gradient_goes_to_the_selected_sample_alone() -> None:
    outputs = torch.tensor([[[3.0], [1.0], [2.0], [4.0]]], requires_grad=True)
    smoothing.median(outputs).sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.flatten().tolist() == [0.0, 0.0, 1.0, 0.0]


def test_inputs_are_left_alone() -> None:
    outputs = torch.randn(2, 9, 3)
    before = outputs.clone()
    smoothing.median(outputs)
    assert torch.equal(outputs, before)
