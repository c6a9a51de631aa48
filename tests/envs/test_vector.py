"""The one autoreset mode, on every backend, against episodes played one by one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from smoothrl import envs
from smoothrl.envs import vector
from smoothrl.envs.toy import Toy, toy_targets

CASES = [
    ("smoothrl/Toy-v0", {}),
    ("smoothrl/ToyContinuous-v0", {}),
    ("Hopper-v2", {}),
    ("Hopper-v5", {"backend": "gymnasium"}),
    ("CartPole-v1", {}),
    ("MinAtar/Breakout-v1", {}),
    ("MinAtar/Freeway-v1", {"max_episode_steps": 13}),
    ("MinAtar/Asterix-v1", {"max_episode_steps": 12}),
    ("FreewayNoFrameskip-v4", {"profile": "single-frame", "max_episode_steps": 30}),
]
IDS = [f"{name}-{settings.get('backend', 'auto')}" for name, settings in CASES]


def lane_count(env_id: str) -> int:
    return 2 if "NoFrameskip" in env_id else 3  # an Atari game takes long to start


def random_actions(env: Any, rng: np.random.Generator, count: int) -> np.ndarray:
    space = env.single_action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(space.n, size=count)
    return rng.uniform(-1, 1, (count, *space.shape))


def play(env: Any, actions: list[np.ndarray]) -> list[Any]:
    return [env.step(a) for a in actions]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(np.array_equal(left, right))


def test_toy_returns_are_known_exactly() -> None:
    """Lanes that always answer 1 earn the number of +1 targets of each of their episodes, in order."""
    env = envs.make("smoothrl/Toy-v0", 3, seed=7)
    obs, _ = env.reset()
    seen: list[list[tuple[float, int]]] = [[], [], []]
    for _ in range(60):
        before = obs
        obs, reward, terminated, truncated, info = env.step(np.ones(3, dtype=np.int64))
        assert np.array_equal(reward, (before[:, 0] > 0).astype(float))
        assert not truncated.any()
        for lane in np.flatnonzero(terminated):
            assert info["_final_obs"][lane]
            assert info["_episode_return"][lane]
            assert info["final_obs"][lane, 0] == 0.0  # the toy's last observation
            assert obs[lane, 1] == 0.0  # already the next episode
            seen[lane].append((info["episode_return"][lane], info["episode_length"][lane]))
        for lane in np.flatnonzero(~terminated):
            assert not info or not info["_final_obs"][lane]
    for lane, episodes in enumerate(seen):
        assert len(episodes) >= 7
        for k, (total, length) in enumerate(episodes):
            rng = Toy().np_random.__class__(np.random.PCG64(envs.episode_seed(7, lane, k)))
            targets = toy_targets(rng, continuous=False)
            assert (total, length) == ((targets > 0).sum(), len(targets))


def test_best_return_of_the_continuous_toy_is_its_length() -> None:
    env = envs.make("smoothrl/ToyContinuous-v0", 4, seed=1)
    obs, _ = env.reset()
    ends = 0
    for _ in range(30):
        obs, _, _, _, info = env.step(obs[:, :1])
        if info:
            done = info["_episode_return"]
            ends += done.sum()
            assert info["episode_return"][done] == pytest.approx(info["episode_length"][done], abs=1e-6)
    assert ends > 10


@pytest.mark.parametrize(("env_id", "settings"), CASES, ids=IDS)
def test_lanes_play_the_episodes_of_their_seeds(env_id: str, settings: dict[str, Any]) -> None:
    """Same-step autoreset loses nothing: a lane shows, bit for bit, its single episodes in turn."""
    count = lane_count(env_id)
    env = envs.make(env_id, count, seed=11, **settings)
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert isinstance(env, gymnasium.vector.VectorEnv)
    obs, _ = env.reset()
    rng = np.random.default_rng(0)
    lanes = range(count)
    log: list[list[list[Any]]] = [[[obs[i].copy()]] for i in lanes]
    for _ in range(45):
        actions = random_actions(env, rng, count)
        obs, reward, terminated, truncated, info = env.step(actions)
        assert obs.shape == env.observation_space.shape
        assert obs.dtype == env.observation_space.dtype
        assert reward.dtype == np.float64
        for i in lanes:
            ended = terminated[i] or truncated[i]
            last = info["final_obs"][i] if ended else obs[i]
            log[i][-1].append((actions[i], reward[i], terminated[i], truncated[i], last.copy()))
            if ended:
                total = sum(entry[1] for entry in log[i][-1][1:])
                assert info["episode_return"][i] == total
                assert info["episode_length"][i] == len(log[i][-1]) - 1
                log[i].append([obs[i].copy()])
    env.close()
    assert sum(len(episodes) for episodes in log) > count
    seeded = env.description.backend != "envpool"
    for i in lanes:
        for k, (first, *steps) in enumerate(log[i][: None if seeded else 1]):
            single = envs.make_episodes(env_id, [envs.episode_seed(11, i, k)], **settings)
            assert np.array_equal(single.reset()[0], first)
            for action, *expected in steps:
                got_obs, *got = single.step(np.array([0]), np.asarray(action)[None])
                assert [value[0] for value in got] == expected[:3]
                assert np.array_equal(got_obs[0], expected[3])
            single.close()


def test_envpool_lanes_equal_envpool_itself() -> None:
    """Against EnvPool's own next-step autoreset, with the ignored step left out."""
    envpool = pytest.importorskip("envpool")
    env = envs.make("Hopper-v5", 1, seed=3)
    obs, _ = env.reset()
    raw = envpool.make(
        "Hopper-v5",
        env_type="gymnasium",
        num_envs=1,
        num_threads=1,
        seed=[envs.episode_seed(3, 0, 0)],
        max_episode_steps=1000,
    )
    raw_obs, _ = raw.reset()
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(200):
        assert np.array_equal(obs, raw_obs)
        action = rng.uniform(-1, 1, (1, 3))
        obs, reward, terminated, truncated, info = env.step(action)
        raw_obs, raw_reward, raw_terminated, raw_truncated, _ = raw.step(action)
        assert reward[0] == raw_reward[0]
        assert (terminated[0], truncated[0]) == (raw_terminated[0], raw_truncated[0])
        if terminated[0]:
            assert np.array_equal(info["final_obs"], raw_obs)
            raw_obs = raw.step(action)[0]
            ends += 1
    assert ends > 3


@pytest.mark.parametrize(("env_id", "settings"), CASES, ids=IDS)
def test_same_seed_same_bits_and_restart(env_id: str, settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    first, second = (envs.make(env_id, 2, seed=4, threads=t, **settings) for t in (1, 2))
    actions = [random_actions(first, rng, 2) for _ in range(25)]
    start = first.reset()[0]
    assert np.array_equal(start, second.reset()[0])
    trace = play(first, actions)
    assert same(trace, play(second, actions))
    assert np.array_equal(second.restart(4), start)
    assert same(trace, play(second, actions))
    if "Toy" in env_id or "Hopper" in env_id:
        assert not np.array_equal(first.reset()[0], start)  # the next episodes
    other = envs.make(env_id, 2, seed=9, **settings)
    assert np.array_equal(other.reset(seed=4)[0], start)
    assert same(trace, play(other, actions))
    for env in (first, second, other):
        env.close()


@pytest.mark.parametrize(("env_id", "settings"), CASES, ids=IDS)
def test_state_resumes_bit_by_bit(env_id: str, settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    count = lane_count(env_id)
    env = envs.make(env_id, count, seed=2, **settings)
    env.reset()
    actions = [random_actions(env, rng, count) for _ in range(60)]
    before = play(env, actions[:33])
    state = env.get_state()
    expected = play(env, actions[33:])
    env.close()
    other = envs.make(env_id, count, seed=999, **settings)
    assert np.array_equal(other.set_state(state), before[-1][0])
    assert same(expected, play(other, actions[33:]))
    other.close()


def test_state_after_old_actions_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "HISTORY_SLACK", 3)
    rng = np.random.default_rng(6)
    env = envs.make("smoothrl/Toy-v0", 3, seed=2)
    env.reset()
    for _ in range(100):
        before = env.step(rng.integers(2, size=3))
        assert len(env._history) <= 2 * 8 + 3
        state = env.get_state()
        assert len(state["actions"]) == state["length"].sum()
    other = envs.make("smoothrl/Toy-v0", 3, seed=2)
    assert np.array_equal(other.set_state(state), before[0])
    assert same(other.get_state(), state)
    assert same(env.step(np.ones(3, dtype=np.int64)), other.step(np.ones(3, dtype=np.int64)))


def test_state_of_a_training_game_with_lives() -> None:
    """Episodic life: the saved game is played again from its start, lost lives included."""
    rng = np.random.default_rng(3)
    env = envs.make("BreakoutNoFrameskip-v4", 2, seed=2, training=True)
    env.reset()
    actions = [random_actions(env, rng, 2) for _ in range(120)]
    before = play(env, actions[:70])
    lost = sum(step[2].sum() for step in before)
    games = sum(step[4]["_episode_return"].sum() for step in before if step[4])
    assert lost > games
    assert max(np.abs(step[1]).max() for step in before) <= 1.0
    state = env.get_state()
    expected = play(env, actions[70:])
    assert np.array_equal(env.set_state(state), before[-1][0])
    assert same(expected, play(env, actions[70:]))
    env.close()


def test_time_limit_truncates_and_termination_on_the_last_step_is_kept() -> None:
    env = envs.make("smoothrl/Toy-v0", 2, seed=0, max_episode_steps=3)
    env.reset()
    flags = [env.step(np.zeros(2, dtype=np.int64))[2:4] for _ in range(6)]
    assert [bool(t.any()) for _, t in flags] == [False, False, True] * 2
    assert not any(t.any() for t, _ in flags)
    exact = envs.make("smoothrl/Toy-v0", 1, seed=0, max_episode_steps=5, min_length=5, max_length=5)
    exact.reset()
    for _ in range(5):
        _, _, terminated, truncated, _ = exact.step(np.zeros(1, dtype=np.int64))
    assert terminated[0]
    assert truncated[0]


def test_send_and_recv_are_a_step_in_two() -> None:
    one, two = (envs.make("Hopper-v4", 3, seed=8) for _ in range(2))
    one.reset(), two.reset()
    rng = np.random.default_rng(0)
    for _ in range(40):
        actions = rng.uniform(-1, 1, (3, 3))
        two.send(actions)
        actions_copy = actions.copy()
        actions[:] = np.nan  # the caller may reuse its buffer
        assert same(one.step(actions_copy), two.recv())
    with pytest.raises(RuntimeError, match="recv"):
        two.recv()
    two.send(actions_copy)
    with pytest.raises(RuntimeError, match="send"):
        two.send(actions_copy)


def test_partial_reset() -> None:
    env = envs.make("smoothrl/Toy-v0", 3, seed=0)
    env.reset()
    env.step(np.zeros(3, dtype=np.int64))
    obs, _ = env.reset(options={"reset_mask": np.array([False, True, False])})
    assert obs[1, 1] == 0.0
    after = env.step(np.zeros(3, dtype=np.int64))[0]
    assert np.allclose(after[:, 1], [2 / 8, 1 / 8, 2 / 8])


def test_foreign_state_and_broken_determinism_are_refused() -> None:
    env = envs.make("smoothrl/Toy-v0", 2, seed=0)
    env.reset()
    play(env, [np.ones(2, dtype=np.int64)] * 3)
    state = env.get_state()
    with pytest.raises(ValueError, match="2 environments"):
        envs.make("smoothrl/Toy-v0", 3, seed=0).set_state(state)
    with pytest.raises(ValueError, match="not deterministic"):
        env.set_state({**state, "return": state["return"] + 1.0})


def test_golden_trace() -> None:
    """A trace that must never change: MinAtar Freeway on NumPy's frozen RandomState, always moving up."""
    env = envs.make("MinAtar/Freeway-v1", 4, seed=123)
    env.reset()
    rewards = sum(env.step(np.ones(4, dtype=np.int64))[1] for _ in range(800))
    assert rewards.tolist() == GOLDEN_REWARDS
    assert int(env.reset(seed=123)[0].sum()) == GOLDEN_PIXELS


GOLDEN_REWARDS = [1.0, 9.0, 0.0, 7.0]
GOLDEN_PIXELS = 68
