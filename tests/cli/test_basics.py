"""The command line by subprocess: help, start-up time, evaluate, list, and errors as one sentence."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Run
from smoothrl import rollout


def test_help_answers_at_once_and_names_every_command(smoothrl: Run) -> None:
    start = time.perf_counter()
    done = smoothrl("--help")
    assert time.perf_counter() - start < 1.0
    assert done.returncode == 0
    for command in ("train", "evaluate", "attack", "certify", "import", "study", "report", "demo", "list"):
        assert f"  {command}" in done.stdout


def test_version(command: Run) -> None:
    assert command("--version").stdout.startswith("smoothrl 0.")


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import smoothrl, smoothrl.cli.main, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_evaluate_prints_and_writes_rows(smoothrl: Run, policy_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    done = smoothrl("evaluate", policy_file, "--episodes", 4, "--seed", 1, "--json", out)
    assert done.returncode == 0, done.stderr
    assert "s-ppo on Hopper-v4" in done.stdout
    (row,) = json.loads(out.read_text())
    assert row["metric"] == "clean"
    assert row["episodes"] == 4
    assert len(row["returns"]) == 4
    assert row["low"] <= row["mean"] <= row["high"]
    again = smoothrl("evaluate", policy_file, "--episodes", 4, "--seed", 1, "--lanes", 2, "--json", "-")
    assert json.loads(again.stdout)[0]["returns"] == row["returns"]
    assert "s-ppo on Hopper-v4" in again.stderr


@pytest.mark.parametrize(
    ("options", "smoothing", "samples"),
    [
        ((), "median", 10),
        (("--smooth", "none"), "none", None),
        (("--sigma", 0.1, "--samples", 3), "median", 3),
    ],
)
def test_evaluate_smoothing_options(
    command: Run, policy_file: Path, options: tuple[object, ...], smoothing: str, samples: int | None
) -> None:
    done = command("evaluate", policy_file, "--episodes", 1, *options, "--json", "-")
    (row,) = json.loads(done.stdout)
    assert "(one episode, which has no interval;" in done.stderr
    assert not {"low", "high", "std", "level"} & set(row)
    assert row["smoothing"] == smoothing
    assert row.get("samples") == samples


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evalute",), "did you mean 'evaluate'"),
        (("list", "method"), "did you mean 'methods'"),
        (("evaluate", "nothing.safetensors"), "no such file"),
        (("evaluate",), "at least one agent"),
        (("evaluate", "AGENT", "--env", "Walker2d-v4"), "shape"),
        (("evaluate", "AGENT", "--env", "Hoper-v4"), "did you mean"),
        (("evaluate", "AGENT", "--smooth", "vote"), "takes median or mean"),
        (("evaluate", "AGENT", "--sigma", "0"), "sigma above 0"),
        (("evaluate", "AGENT", "--sigma", "-1"), "sigma above 0"),
        (("evaluate", "AGENT", "--samples", "0"), "at least one sample"),
        (("evaluate", "AGENT", "--episodes", "0"), "at least one episode"),
        (("evaluate", "AGENT", "--seed", "-1"), "from 0 on, got -1"),
        (("evaluate", "AGENT", "--lanes", "0"), "got 0 lanes"),
        (("evaluate", "AGENT", "--max-steps", "0"), "at least one step long"),
        (("evaluate", "AGENT", "--samples", "100000000"), "take at most 22,369,621"),
        (("evaluate", "a" * 300), "File name too long"),
        (("evaluate", "AGENT", "--episodes", "1", "--smooth", "none", "--json", "."), "is a folder"),
        (("evaluate", "AGENT", "--env", "LunarLander-v3"), "pip install 'gymnasium[box2d]'"),
        (("list", "studies", "--json"), "--json needs a file"),
        (("evaluate", "AGENT", "--smooth", "none", "--sigma", "0.1"), "drop one of them"),
    ],
)
def test_errors_are_one_sentence(
    command: Run, policy_file: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = command(*(policy_file if a == "AGENT" else a for a in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_foreign_file_is_named_for_what_it_is(command: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    done = command("evaluate", path)
    assert done.returncode == 2
    assert "smoothrl import" in done.stderr


@pytest.mark.parametrize("what", ["methods", "attacks", "environments", "studies"])
def test_lists(command: Run, what: str) -> None:
    done = command("list", what, "--json", "-")
    assert done.returncode == 0, done.stderr
    entries = json.loads(done.stdout)
    assert len(entries) >= 5
    assert all(entry["name"] and entry["summary"] for entry in entries)
    assert entries[0]["name"] in command("list", what).stdout
    assert json.loads(command("list", what, "--json=-").stdout) == entries


@pytest.mark.parametrize("arguments", [("evalute",), ("evaluate", "nothing.safetensors")])
def test_errors_of_the_real_command(smoothrl: Run, arguments: tuple[str, ...]) -> None:
    done = smoothrl(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1


def test_ctrl_c_keeps_finished_episodes(policy_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command = [sys.executable, "-m", "smoothrl", "evaluate", str(policy_file), "--episodes", "100000"]
    process = subprocess.Popen(
        [*command, "--lanes", "4", "--json", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if not line.startswith("hopper.safetensors (s-ppo): 0/100,000 episodes"):
            break
    assert re.match(r"hopper.safetensors \(s-ppo\): [\d,]+/100,000 episodes, .* s left", line)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    (row,) = json.loads(out.read_text())
    assert 0 < row["episodes"] < 100000
    assert row["note"] == f"interrupted: {row['episodes']} of 100000 episodes, the shorter ones"
    assert "s-ppo" in stdout


def test_ctrl_c_before_the_first_end_keeps_the_agents_before(
    command: Run, policy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = []

    def play(*args: Any, **kwargs: Any) -> rollout.EpisodeResults:
        played.append(args)
        stop = args[2] if len(played) == 1 else 0
        one = np.ones(args[2], np.int64)
        ended = np.arange(args[2]) < stop
        return rollout.EpisodeResults(one * 7.0, one, ended, ended, one, 1.0, interrupted=stop == 0)

    monkeypatch.setattr(rollout, "evaluate", play)
    done = command("evaluate", policy_file, policy_file, policy_file, "--episodes", 3, "--json", "-")
    assert done.returncode == 130
    assert [row["mean"] for row in json.loads(done.stdout)] == [7.0]
    assert "1 of 3 agents have results" in done.stderr
    assert len(played) == 2
