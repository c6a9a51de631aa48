"""The replay against a plain list of transitions, and the sum tree against cumulated sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoothrl.errors import UserError
from smoothrl.learners.replay import Replay, ReplayConfig, SumTree


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9000), st.integers(0, 2**31))
def test_sum_tree_finds_what_cumulated_sums_find(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = SumTree(size)
    leaves = rng.integers(0, 4, size).astype(float)
    leaves[rng.integers(size)] = 2.0
    index = rng.permutation(size)
    tree.set(index, leaves[index])
    assert tree.total == leaves.sum()
    mass = rng.random(50) * tree.total
    expected = np.searchsorted(np.cumsum(leaves), mass, side="right")
    np.testing.assert_array_equal(tree.find(mass), expected)
    again = SumTree(size)
    again.rebuild(leaves)
    for one, other in zip(tree.levels, again.levels, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sum_tree_never_returns_an_empty_leaf_at_the_very_end() -> None:
    tree = SumTree(200)
    tree.set(np.array([3]), np.array([0.1]))
    assert tree.find(np.array([tree.total])).tolist() == [3]


class Game:
    """Counts: frame t of episode e of a lane shows (lane, e, t); episodes have random lengths."""

    def __init__(self, lanes: int, stack: int, rng: np.random.Generator) -> None:
        self.lanes, self.stack, self.rng = lanes, stack, rng
        self.episode, self.t = np.zeros(lanes, int), np.zeros(lanes, int)

    def frame(self, lane: int, t: int) -> np.ndarray:
        return np.array([[[lane, self.episode[lane] % 251, max(t, 0), t < 0]]], np.uint8)

    def show(self, lane: int) -> np.ndarray:
        return np.concatenate([self.frame(lane, self.t[lane] - k) for k in range(self.stack - 1, -1, -1)])

    def step(self):
        self.t += 1
        final = np.stack([self.show(lane) for lane in range(self.lanes)])
        ended = self.rng.random(self.lanes) < 0.2
        terminated = ended & (self.rng.random(self.lanes) < 0.5)
        rewards = self.rng.normal(size=self.lanes)
        following = final.copy()
        for lane in np.flatnonzero(ended):
            self.episode[lane] += 1
            self.t[lane] = 0
            following[lane] = self.show(lane)
        info = {"final_obs": final, "_final_obs": ended} if ended.any() else {}
        return rewards, terminated, ended & ~terminated, following, final, info


def reference_batch(history, n, gamma, steps, lane, row, rows):
    """The transition in slot (row, lane), worked out from the plain history."""
    t = max(k for k in range(steps) if k % rows == row)
    total, discount = 0.0, 1.0
    for k in range(t, t + n):
        step = history[k]
        total += discount * step["reward"][lane]
        discount *= gamma
        if step["terminated"][lane]:
            return history[t]["obs"][lane], total, 0.0, step["final"][lane]
        if step["truncated"][lane]:
            break
    return history[t]["obs"][lane], total, discount, step["final"][lane]


@pytest.mark.parametrize(("stack", "n"), [(1, 1), (4, 3), (2, 5), (1, 3)])
def test_samples_equal_a_plain_history(stack: int, n: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    game = Game(3, stack, rng)
    config = ReplayConfig(3, 120, (stack, 1, 4), "uint8", stack, n, 0.9, margin=300)
    replay = Replay(config, tmp_path / "frames")
    obs = np.stack([game.show(lane) for lane in range(3)])
    replay.begin(obs)
    history = []
    for step in range(150):
        actions = rng.integers(5, size=3)
        rewards, terminated, truncated, following, final, info = game.step()
        replay.push(actions, rewards, terminated, truncated, following, info)
        history.append(
            {"obs": obs, "reward": rewards, "terminated": terminated, "truncated": truncated, "final": final}
        )
        obs = following
        if step < n:
            continue
        batch = replay.sample(16, 0.4, rng)
        for i, index in enumerate(batch.index):
            row, lane = divmod(int(index), 3)
            s, total, discount, s2 = reference_batch(history, n, 0.9, step + 1, lane, row, replay.rows)
            np.testing.assert_array_equal(batch.observations[i], s)
            assert batch.returns[i] == pytest.approx(total, abs=1e-5)
            assert batch.discounts[i] == pytest.approx(discount, abs=1e-6)
            if discount > 0:
                np.testing.assert_array_equal(batch.following[i], s2)
        replay.update(batch.index, rng.random(16))


def test_weights_are_those_of_the_priorities() -> None:
    replay = Replay(ReplayConfig(1, 8, (1,), "float32", alpha=1.0))
    replay.begin(np.zeros((1, 1), np.float32))
    false = np.zeros(1, bool)
    for _ in range(4):
        replay.push(np.zeros(1, int), np.zeros(1), false, false, np.zeros((1, 1), np.float32), {})
    replay.update(np.arange(4), np.array([1.0, 1.0, 2.0, 4.0]))
    batch = replay.sample(400, 1.0, np.random.default_rng(0))
    assert np.bincount(batch.index).tolist() == [50, 50, 100, 200]
    expected = np.array([1.0, 1.0, 0.5, 0.25])[batch.index]
    np.testing.assert_allclose(batch.weights, expected)


def test_time_limits_may_count_as_terminal() -> None:
    for limits, discount in ((True, 0.0), (False, 0.99)):
        replay = Replay(ReplayConfig(1, 8, (1,), "float32", limits_terminate=limits))
        replay.begin(np.zeros((1, 1), np.float32))
        no, yes = np.zeros(1, bool), np.ones(1, bool)
        info = {"final_obs": np.full((1, 1), 7.0, np.float32)}
        replay.push(np.zeros(1, int), np.ones(1), no, yes, np.zeros((1, 1), np.float32), info)
        batch = replay.sample(1, 0.4, np.random.default_rng(0))
        assert batch.discounts.tolist() == [pytest.approx(discount)]
        assert batch.following.tolist() == [[7.0]]


def test_frames_of_a_checkpoint_survive_until_the_next(tmp_path: Path) -> None:
    """What a run writes after a checkpoint never touches what the checkpoint may sample."""
    rng = np.random.default_rng(5)
    game = Game(2, 4, rng)
    config = ReplayConfig(2, 60, (4, 1, 4), "uint8", 4, 3, margin=60)
    replay = Replay(config, tmp_path / "frames")
    replay.begin(np.stack([game.show(lane) for lane in range(2)]))

    def play() -> None:
        rewards, terminated, truncated, following, _, info = game.step()
        replay.push(np.zeros(2, int), rewards, terminated, truncated, following, info)

    for _ in range(100):
        play()
        if replay.checkpoint_due:
            replay.state()
    state = {k: np.array(v) for k, v in replay.state().items()}
    before = replay.sample(64, 0.4, np.random.default_rng(1))
    while not replay.checkpoint_due:
        play()
    replay._file.flush()
    resumed = Replay(config, tmp_path / "frames")
    resumed.load(state)
    after = resumed.sample(64, 0.4, np.random.default_rng(1))
    np.testing.assert_array_equal(before.observations, after.observations)
    np.testing.assert_array_equal(before.following, after.following)
    np.testing.assert_array_equal(before.index, after.index)


def test_damaged_frames_are_noticed(tmp_path: Path) -> None:
    config = ReplayConfig(1, 8, (1,), "float32", margin=8)
    replay = Replay(config, tmp_path / "frames")
    replay.begin(np.ones((1, 1), np.float32))
    state = replay.state()
    replay.frames[:] = 3.0
    with pytest.raises(UserError, match="--refill-replay"):
        Replay(config, tmp_path / "frames").load(state)
    (tmp_path / "frames").write_bytes(b"abc")
    with pytest.raises(UserError, match="3 bytes"):
        Replay(config, tmp_path / "frames")


def test_a_200k_replay_of_frames_takes_little_memory() -> None:
    """84 x 84 frames once: 1.8 GB on disk with the margin, far from the 8 GB of stacks."""
    config = ReplayConfig(16, 200_000, (4, 84, 84), "uint8", 4, margin=2500)
    rows = config.capacity // config.lanes
    frames = (rows + rows // 4 + 20 + config.margin) * config.lanes
    assert frames * 84 * 84 < 2.1e9
