"""The results table: round trips, refusals, and the join with the paper's numbers."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from smoothrl import results
from smoothrl.errors import UserError
from smoothrl.results import ResultRow

ROW = ResultRow(
    environment="Hopper-v2",
    agent="s-ppo+sgld",
    metric="mad",
    mean=2889.5,
    epsilon=0.075,
    sigma=0.2,
    samples=100,
    std=81.25,
    low=2800.0,
    high=2950.0,
    level=0.95,
    norm="linf",
    seed=0,
    agent_seed=3,
    episodes=2,
    protocol="sound",
    agent_hash="ab" * 32,
    wall_time=1.5,
    returns=(2880.0, 2899.0),
)


@pytest.mark.parametrize("name", ["rows.csv", "rows.json"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    rows = [
        ROW,
        replace(ROW, metric="clean", epsilon=None, norm="", returns=()),
        replace(ROW, note='a, "b"\nc'),
    ]
    results.write_rows(rows, tmp_path / name)
    assert results.read_rows(tmp_path / name) == rows


def test_columns_start_like_the_papers_table() -> None:
    assert results.COLUMNS[:8] == (
        "environment", "agent", "metric", "epsilon", "sigma", "samples", "mean", "std",
    )  # fmt: skip
    assert {"norm", "seed", "episodes", "protocol", "agent_hash", "wall_time"} <= set(results.COLUMNS)
    assert "returns" not in results.COLUMNS


def test_json_is_strict(tmp_path: Path) -> None:
    results.write_rows([replace(ROW, std=float("nan"))], tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["rows"][0]["std"] is None
    assert results.read_rows(tmp_path / "r.json")[0].std is None


def test_returns_live_beside_the_csv(tmp_path: Path) -> None:
    path = results.write_rows([ROW], tmp_path / "r.csv")
    with (tmp_path / "r.returns.csv").open() as stream:
        assert [line["return"] for line in csv.DictReader(stream)] == ["2880.0", "2899.0"]
    results.write_rows([replace(ROW, returns=())], path)
    assert not (tmp_path / "r.returns.csv").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "environment,agent,metric,mean\nH,a,clean,x\n", "line 2: mean = 'x' is not a number"),
        ("a.csv", "environment,agent,metric,mean\nH,a,clean\n", "not as many values"),
        ("a.csv", "environment,agent,metric,mean,epsilom\nH,a,clean,1,1\n", "did you mean 'epsilon'"),
        ("a.csv", "", "no header"),
        ("a.csv", "environment,agent,metric,mean\nH,,clean,1\n", "'agent' is empty"),
        ("a.json", "{", "not JSON"),
        ("a.json", "{}", "not a smoothrl results file"),
        ("a.json", '{"format": "smoothrl-results", "version": 99, "rows": []}', "newer smoothrl"),
        ("a.json", '{"format": "smoothrl-results", "version": 1, "rows": 3}', "no list"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        results.read_rows(tmp_path / name)


def test_missing_file_and_wrong_suffix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such results file"):
        results.read_rows(tmp_path / "none.csv")
    with pytest.raises(UserError, match=r"\.csv or \.json"):
        results.write_rows([ROW], tmp_path / "rows.parquet")


def test_write_failure_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = results.write_rows([ROW], tmp_path / "r.csv")
    before = path.read_text()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("smoothrl.storage.os.fsync", full)
    with pytest.raises(UserError, match="No space left"):
        results.write_rows([ROW, ROW], path)
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []


def test_paper_table_is_complete() -> None:
    rows = results.paper_rows()
    assert len(rows) == 1132
    assert {r.agent for r in rows} == set(results.PAPER_AGENTS.values())
    assert len(set(results.PAPER_AGENTS.values())) == len(results.PAPER_AGENTS)
    for ours, paper in results.PAPER_AGENTS.items():
        assert results.our_agent(paper) == ours
        assert results.paper_agent(ours) == paper


@pytest.mark.parametrize(
    ("environment", "agent", "metric", "epsilon", "mean"),
    [
        ("Hopper-v2", "s-ppo", "clean", None, 3583),
        ("Hopper-v2", "s-ppo", "clean", 0.0, 3583),
        ("Walker2d-v2", "ppo+radial+rs", "min-rs", 0.075, 610),
        ("Hopper-v2", "s-ppo+sgld", "reward_lower_bound", 0.01, 2661),
        ("Hopper-v4", "ppo+atla+rs", "adiv", None, 16.994),
        ("ALE/Pong-v5", "s-dqn", "s-pgd", 0.05, 18.4),
        ("PongNoFrameskip-v4", "s-dqn", "s-pgd", 0.05, 18.4),
        ("ALE/Freeway-v5", "s-dqn", "s-pgd", 0.05, 6.6),
    ],
)
def test_join(environment: str, agent: str, metric: str, epsilon: float | None, mean: float) -> None:
    row = ResultRow(environment, agent, metric, 0.0, epsilon=epsilon)
    found = results.paper_value(row)
    assert found is not None
    assert found.mean == mean


def test_join_respects_sigma_and_samples() -> None:
    row = ResultRow("Walker2d-v2", "s-ppo", "mad", 0.0, epsilon=0.075, sigma=0.1, samples=100)
    found = results.paper_value(row)
    assert found is not None
    assert (found.mean, found.table) == (4316, "sppo_sigma")
    assert results.paper_value(replace(row, sigma=0.25)) is None
    five = ResultRow("Walker2d-v2", "s-ppo", "clean", 0.0, sigma=0.2, samples=5)
    assert results.paper_value(five, "testing_time").mean == 4593  # type: ignore[union-attr]


def test_twins_are_not_the_papers_environments() -> None:
    assert results.paper_environment("MinAtar/Freeway-v1") is None
    assert results.paper_environment("InvertedPendulum-v4") is None
    assert results.paper_environment("Hopper-v2") == ("Hopper", True)
    assert results.paper_environment("Hopper-v5") == ("Hopper", False)
    assert results.paper_value(ResultRow("Hopper-v2", "nobody", "clean", 1.0)) is None
