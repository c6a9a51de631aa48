"""Specs, the catalogue, third-party ids and every error meant for a person."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import pytest

from smoothrl import envs
from smoothrl.envs import registry
from smoothrl.errors import UserError


@pytest.mark.parametrize(
    ("env_id", "settings", "shape", "kind", "size", "horizon"),
    [
        ("Hopper-v2", {}, (11,), "continuous", 3, 1000),
        ("Walker2d-v2", {}, (17,), "continuous", 6, 1000),
        ("Humanoid-v5", {}, (348,), "continuous", 17, 1000),
        ("CartPole-v1", {}, (4,), "discrete", 2, 500),
        ("Pendulum-v1", {}, (3,), "continuous", 1, 200),
        ("MinAtar/Freeway-v1", {}, (7, 10, 10), "discrete", 3, 5000),
        ("PongNoFrameskip-v4", {"profile": "single-frame"}, (1, 84, 84), "discrete", 4, 27000),
        ("smoothrl/ToyContinuous-v0", {"max_episode_steps": 5}, (2,), "continuous", 1, 5),
    ],
)
def test_spec(env_id: str, settings: Any, shape: Any, kind: str, size: int, horizon: int) -> None:
    spec = envs.spec(env_id, **settings)
    found = (spec.id, spec.obs_shape, spec.action, spec.action_size, spec.horizon)
    assert found == (env_id, shape, kind, size, horizon)
    assert spec.scale == ("pixels in [0, 1]" if spec.is_image else "normalised observation")
    assert len(spec.action_low) == (size if kind == "continuous" else 0)
    json.dumps(asdict(spec))  # goes into agent files
    assert envs.spec(spec.id, **spec.settings) == spec


def test_catalogue_entries_can_be_made() -> None:
    entries = envs.catalogue()
    assert len({e.id for e in entries}) == len(entries)
    assert {e.family for e in entries} == {"MuJoCo", "Atari", "MinAtar", "classic control", "toy"}
    for entry in entries:
        if entry.family != "Atari":
            assert envs.spec(entry.id).backend == entry.backend, entry.id


class Foreign(gymnasium.Env[Any, Any]):
    """A third-party environment with actions 5, 6 and a truncation of its own."""

    def __init__(self, odd: bool = False) -> None:
        space = gymnasium.spaces.Dict if odd else gymnasium.spaces.Box
        self.observation_space = space({}) if odd else space(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(3, np.float32), float(action), False, self.t == 4, {}


@pytest.fixture
def foreign() -> Any:
    gymnasium.register("somebody/Foreign-v3", entry_point=Foreign)
    yield "somebody/Foreign-v3"
    del gymnasium.registry["somebody/Foreign-v3"]


def test_any_registered_id_works(foreign: str) -> None:
    env = envs.make(foreign, 2, seed=0)
    assert env.description.horizon is None
    env.reset()
    returns = [env.step(np.array([0, 1])) for _ in range(4)]
    assert returns[0][1].tolist() == [5.0, 6.0]
    assert returns[-1][3].all()
    assert returns[-1][4]["episode_return"].tolist() == [20.0, 24.0]
    with pytest.raises(UserError, match="FlattenObservation"):
        envs.make(foreign, 1, seed=0, odd=True)
    with pytest.raises(UserError, match="does not take the settings"):
        envs.make(foreign, 1, seed=0, nonsense=1)


@pytest.mark.parametrize(
    ("env_id", "near"),
    [
        ("Hoper-v2", "Hopper-v2"),
        ("PongNoFrameskip-v5", "PongNoFrameskip-v4"),
        ("PngNoFrameskip-v4", "PongNoFrameskip-v4"),
        ("MinAtar/Breakot-v1", "MinAtar/Breakout-v1"),
        ("Cartpole-v1", "CartPole-v1"),
        ("ALE/Pongg-v5", "ALE/Pong-v5"),
    ],
)
def test_unknown_ids_name_the_nearest(env_id: str, near: str) -> None:
    with pytest.raises(UserError, match="did you mean") as error:
        envs.make(env_id, 1, seed=0)
    assert near in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: envs.make("CartPole-v1", 0, seed=0), "num_envs 0"),
        (lambda: envs.make("CartPole-v1", 1, seed=-1), "seed -1"),
        (lambda: envs.make("CartPole-v1", 1, seed=2**31), "outside"),
        (lambda: envs.make_episodes("CartPole-v1", []), "at least one seed"),
        (lambda: envs.make("CartPole-v1", 1, seed=0, profile="standard"), "Atari"),
        (lambda: envs.make("CartPole-v1", 1, seed=0, max_episode_steps=0), "at least 1"),
        (lambda: envs.make("CartPole-v1", 1, seed=0, backend="evpool"), "did you mean 'envpool'"),  # type: ignore[arg-type]
        (lambda: envs.make("smoothrl/Toy-v0", 1, seed=0, backend="envpool"), "does not serve"),
        (lambda: envs.make("Hopper-v4", 1, seed=0, backend="envpool", healthy_z_range=(0, 1)), "healthy_z"),
        (lambda: envs.make("PongNoFrameskip-v4", 1, seed=0, profile="single"), "single-frame"),
        (lambda: envs.make("PongNoFrameskip-v4", 1, seed=0, crop_shft=1), "crop_shift"),
        (lambda: envs.make("PongNoFrameskip-v4", 1, seed=0, crop_shift=40), "leaves the screen"),
        (lambda: envs.make("PongNoFrameskip-v4", 1, seed=0, backend="envpool"), "ale-py"),
        (lambda: envs.make("MinAtar/Freeway-v1", 1, seed=0, stick=1), "sticky"),
    ],
)
def test_bad_requests_say_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_missing_packages_name_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"pip install 'gymnasium\[box2d\]'"):
        envs.make("LunarLander-v3", 1, seed=0)
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install ale-py"):
        envs.make("PongNoFrameskip-v4", 1, seed=0)
    with pytest.raises(UserError, match="pip install minatar"):
        envs.make("MinAtar/Freeway-v1", 1, seed=0)
    with pytest.raises(UserError, match="pip install envpool"):
        envs.make("Hopper-v4", 1, seed=0, backend="envpool")
    assert envs.spec("Hopper-v4").backend == "gymnasium"


def test_settings_that_envpool_does_not_know_fall_back_to_gymnasium() -> None:
    assert envs.spec("Hopper-v4", healthy_z_range=(0.5, 2.0)).backend == "gymnasium"
    assert envs.spec("Hopper-v4", ctrl_cost_weight=0.1).backend == "envpool"


def test_no_torch_is_imported() -> None:
    code = "import sys, smoothrl.envs as e; e.spec('Hopper-v4'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
