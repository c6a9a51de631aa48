"""The NumPy games are the package's games, frame by frame and draw by draw."""

from __future__ import annotations

import numpy as np
import pytest

from smoothrl import envs

minatar = pytest.importorskip("minatar")


def policy(game: str, frame: np.ndarray, t: int, rng: np.random.Generator) -> int:
    """Play well for a while, to see bricks broken and crossings made, then at random."""
    if t > 300 and game == "breakout":
        return int(rng.integers(3))
    if game == "freeway":
        return 1 if rng.random() < 0.9 else int(rng.integers(3))
    paddle, ball = (int(np.argwhere(frame[c])[0][1]) for c in range(2))
    return 1 if ball < paddle else 2 if ball > paddle else 0


@pytest.mark.parametrize("game", ["freeway", "breakout"])
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_vectorised_game_equals_the_package(game: str, seed: int) -> None:
    """Through the package's own Gymnasium-style seeding, with sticky actions off as ours are."""
    reference = minatar.Environment(game, sticky_action_prob=0.0)
    reference.seed(seed)
    reference.reset()
    actions = reference.minimal_action_set()
    episodes = envs.make_episodes(f"MinAtar/{game.capitalize()}-v1", [99, seed])
    assert episodes.description.backend == "numpy"
    frame = episodes.reset()[1]
    rng = np.random.default_rng(seed)
    total = 0.0
    for t in range(2600):
        assert frame.dtype == np.uint8
        assert np.array_equal(frame, np.moveaxis(reference.state(), -1, 0))
        action = policy(game, frame, t, rng)
        expected_reward, expected_end = reference.act(actions[action])
        obs, reward, terminated, truncated = episodes.step(np.array([1]), np.array([action]))
        frame = obs[0]
        assert (reward[0], terminated[0], truncated[0]) == (expected_reward, expected_end, False)
        total += expected_reward
        if expected_end:
            assert np.array_equal(frame, np.moveaxis(reference.state(), -1, 0))
            break
    assert total > 3


def test_all_bricks_cleared_brings_new_ones() -> None:
    """The rarest branch, reached by setting both games to the same state."""
    from smoothrl.envs.minatar_lanes import Breakout

    game = Breakout(1)
    game.reset(0, np.random.RandomState(0))
    reference = minatar.Environment("breakout", sticky_action_prob=0.0)
    reference.seed(0)
    reference.reset()
    for x, y, direction, strike in [(4, 8, 2, False), (5, 8, 3, True), (0, 8, 3, False), (4, 1, 0, False)]:
        inner = reference.env
        inner.brick_map[:] = 0
        game.bricks[0] = False
        inner.ball_x, inner.ball_y, inner.ball_dir, inner.strike = x, y, direction, strike
        inner.pos, inner.terminal = 4, False
        game.ball_x[0], game.ball_y[0], game.direction[0], game.strike[0] = x, y, direction, strike
        game.pos[0] = 4
        expected = reference.act(0)
        reward, over = game.act(np.array([0]), np.array(["n"]))
        assert (reward[0], over[0]) == expected
        assert np.array_equal(game.draw(np.array([0]))[0], np.moveaxis(reference.state(), -1, 0))


@pytest.mark.parametrize("name", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
def test_every_game_has_both_action_sets(name: str) -> None:
    full, minimal = (envs.spec(f"MinAtar/{name}-v{v}") for v in (0, 1))
    assert full.action_size == 6
    assert minimal.action_size <= 6
    assert full.obs_shape[1:] == (10, 10)
    assert full.obs_dtype == "uint8"
    assert full.obs_scale == 1.0


def test_sticky_actions_go_through_the_package() -> None:
    assert envs.spec("MinAtar/Freeway-v1", sticky=0.1).backend == "minatar"
    assert envs.spec("MinAtar/Freeway-v1").backend == "numpy"
    assert envs.spec("MinAtar/Freeway-v1", backend="gymnasium").backend == "minatar"
