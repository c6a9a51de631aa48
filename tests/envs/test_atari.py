"""The single-frame profile against a slow, plain reading of the paper's preprocessing, frame by frame."""

from __future__ import annotations

from typing import Any

import ale_py
import numpy as np
import pytest
from ale_py import roms

from smoothrl import envs
from smoothrl.envs.atari import AtariLanes, atari_profile, single_frame

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def slow_frame(rgb: np.ndarray, shift: int, transpose: bool) -> np.ndarray:
    """Grey (fixed-point BT.601), 4 black columns left and right, 168 rows from 21 + shift, mean of 2x2."""
    r, g, b = (rgb[..., c].astype(np.int64) for c in range(3))
    grey = (9798 * r + 19235 * g + 3735 * b + 16384) // 32768
    padded = np.pad(grey, ((0, 0), (4, 4)))[21 + shift : 21 + shift + 168]
    small = np.floor(padded.reshape(84, 2, 84, 2).mean(axis=(1, 3)) + 0.5).astype(np.uint8)
    return small.T if transpose else small


class SlowAtari:
    """One game on the plain ALE interface, with the wrappers of the paper written out."""

    def __init__(self, rom: str, shift: int, transpose: bool, seed: int, noops: int, lives: bool) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setInt("random_seed", seed)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(roms.get_rom_path(rom))
        self.actions = self.ale.getMinimalActionSet()
        self.fire = "FIRE" in [a.name for a in self.actions]
        self.shift, self.transpose, self.episodic_life = shift, transpose, lives
        self.ale.reset_game()
        for _ in range(noops):
            self.ale.act(0)
        self.screens = [self.ale.getScreenRGB()] * 2
        self.lives = self.ale.lives()
        self.press_start()

    def press_start(self) -> None:
        if self.fire:
            self.skip(1)
            self.skip(2)
        self.lives = self.ale.lives()

    def skip(self, action: int) -> float:
        reward = 0.0
        for frame in range(4):
            reward += self.ale.act(self.actions[action])
            if frame >= 2:
                self.screens[frame - 2] = self.ale.getScreenRGB()
            if self.ale.game_over():
                break
        return reward

    def observation(self) -> np.ndarray:
        return slow_frame(np.maximum(*self.screens), self.shift, self.transpose)[None]

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Observation of the last frames, reward, end of the episode; a lost life goes on in `after_life`."""
        reward = self.skip(action)
        lost = self.episodic_life and 0 < self.ale.lives() < self.lives
        self.lives = self.ale.lives()
        return self.observation(), reward, bool(self.ale.game_over() or lost)

    def after_life(self) -> np.ndarray:
        self.skip(0)
        self.press_start()
        return self.observation()


GAMES = [
    ("Pong", "pong", 10, 4, True),
    ("Freeway", "freeway", 0, 3, False),
    ("RoadRunner", "road_runner", 20, 6, False),
    ("Breakout", "breakout", 0, 4, True),
]


@pytest.mark.parametrize(("name", "rom", "shift", "actions", "transpose"), GAMES, ids=[g[0] for g in GAMES])
def test_single_frame_profile_equals_the_slow_reference(
    name: str, rom: str, shift: int, actions: int, transpose: bool
) -> None:
    """Training mode over lost lives until the game ends: frames, rewards and ends are the same."""
    env = envs.make(
        f"{name}NoFrameskip-v4", 1, seed=3, profile="single-frame", training=True, transpose=transpose
    )
    obs, _ = env.reset()
    lanes: Any = env._lanes
    noops = int(lanes.noops[0])
    assert 1 <= noops <= 30
    slow = SlowAtari(rom, shift, transpose, envs.episode_seed(3, 0, 0), noops, lives=True)
    assert env.description.action_size == actions
    assert lanes.action_names == tuple(a.name for a in slow.actions[:actions])
    assert np.array_equal(obs[0], slow.observation())
    rng = np.random.default_rng(0)
    total, lost, length = 0.0, 0, 0
    for _ in range(500):
        action = int(rng.integers(actions))
        obs, reward, terminated, truncated, info = env.step(np.array([action]))
        frame, raw, ended = slow.step(action)
        total, length = total + raw, length + 1
        assert reward[0] == np.sign(raw)
        assert (terminated[0], truncated[0]) == (ended, False)
        if not ended:
            assert np.array_equal(obs[0], frame)
            continue
        if slow.ale.game_over():
            assert (info["episode_return"][0], info["episode_length"][0]) == (total, length)
            break
        lost += 1
        assert np.array_equal(info["final_obs"][0], frame)
        assert not info["_episode_return"][0]
        assert np.array_equal(obs[0], slow.after_life())
    assert lost >= (1 if name in ("RoadRunner", "Breakout") else 0)
    env.close()


def test_frame_by_hand() -> None:
    """One white 2x2 block, and one block with a single green pixel, where the arithmetic says they are."""
    rgb = np.zeros((210, 160, 3), dtype=np.uint8)
    rgb[31:33, 0:2] = 255
    rgb[33, 2, 1] = 200  # grey 117 (0.587 * 200 = 117.4), a quarter of it 29.25
    frame = single_frame(rgb, 10, False)
    assert frame[0, 2] == 255
    assert frame[1, 3] == 29
    assert frame.sum() == 255 + 29
    assert np.array_equal(single_frame(rgb, 10, True), frame.T)


def test_frame_equals_slow_frame_on_noise() -> None:
    rng = np.random.default_rng(0)
    for shift in (-21, 0, 10, 20, 21):
        rgb = rng.integers(0, 256, (210, 160, 3), dtype=np.uint8)
        assert np.array_equal(single_frame(rgb, shift, False), slow_frame(rgb, shift, False))


def test_noops_are_one_to_thirty_and_never_none() -> None:
    lanes = AtariLanes("freeway", 1, atari_profile("freeway", "single-frame", {}), episodic_life=False)
    drawn = []
    for seed in range(12):
        lanes.reset(np.array([0]), [seed])
        drawn.append(int(lanes.noops[0]))
    lanes.close()
    assert min(drawn) >= 1
    assert max(drawn) <= 30
    assert len(set(drawn)) > 5


def test_standard_profile() -> None:
    """Four frames, newest last; evaluation keeps raw rewards and whole games."""
    env = envs.make("BreakoutNoFrameskip-v4", 2, seed=0)
    assert env.description.obs_shape == (4, 84, 84)
    assert env.description.obs_scale == 255.0
    assert env.description.settings == {"profile": "standard"}
    obs, _ = env.reset()
    for _ in range(5):
        after = env.step(np.array([2, 3]))[0]
        assert np.array_equal(after[:, :3], obs[:, 1:])
        obs = after
    env.close()
    again = envs.make("ALE/Breakout-v5", 2, seed=0)
    assert np.array_equal(again.reset()[0].shape, obs.shape)
    again.close()
