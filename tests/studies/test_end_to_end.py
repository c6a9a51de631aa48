"""A slice of the study `quick`, from training to the page, and what the commands say."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smoothrl.cli.main import main
from smoothrl.errors import UserError
from smoothrl.results import ResultRow, read_rows
from smoothrl.studies import declare, film, predefined
from smoothrl.studies.api import run_study, study_status
from smoothrl.studies.jobs import adopt
from smoothrl.studies.plan import plan
from smoothrl.studies.store import Store
from smoothrl.studies.summary import summarise
from smoothrl.studies.work import Context, Settings


def slice_of_quick() -> declare.Study:
    """S-PPO and S-DQN, two seeds, everything that is measured of them, learned attacks aside."""
    study = declare.scaled(predefined.find_study("quick"), steps=2048, seeds=2, episodes=2, bound_episodes=60)
    kept = [e for e in study.methods if e.name in ("s-ppo", "dqn+rs", "s-dqn")]
    small = {
        "ppo": {"horizon": 1024, "minibatches": 4, "epochs": 1, "value_epochs": 1, "train_samples": 4},
        "dqn": {"warmup": 512, "batch": 16},
    }
    return declare.checked(
        replace(
            study,
            methods=tuple(replace(e, options={**e.options, **small[e.family]}) for e in kept),
            evaluations=tuple(e for e in study.evaluations if not e.methods and e.metric != "random"),
        )
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study") / "quick"
    outcome = run_study(slice_of_quick(), folder, backend="inline", settings=Settings(command="smoothrl ..."))
    assert outcome.complete, outcome.failures
    return folder


def test_every_row_says_how_it_was_made(finished: Path) -> None:
    rows = read_rows(finished / "results.csv")
    assert {r.metric for r in rows} >= {
        "clean", "fgsm", "mad", "s-mad", "s-pgd", "adiv", "reward_lower_bound", "certified_radius",
    }  # fmt: skip
    for row in rows:
        assert row.agent in ("s-ppo", "dqn+rs", "s-dqn")
        assert row.protocol == "sound"
        assert len(row.agent_hash) == 64
        assert row.note.startswith("2048 steps, 2 seeds, 2 episodes, tiny fits")
        assert row.agent_seed in (0, 1)
    clean = [r for r in rows if r.metric == "clean" and r.agent == "s-ppo"]
    assert [len(r.returns) for r in clean] == [2, 2]
    assert clean[0].mean == pytest.approx(np.mean(clean[0].returns))


def test_the_summary_pools_the_seeds(finished: Path) -> None:
    with (finished / "summary.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    (clean,) = [line for line in lines if line["metric"] == "clean" and line["agent"] == "s-ppo"]
    assert (clean["agents"], clean["episodes"]) == ("2", "4")
    assert float(clean["low"]) <= float(clean["mean"]) <= float(clean["high"])
    assert clean["selected"]


def test_one_agent_stands_for_its_method(finished: Path) -> None:
    store = Store(finished)
    graph = plan(slice_of_quick())
    chosen = [store.done(key) for key, job in graph.jobs.items() if job.kind == "select"]
    assert len(chosen) == 3
    for done in chosen:
        assert done is not None
        assert done["artefacts"]["seed"] in (0, 1)
        assert set(done["artefacts"]["scores"]) <= {"clean", "mad"}


def test_films_are_whole(finished: Path) -> None:
    store = Store(finished)
    films = [
        store.folder(key) / item["file"]
        for key, job in plan(slice_of_quick()).jobs.items()
        if job.kind == "film"
        for item in (store.done(key) or {})["artefacts"]["films"]
    ]
    assert len(films) == 6
    for path in films:
        with Image.open(path) as picture:
            assert getattr(picture, "n_frames", 1) > 1
        assert path.stat().st_size < 400_000


def test_the_page_of_the_study(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(finished), "--out", str(page)]) == 0
    text = page.read_text()
    for words in ("Certified steps", "Learning curves", "data:image/", "What is certified"):
        assert words in text
    assert main(["study", "status", str(finished)]) == 0
    told = capsys.readouterr().out
    count = len(plan(slice_of_quick()))
    assert f"{count} of {count} jobs done" in told


def test_a_bigger_knob_keeps_what_it_can(finished: Path) -> None:
    """More seeds: the first study's jobs that do not depend on the pool's size stay done."""
    study, outlook, running = study_status(finished)
    assert (study.name, outlook.left, running) == ("quick", 0, False)
    with pytest.raises(UserError, match="holds the study 'quick'"):
        run_study(replace(slice_of_quick(), name="other"), finished, backend="inline")


def test_adopting_a_finished_training(finished: Path, tmp_path: Path) -> None:
    study = slice_of_quick()
    (train,) = [k for k, j in plan(study).jobs.items() if j.kind == "train" and j.params["method"] == "s-ppo"]
    run = Store(finished).folder(train) / "run"
    config = json.loads((run / "config.json").read_text())
    context = Context(tmp_path, {}, lambda *a: None, Settings(adopt=(str(run),)))
    assert adopt(config, context) == run
    with pytest.raises(UserError, match=r"other settings.*steps: 2048 there, 4096 here"):
        adopt({**config, "steps": 4096}, context)
    assert adopt({**config, "method": "ppo"}, context) is None
    only = declare.restricted(study, ["s-ppo", "clean"])
    outcome = run_study(
        replace(only, select=(), films=False),
        tmp_path / "again",
        backend="inline",
        settings=Settings(adopt=(str(run),)),
    )
    assert outcome.complete, outcome.failures
    wanted = {r.agent_hash for r in read_rows(finished / "results.csv") if r.agent == "s-ppo"}
    assert {r.agent_hash for r in read_rows(tmp_path / "again" / "results.csv")} == wanted


def test_commands_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["study", "rum", "quick"], "did you mean 'run'"),
        (["study", "show", "quik"], "did you mean 'quick'"),
        (["study", "status", str(tmp_path)], "no study here"),
        (["study", "run", "quick", "--only", "s-pppo"], "did you mean 's-ppo'"),
        (["study", "run", "quick", "--steps", "0"], "at least 1 is needed"),
        (
            ["study", "run", "quick", "--address", "auto", "--out", str(tmp_path / "x")],
            "goes with --backend ray",
        ),
        (["study", "run", "quick", "--out", str(Path(__file__))], "is a file"),
    ):
        assert main(arguments) == 2, arguments
        assert words in capsys.readouterr().err


def test_show_counts_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "show", "paper-ppo", "--only", "s-ppo,ppo", "--seeds", "5"]) == 0
    told = capsys.readouterr().out
    assert "5 seeds" in told
    assert "4 train" in told


def test_summary_by_hand() -> None:
    base = ResultRow(
        "Hopper-v2", "ppo", "clean", 3000.0, agent_hash="a", episodes=2, returns=(2900.0, 3100.0)
    )
    rows = [
        base,
        replace(base, agent_hash="b", mean=2000.0, returns=(1900.0, 2100.0)),
        replace(base, agent_hash="c", mean=3400.0, returns=(3400.0, 3400.0)),
    ]
    (line,) = summarise(rows, selected=["a"])
    assert (line.mean, line.median, line.selected, line.paper) == (2800.0, 3000.0, 3000.0, 3321.0)
    assert (line.agents, line.episodes, line.same_environment) == (3, 6, True)
    assert line.low is not None
    assert line.low < 2800.0


def test_boards_and_frames_become_colours() -> None:
    board = np.zeros((4, 10, 10))
    board[1, 2, 3] = 1.0
    picture = film.flat(board)
    assert picture.shape == (10, 10, 3)
    assert picture[2, 3].tolist() == [78 + 14, 121 + 14, 167 + 14]
    assert picture[0, 0].tolist() == [14, 14, 14]
    stack = np.random.default_rng(0).random((4, 84, 84))
    grey = film.flat(stack)
    assert grey.shape == (84, 84, 3)
    assert grey[5, 5, 0] == int(stack[-1, 5, 5] * 255.0)
