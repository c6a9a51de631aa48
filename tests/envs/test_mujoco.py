"""v2 physics against its formula, and EnvPool against Gymnasium from the same states."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from smoothrl import envs
from smoothrl.envs import mujoco as physics
from smoothrl.envs.registry import POOL_ON_REQUEST, POOL_PARITY, Request, resolve
from smoothrl.errors import UserError

NAMES = sorted(physics.MODEL_FILES)
V2_MASSES = {
    "Hopper": [3.534, 3.927, 2.714, 5.089],
    "Walker2d": [3.534, 3.927, 2.714, 2.941, 3.927, 2.714, 2.941],
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SMOOTHRL_CACHE", str(tmp_path))
    with physics.quietly():
        yield


def tensor(orientation: np.ndarray, moments: np.ndarray) -> np.ndarray:
    axes = np.zeros(9)
    mujoco.mju_quat2Mat(axes, np.ascontiguousarray(orientation))
    turn = axes.reshape(3, 3)
    return turn @ np.diag(moments) @ turn.T


def compiled(model: Any) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    for body in range(1, model.nbody):
        inertia = tensor(model.body_iquat[body], model.body_inertia[body])
        yield float(model.body_mass[body]), model.body_ipos[body], inertia


def v2_by_hand(name: str) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Masses, centres and inertia tensors from the formula, geom by geom, apart from the package's code."""
    spec = mujoco.MjSpec.from_file(str(physics.gymnasium_model(name)))
    model = spec.compile()
    pieces: list[list[tuple[float, np.ndarray, np.ndarray]]] = [[] for _ in range(model.nbody)]
    for geom in spec.geoms:
        r, h = model.geom_size[geom.id][:2]
        if model.geom_type[geom.id] == mujoco.mjtGeom.mjGEOM_SPHERE:
            volume, moments = 4 / 3 * np.pi * r**3, np.full(3, 0.4 * r * r)
        else:
            length = 2 * h + r
            volume = np.pi * r * r * length
            moments = np.array([(3 * r * r + length**2) / 12] * 2 + [r * r / 2])
        mass = volume * geom.density
        pieces[model.geom_bodyid[geom.id]].append(
            (mass, model.geom_pos[geom.id], tensor(model.geom_quat[geom.id], mass * moments))
        )
    out = []
    for parts in pieces[1:]:
        mass = sum(p[0] for p in parts)
        centre = sum(p[0] * p[1] for p in parts) / mass
        inertia = sum(
            about + m * (np.dot(at - centre, at - centre) * np.eye(3) - np.outer(at - centre, at - centre))
            for m, at, about in parts
        )
        out.append((mass, centre, inertia))
    wanted = spec.compiler.settotalmass
    factor = wanted / sum(p[0] for p in out) if wanted > 0 else 1.0
    return [(m * factor, c, i * factor) for m, c, i in out]


@pytest.mark.parametrize("name", NAMES)
def test_composition_reproduces_the_compiler_when_capsules_are_exact(name: str) -> None:
    file = physics.gymnasium_model(name)
    ours = physics.body_inertials(file, exact_capsules=True)
    model = mujoco.MjModel.from_xml_path(str(file))
    for body, (mass, centre, inertia) in zip(ours, compiled(model), strict=True):
        assert body.mass == pytest.approx(mass, rel=1e-12)
        np.testing.assert_allclose(body.position, centre, atol=1e-12)
        np.testing.assert_allclose(tensor(body.orientation, body.moments), inertia, atol=1e-12, rtol=1e-9)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_v2_masses_and_inertias_follow_the_formula(name: str) -> None:
    """Both the generated XML (EnvPool's) and the patched compiled model (Gymnasium's)."""
    base, file = physics.v2_model_folder(name)
    from_xml = mujoco.MjModel.from_xml_path(str(base / "mujoco" / "assets_gym" / file))
    lanes: Any = resolve(Request(f"{name}-v2", None, False, None, "gymnasium", None, {})).build([0])
    patched = lanes._envs[0].unwrapped.model
    expected = v2_by_hand(name)
    for model in (from_xml, patched):
        for (mass, centre, inertia), (m, c, i) in zip(compiled(model), expected, strict=True):
            assert mass == pytest.approx(m, rel=1e-12)
            np.testing.assert_allclose(centre, c, atol=1e-12)
            np.testing.assert_allclose(inertia, i, atol=1e-12, rtol=1e-9)
    np.testing.assert_allclose(from_xml.body_invweight0, patched.body_invweight0, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(from_xml.dof_invweight0, patched.dof_invweight0, rtol=1e-9, atol=1e-12)
    if name in V2_MASSES:
        np.testing.assert_allclose([m for m, _, _ in expected], V2_MASSES[name], atol=5e-4)


def test_hand_computed_capsule() -> None:
    """r = 1, h = 1: cylinder of length 3: volume 3 pi, across (3 + 9) / 12 = 1, along 1 / 2."""
    volume, moments = physics.capsule_v2(1.0, 1.0)
    assert volume == pytest.approx(3 * np.pi)
    assert moments.tolist() == [1.0, 1.0, 0.5]


def test_generated_model_is_written_once_and_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, file = physics.v2_model_folder("Hopper")
    assert base.is_relative_to(tmp_path)
    path = base / "mujoco" / "assets_gym" / file
    before = path.stat().st_mtime_ns
    assert physics.v2_model_folder("Hopper") == (base, file)
    assert path.stat().st_mtime_ns == before
    assert os.listdir(path.parent) == [file]
    monkeypatch.delenv("SMOOTHRL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert physics.cache_dir() == tmp_path / "xdg" / "smoothrl"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SMOOTHRL_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set SMOOTHRL_CACHE"):
        envs.make("Hopper-v2", 1, seed=0, backend="envpool")


def rollout_pair(env_id: str, steps: int, settings: dict[str, Any]) -> tuple[float, float, int]:
    """Both backends from the noise-free start with the same actions: largest differences, number of ends.

    Every seventh action is far outside the bounds: control costs must use the raw action on both sides.
    """
    rng = np.random.default_rng(0)
    pair = [envs.make(env_id, 1, seed=0, backend=b, **settings) for b in ("envpool", "gymnasium")]
    fast, slow = (env.reset()[0] for env in pair)
    worst_obs, worst_reward, ends = float(np.abs(fast - slow).max()), 0.0, 0
    for t in range(steps):
        scale = 3.0 if t % 7 == 0 else 0.5
        action = rng.normal(size=(1, pair[0].description.action_size)) * scale
        a, b = (env.step(action) for env in pair)
        last = [step[4].get("final_obs", step[0]) for step in (a, b)]
        for left, right in ((a[0], b[0]), last):
            worst_obs = max(worst_obs, float(np.abs(left - right).max()))
        worst_reward = max(worst_reward, abs(float(a[1][0] - b[1][0])))
        assert (a[2][0], a[3][0]) == (b[2][0], b[3][0])
        ends += int(a[2][0] | a[3][0])
    for env in pair:
        env.close()
    return worst_obs, worst_reward, ends


LOCOMOTION = [name for name in POOL_PARITY if name.split("-")[0] in ("Hopper", "Walker2d", "HalfCheetah")]


@pytest.mark.parametrize("env_id", LOCOMOTION)
def test_envpool_equals_gymnasium(env_id: str) -> None:
    """Observations and rewards to 1e-6 over whole episodes (EnvPool's rewards are single precision).

    HalfCheetah: forty steps. Its rounding differences (1e-14 at first, two builds of one engine) grow
    tenfold every few steps while it tumbles, so no two builds agree for long.
    """
    pytest.importorskip("envpool")
    limit = 40 if env_id.startswith("HalfCheetah") else 120
    obs, reward, ends = rollout_pair(env_id, 250, {"reset_noise_scale": 0.0, "max_episode_steps": limit})
    assert obs < 1e-6
    assert reward < 1e-6
    assert ends > 0


@pytest.mark.parametrize("env_id", ["InvertedPendulum-v4", "InvertedPendulum-v5"])
def test_inverted_pendulum_equals_gymnasium(env_id: str) -> None:
    """v4 cannot start without noise: Gymnasium is put into EnvPool's state (the observation is the state)."""
    pytest.importorskip("envpool")
    fast = envs.make_episodes(env_id, [3], backend="envpool")
    slow = envs.make_episodes(env_id, [3], backend="gymnasium")
    obs, _ = fast.reset(), slow.reset()
    raw: Any = slow._lanes._envs[0].unwrapped  # type: ignore[attr-defined]
    raw.set_state(obs[0, :2], obs[0, 2:])
    for t in range(60):
        action = np.array([[0.1 * np.sin(t)]])
        a, b = (episodes.step(np.array([0]), action) for episodes in (fast, slow))
        np.testing.assert_allclose(a[0], b[0], atol=1e-6)
        assert a[1:] == b[1:]
        if a[2][0]:
            break
    assert a[2][0]


CLASSIC = ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]


@pytest.mark.parametrize("env_id", CLASSIC)
def test_classic_control_equals_gymnasium(env_id: str) -> None:
    """One step at a time from EnvPool's observation, as exact as single-precision observations allow."""
    pytest.importorskip("envpool")
    assert env_id in POOL_PARITY
    fast = envs.make_episodes(env_id, [0, 1, 2], backend="envpool")
    slow = envs.make_episodes(env_id, [0], backend="gymnasium", max_episode_steps=10**6)
    obs, _ = fast.reset(), slow.reset()
    raw: Any = slow._lanes._envs[0].unwrapped  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    for _ in range(60):
        ids = np.flatnonzero(fast.running)
        if not len(ids):
            break
        size = fast.description.action_size
        discrete = fast.description.action == "discrete"
        actions = rng.integers(size, size=len(ids)) if discrete else rng.uniform(-1, 1, (len(ids), size))
        after, reward, terminated, _ = fast.step(ids, actions)
        for row, i in enumerate(ids):
            raw.state = classic_state(env_id, obs[i])
            raw.steps_beyond_terminated = None
            expected = raw.step(actions[row])
            np.testing.assert_allclose(after[row], expected[0], atol=1e-6)
            assert reward[row] == pytest.approx(expected[1], abs=1e-6)
            assert terminated[row] == expected[2]
        obs[ids] = after


def classic_state(env_id: str, obs: np.ndarray) -> np.ndarray:
    if env_id == "Acrobot-v1":
        angles = [np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2])]
        return np.array([*angles, obs[4], obs[5]], dtype=np.float64)
    return obs.astype(np.float64)


@pytest.mark.parametrize("env_id", [name for name in POOL_ON_REQUEST if name != "Pendulum-v1"])
def test_ids_where_envpool_differs_are_served_by_gymnasium(env_id: str) -> None:
    """Another MuJoCo build: one step from the same state agrees to 1e-5, a trajectory does not for long."""
    pytest.importorskip("envpool")
    assert envs.spec(env_id).backend == "gymnasium"
    pair = [
        envs.make_episodes(env_id, [0], backend=b, reset_noise_scale=0.0) for b in ("envpool", "gymnasium")
    ]
    np.testing.assert_allclose(pair[0].reset(), pair[1].reset(), atol=1e-12)
    action = np.random.default_rng(0).uniform(-0.4, 0.4, (1, pair[0].description.action_size))
    a, b = (episodes.step(np.array([0]), action) for episodes in pair)
    np.testing.assert_allclose(a[0], b[0], atol=1e-5)
    np.testing.assert_allclose(a[1], b[1], atol=1e-5)
    for episodes in pair:
        episodes.close()


def test_pendulum_differs_at_its_speed_limit_only() -> None:
    pytest.importorskip("envpool")
    assert envs.spec("Pendulum-v1").backend == "gymnasium"
    fast, slow = (envs.make_episodes("Pendulum-v1", [0], backend=b) for b in ("envpool", "gymnasium"))
    obs, _ = fast.reset(), slow.reset()
    raw: Any = slow._lanes._envs[0].unwrapped  # type: ignore[attr-defined]
    at_limit = 0
    for _ in range(150):
        raw.state = np.array([np.arctan2(obs[0, 1], obs[0, 0]), obs[0, 2]], dtype=np.float64)
        push = np.array([[2.0 * np.sign(obs[0, 2])]])
        obs, reward, *_ = fast.step(np.array([0]), push)
        expected, gained, *_ = raw.step(push[0])
        limited = abs(obs[0, 2]) >= 8.0
        at_limit += int(limited)
        np.testing.assert_allclose(obs[0], expected, atol=0.1 if limited else 1e-6)
        assert reward[0] == pytest.approx(gained, abs=1e-5)
    assert 0 < at_limit < 150


def test_v2_differs_from_v4_by_inertia_only() -> None:
    episodes = [envs.make_episodes(f"Hopper-v{v}", [0], reset_noise_scale=0.0) for v in (2, 4)]
    old, new = (e.reset() for e in episodes)
    assert np.array_equal(old, new)
    old, new = (e.step(np.array([0]), np.ones((1, 3)))[0] for e in episodes)
    assert 1e-4 < np.abs(old - new).max() < 0.5
    assert episodes[0].description.obs_shape == episodes[1].description.obs_shape


def test_golden_trace_of_the_papers_hopper() -> None:
    """Twelve steps of Hopper-v2 from the noise-free start; the numbers are its record."""
    episodes = envs.make_episodes("Hopper-v2", [0], reset_noise_scale=0.0)
    episodes.reset()
    obs = np.zeros((1, 11))
    for t in range(12):
        obs, *_ = episodes.step(np.array([0]), np.array([[np.sin(t), np.cos(t), 0.1]]))
    np.testing.assert_allclose(obs[0], GOLDEN_OBS, atol=1e-6)
    assert episodes.returns[0] == pytest.approx(GOLDEN_RETURN, abs=1e-5)


GOLDEN_OBS = [
    1.204099445,
    -0.115229282,
    -0.0822346,
    -0.102710213,
    0.084912165,
    -0.26991881,
    -0.727854843,
    -2.96296122,
    -2.066900916,
    -2.534859286,
    1.427795988,
]
GOLDEN_RETURN = 10.494382441
