"""`wrap_attack`, the command line, and nothing printed where JSON goes."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest

import smoothrl
from smoothrl.agents import Smoothing, load_agent, save_agent
from smoothrl.attacks import make_attack, save_adversary
from smoothrl.cli.main import main
from smoothrl.errors import UserError

from .agents import adversary, linear_policy, normalised_policy, policy


@pytest.fixture
def env():
    from smoothrl.envs.toy import register_toys

    register_toys()
    return gymnasium.make("smoothrl/ToyContinuous-v0")


def test_a_wrapped_environment_shows_what_the_attack_makes_of_it(env):
    agent = normalised_policy()
    wrapped = smoothrl.wrap_attack(env, agent, "mad", 0.2, seed=3)
    assert isinstance(wrapped, gymnasium.Wrapper)
    seen, _ = wrapped.reset(seed=7)
    clean, _ = env.reset(seed=7)
    moved = (agent.observe(seen[None]) - agent.observe(clean[None])).abs().amax().item()
    assert moved == pytest.approx(0.2, abs=1e-5)
    again, _ = smoothrl.wrap_attack(env, agent, "mad", 0.2).reset(seed=7)
    assert np.array_equal(seen, again)
    observation, reward, terminated, truncated, _ = wrapped.step(np.zeros(1, np.float32))
    assert observation.dtype == np.float32
    assert wrapped.observation_space.contains(observation)
    assert not terminated
    assert not truncated
    assert np.isfinite(reward)


def test_epsilon_zero_wraps_to_the_same_environment(env):
    agent = policy()
    wrapped = smoothrl.wrap_attack(env, agent, make_attack("mad", agent, 0.0))
    seen, _ = wrapped.reset(seed=1)
    clean, _ = env.reset(seed=1)
    assert np.array_equal(seen, clean)


def test_wrapping_refuses_what_does_not_fit(env):
    agent = policy()
    with pytest.raises(UserError, match="needs epsilon"):
        smoothrl.wrap_attack(env, agent, "mad")
    with pytest.raises(UserError, match="another agent"):
        smoothrl.wrap_attack(env, agent, make_attack("mad", policy(seed=1), 0.1))
    with pytest.raises(UserError, match="shape"):
        smoothrl.wrap_attack(gymnasium.make("Pendulum-v1"), agent, "mad", 0.1)


@pytest.fixture
def file(tmp_path):
    agent = linear_policy([[1.0, 2.0]], Smoothing())
    return str(save_agent(agent, tmp_path / "toy.safetensors"))


def test_attack_command(file, capsys):
    assert (
        main(
            ["attack", file, "--attack", "random,mad", "--epsilon", "0,0.2", "--episodes", "6", "--json", "-"]
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out)
    by = {(r["metric"], r["epsilon"]): r for r in rows}
    assert len(rows) == 4
    assert by["mad", 0.0]["returns"] == by["random", 0.0]["returns"]
    assert by["mad", 0.2]["mean"] < by["mad", 0.0]["mean"]
    assert "restarts 4" in by["mad", 0.2]["note"]


def test_a_given_adversary_is_used(file, tmp_path, capsys):
    agent, given = load_agent(file), tmp_path / "adversary.safetensors"
    save_adversary(adversary(agent, "min-rs"), given)
    options = ["--epsilon", "0.2", "--episodes", "4", "--out", str(tmp_path / "out")]
    assert main(["attack", file, *options, "--attack", "min-rs", "--adversary", str(given)]) == 0
    assert "min-rs linf 0.2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "seed", "arguments", "words"),
    [
        ("optimal", 1, ["--attack", "mad,optimal"], "another agent"),
        ("optimal", 1, ["--attack", "suite"], "another agent"),
        ("optimal", 0, ["--attack", "min-rs"], "not for 'min-rs'"),
        ("optimal", 0, ["--attack", "optimal", "--env", "Pendulum-v1"], "acts in Pendulum-v1"),
    ],
)
def test_an_adversary_that_does_not_fit_is_refused_before_anything_is_played(
    tmp_path, capsys, kind, seed, arguments, words
):
    file = str(save_agent(policy(), tmp_path / "toy.safetensors"))
    given = save_adversary(adversary(policy(seed=seed), kind), tmp_path / "adversary.safetensors")
    assert main(["attack", file, *arguments, "--epsilon", "0.2", "--adversary", str(given)]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert "mad linf" not in shown.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--attack", "mda"], "did you mean 'mad'"),
        (["--attack", "pgd"], "valid here: random, fgsm, mad"),
        (["--attack", "mad", "--norm", "l3"], "unknown norm"),
        (["--attack", "mad", "--epsilon", "-1"], "raw observations"),
        (["--attack", "mad", "--epsilon", "x"], "one number or several"),
        (["--attack", "mad", "--adversary", "a"], "goes with min-rs"),
        (["--attack", "optimal", "--adversary", "a"], "no such adversary file"),
        (["--attack", "mad,optimal", "--env", "Hopper-v2"], "fitted where the agent was trained"),
        (["--attack", "mad", "--certificate", "a"], "goes with --attack suite"),
        (["--certificate", "a"], "does not exist"),
        (["--attack", "mad", "--draws", "0"], "at least one of its draws"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(file, capsys, arguments, words):
    assert main(["attack", file, *arguments]) == 2
    assert words in capsys.readouterr().err
