"""Bad input is refused in one sentence before any work; every Q-method runs from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smoothrl import envs
from smoothrl.agents import load_agent, save_agent
from smoothrl.cli.main import main
from smoothrl.errors import UserError
from smoothrl.learners.dqn import DQNLearner, preset_config
from smoothrl.learners.methods import parse
from smoothrl.learners.q_methods import configure

BREAKOUT = "MinAtar/Breakout-v1"
TINY = ["warmup=64", "lanes=4", "batch=8", "eval_every=0", "capacity=200", "log_every=160"]
ROBUST = ["--epsilon", "0.05", "--set", "ramp_start=0.2", "hidden=16"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = preset_config("dqn", BREAKOUT, hidden=16)
    learner = DQNLearner(config, envs.spec(BREAKOUT))
    return save_agent(learner.agent(0), tmp_path_factory.mktemp("base") / "agent.safetensors")


def refusal(method: str, env: str = BREAKOUT, **options: object) -> str:
    changes = options.pop("changes", {})
    with pytest.raises(UserError) as caught:
        configure(parse(method), env, changes, **options)
    return str(caught.value)


def test_refusals(base: Path, tmp_path: Path) -> None:
    assert "continuous actions" in refusal("dqn", "Hopper-v4")
    assert "--base AGENT" in refusal("s-dqn")
    assert "above 0, got 0.0" in refusal("s-dqn", base=base, changes={"sigma": 0.0})
    assert "not on MinAtar/Freeway-v1" in refusal("s-dqn", "MinAtar/Freeway-v1", base=base)
    assert "other preprocessing" in refusal("s-dqn", base=base, changes={"env_settings": {"sticky": 0.1}})
    assert "no use for it" in refusal("dqn", base=base)
    assert "takes its robustness from its base" in refusal("s-dqn+sa", base=base)
    assert "without --base" in refusal("s-dqn", base=base, denoiser="none")
    assert "unknown denoiser 'fst'" in refusal("s-dqn", base=base, denoiser="fst")
    assert "unknown adversarial training" in refusal("s-dqn", base=base, adversarial="pgd9")
    assert "unknown setting 'lrr'" in refusal("dqn", changes={"lrr": 1})
    assert "has the preset 'cpu' only" in refusal("dqn", preset="paper")
    assert "epsilon must exceed 0" in refusal("dqn+sa", changes={"epsilon": 0.0})
    assert "fewer transitions than one batch" in refusal("dqn", changes={"warmup": 3})
    assert "no such file" in refusal("s-dqn", base=tmp_path / "nowhere.safetensors")


def test_an_s_dqn_agent_is_no_base(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "sd"
    arguments = ["--env", BREAKOUT, "--base", str(base), "--out", str(out), "--steps", "320"]
    assert main(["train", "s-dqn", *arguments, "--set", "denoiser_width=8", *TINY]) == 0
    assert "an s-dqn agent already" in refusal("s-dqn", base=out / "agent.safetensors")
    agent = load_agent(out)
    assert (agent.info.trained_with.kind, agent.info.trained_with.sigma) == ("vote", 0.2)
    assert "mse" in (out / "progress.csv").read_text()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("dqn+sa", ROBUST),
        ("dqn+radial", ROBUST),
        ("dqn+wocar", ROBUST),
        ("s-dqn", ["--denoiser", "none", "--sigma", "0.2", "--set", "hidden=16"]),
        ("s-dqn", ["--base", "BASE", "--adversarial", "s-pgd", "--set", "denoiser_width=8"]),
        ("s-dqn", ["--base", "BASE", "--protocol", "paper", "--set", "denoiser_width=8"]),
    ],
)
def test_every_method_runs_and_resumes(method: str, options: list[str], base: Path, tmp_path: Path) -> None:
    chosen = [str(base) if o == "BASE" else o for o in options]
    out = tmp_path / "run"
    run = ["train", method, "--env", BREAKOUT, "--out", str(out), "--steps", "320"]
    assert main([*run, *chosen, *TINY]) == 0
    first = load_agent(out)
    assert first.info.method == method
    assert all(np.isfinite(t.float().numpy()).all() for t in first.tensors().values())
    assert main([*run, "--resume", *chosen, *TINY]) == 0
    assert load_agent(out).digest == first.digest


def test_vectors_take_an_mlp_denoiser(tmp_path: Path) -> None:
    out = tmp_path / "base"
    assert (
        main(["train", "dqn", "--env", "CartPole-v1", "--out", str(out), "--steps", "320", "--set", *TINY])
        == 0
    )
    run = ["train", "s-dqn", "--env", "CartPole-v1", "--base", str(out), "--out", str(tmp_path / "s")]
    assert main([*run, "--steps", "320", "--set", *TINY]) == 0
    agent = load_agent(tmp_path / "s")
    assert agent.header()["network"]["denoiser"]["kind"] == "mlp-denoiser"
