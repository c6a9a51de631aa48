"""Bad input is refused in one sentence before any work; every Q-method runs from the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smoothrl import envs
from smoothrl.agents import Agent, Normaliser, load_agent, save_agent
from smoothrl.cli.main import main
from smoothrl.errors import UserError
from smoothrl.learners.dqn import DQNLearner, preset_config
from smoothrl.learners.methods import parse
from smoothrl.learners.q_config import DQNConfig
from smoothrl.learners.q_methods import configure, train
from smoothrl.learners.q_presets import s_dqn_preset
from smoothrl.learners.s_dqn import noisy_config
from smoothrl.learners.s_dqn import preset_config as s_dqn_config

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
    assert "is a dqn agent; give a dqn+radial agent" in refusal("s-dqn+radial", base=base)
    assert "a regulariser" in refusal("s-dqn+sa", denoiser="none")
    assert "the budget of --adversarial" in refusal("s-dqn", base=base, changes={"epsilon": 0.1})
    assert "without --base" in refusal("s-dqn", base=base, denoiser="none")
    assert "unknown denoiser 'fst'" in refusal("s-dqn", base=base, denoiser="fst")
    assert "unknown adversarial training" in refusal("s-dqn", base=base, adversarial="pgd9")
    assert "unknown setting 'lrr'" in refusal("dqn", changes={"lrr": 1})
    assert "has the preset 'cpu' only" in refusal("dqn", preset="paper")
    assert "epsilon must exceed 0" in refusal("dqn+sa", changes={"epsilon": 0.0})
    assert "fewer transitions than one batch" in refusal("dqn", changes={"warmup": 3})
    assert "no such file" in refusal("s-dqn", base=tmp_path / "nowhere.safetensors")


def test_a_base_of_other_preprocessing_is_refused(base: Path, tmp_path: Path) -> None:
    agent = load_agent(base)
    scaled = Agent(agent.network, Normaliser("scale", 0.5), agent.info)
    other = save_agent(scaled, tmp_path / "scaled.safetensors")
    assert "normalised by 'scale'" in refusal("s-dqn", base=other)
    six = Agent(agent.network, agent.normaliser, replace(agent.info, actions=6))
    assert "takes 3 discrete actions" in refusal("s-dqn", base=save_agent(six, tmp_path / "six.safetensors"))


def test_options_without_a_use_are_refused(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dqn", "--env", BREAKOUT, "--samples", "9"]) != 0
    assert "--samples counts the noise draws of a smoothed agent" in capsys.readouterr().err
    job = configure(parse("s-dqn"), BREAKOUT, {"samples": 9}, base=base)
    assert job.config.samples == 9


def test_a_denoiser_that_does_not_fit_leaves_no_run_folder(base: Path, tmp_path: Path) -> None:
    job = configure(parse("s-dqn"), BREAKOUT, {}, base=base, denoiser="mlp")
    with pytest.raises(UserError, match="--denoiser fast"):
        train(job, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_denoiser_before_a_robust_base_says_so_in_its_name(base: Path, tmp_path: Path) -> None:
    agent = load_agent(base)
    robust = Agent(agent.network, agent.normaliser, replace(agent.info, method="dqn+radial"))
    job = configure(
        parse("s-dqn+radial"), BREAKOUT, {}, base=save_agent(robust, tmp_path / "radial.safetensors")
    )
    assert (job.config.method, job.config.denoiser) == ("s-dqn+radial", "fast")


def test_presets_of_the_reference() -> None:
    """Where the games and the methods of the paper differ from one another."""
    freeway, road = "FreewayNoFrameskip-v4", "RoadRunnerNoFrameskip-v4"

    def paper(method: str, env: str) -> DQNConfig:
        return preset_config(method, env, "paper", parse(method).regulariser)

    assert paper("dqn", freeway).explore_steps == 100_000
    assert paper("dqn+sa", freeway).explore_steps == 1_500_000
    assert (paper("dqn+sa", road).kappa, paper("dqn+sa", road).target_every) == (0.01, 32_000)
    assert (paper("dqn+radial", road).adam_eps, paper("dqn+radial", freeway).adam_eps) == (1.5e-4, 1e-8)
    assert s_dqn_preset(road, True, "paper") | {"sigma": 0.05, "epsilon": 0.03, "denoiser": "dncnn"} == (
        s_dqn_preset(road, True, "paper")
    )
    assert noisy_config(road, "paper").sigma == 0.05


PONG = "PongNoFrameskip-v4"


def test_only_plain_pong_keeps_its_policy_under_noise() -> None:
    assert preset_config("dqn", PONG).noise == 0.1
    assert preset_config("dqn", PONG, "paper").noise == 0.0
    assert preset_config("dqn+sa", PONG, None, "sa").noise == 0.0
    assert noisy_config(PONG).noise == 0.0


@pytest.mark.parametrize("protocol", ["sound", "paper"])
def test_the_published_td_target_under_paper(protocol: str) -> None:
    """The preset `cpu` of Atari looks through the frozen network, unless asked for what was published."""
    q_config = preset_config("dqn", PONG, hidden=16, width=0.25)
    agent = DQNLearner(q_config, envs.spec(PONG, **q_config.env_settings)).agent(0)
    config = s_dqn_config(PONG, agent, protocol=protocol)
    published = ("bootstrap", 1.0, 1.0)
    found = (config.td_target, config.lambda_td, config.lambda_reconstruction)
    assert found == (published if protocol == "paper" else ("base", 100.0, 1_000.0))


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
