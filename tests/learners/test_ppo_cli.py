"""`smoothrl train` for PPO methods, from the command line's side."""

from __future__ import annotations

import json

import pytest

from smoothrl.agents import load_agent
from smoothrl.cli.main import main
from smoothrl.cli.train import assignment
from smoothrl.errors import UserError

QUICK = ["--steps", "256", "--set", "horizon=128", "minibatches=4", "epochs=2", "value_epochs=2"]
ENV = ["--env", "InvertedPendulum-v4"]


def test_trains_resumes_and_says_where_things_are(tmp_path, capsys):
    run = tmp_path / "run"
    command = ["train", "s-ppo+sgld", *ENV, "--seeds", "2", "--epsilon", "0.1", "--out", str(run), *QUICK]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert str(run / "agent-0.safetensors") in said
    digest = load_agent(run / "agent-1.safetensors").digest
    assert main(command) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0
    assert load_agent(run / "agent-1.safetensors").digest == digest
    assert json.loads((run / "config.json").read_text())["epsilon"] == 0.1
    assert list((run / "events").iterdir())
    header = (run / "progress.csv").read_text().splitlines()[0].split(",")
    pooled = {"return", "kl", "clip_fraction", "ratio_spread", "noise_ratio_spread", "entropy", "value_loss"}
    assert {"step", "epsilon", *pooled, *(f"{name}/seed-1" for name in pooled)} <= set(header)


def test_init_starts_from_an_agent(tmp_path):
    assert main(["train", "ppo", *ENV, "--out", str(tmp_path / "a"), *QUICK]) == 0
    start = str(tmp_path / "a/agent.safetensors")
    assert main(["train", "s-ppo", *ENV, "--out", str(tmp_path / "b"), "--init", start, *QUICK]) == 0
    other = ["train", "ppo", "--env", "Pendulum-v1", "--out", str(tmp_path / "c"), "--init", start]
    assert main(other + QUICK) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sppo", *ENV], "did you mean"),
        (["ppo+sgld+radial", *ENV], "two ingredients"),
        (["ppo+rs", *ENV], "--smooth"),
        (["ppo", *ENV, "--sigma", "0.2"], "train s-ppo"),
        (["ppo", *ENV, "--samples", "5"], "noise draws"),
        (["ppo", *ENV, "--epsilon", "0.1"], "robust ingredient"),
        (["ppo", *ENV, "--set", "epsilon=0.1"], "robust ingredient"),
        (["ppo", *ENV, "--set", "horizon=long"], "of type int"),
        (["s-ppo", *ENV, "--sigma", "0"], "above 0"),
        (["ppo", "--env", "CartPole-v1"], "discrete"),
        (["ppo", "--env", "PongNoFrameskip-v4"], "images"),
        (["ppo", "--env", "Hoper-v4"], "did you mean"),
        (["ppo", *ENV, "--seeds", "0"], "--seeds"),
        (["ppo", *ENV, "--set", "policy_rate=1"], "unknown PPO setting"),
        (["ppo", *ENV, "--set", "minibatches=7"], "minibatches"),
        (["ppo", *ENV, "--base", "x"], "dqn methods"),
    ],
)
def test_refusals_are_one_sentence_and_leave_nothing(tmp_path, capsys, arguments, words):
    assert main(["train", *arguments, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_assignments():
    assert assignment("lr=3e-4") == ("lr", 3e-4)
    assert assignment("hidden=(32, 32)") == ("hidden", (32, 32))
    assert assignment("value_clip=none") == ("value_clip", None)
    assert assignment("growth=smooth") == ("growth", "smooth")
    with pytest.raises(UserError, match="name=value"):
        assignment("lr")
