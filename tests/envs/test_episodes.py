"""Single episodes: their trajectories know nothing of their neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smoothrl import envs

CASES = [
    ("smoothrl/Toy-v0", {}),
    ("Hopper-v2", {"max_episode_steps": 40}),
    ("Walker2d-v5", {"backend": "gymnasium", "max_episode_steps": 30}),
    ("CartPole-v1", {}),
    ("MinAtar/Breakout-v1", {}),
    ("MinAtar/Freeway-v1", {"max_episode_steps": 25}),
    ("MinAtar/SpaceInvaders-v1", {"max_episode_steps": 25}),
    ("PongNoFrameskip-v4", {"profile": "single-frame", "max_episode_steps": 8}),
    ("RoadRunnerNoFrameskip-v4", {"max_episode_steps": 6}),
]
IDS = [name for name, _ in CASES]
SEEDS = [5, 0, 77, 2**31 - 2]


def action_for(spec: envs.EnvSpec, seed: int, t: int) -> np.ndarray:
    rng = np.random.default_rng((seed, t))
    if spec.action == "discrete":
        return rng.integers(spec.action_size)
    return rng.uniform(-1, 1, spec.action_size)


def trajectories(env_id: str, seeds: list[int], settings: dict[str, Any]) -> dict[int, list[Any]]:
    """Play all seeds to their end, stepping only those still running."""
    episodes = envs.make_episodes(env_id, seeds, **settings)
    obs = episodes.reset()
    out: dict[int, list[Any]] = {seed: [obs[i].copy()] for i, seed in enumerate(seeds)}
    t = 0
    while episodes.running.any() and t < 200:
        ids = np.flatnonzero(episodes.running)
        actions = np.stack([action_for(episodes.description, seeds[i], t) for i in ids])
        obs, reward, terminated, truncated = episodes.step(ids, actions)
        for row, i in enumerate(ids):
            out[seeds[i]].append((obs[row].copy(), reward[row], terminated[row], truncated[row]))
        t += 1
    for i, seed in enumerate(seeds):
        assert episodes.returns[i] == sum(entry[1] for entry in out[seed][1:])
        assert episodes.lengths[i] == len(out[seed]) - 1
    episodes.close()
    return out


@pytest.mark.parametrize(("env_id", "settings"), CASES, ids=IDS)
def test_an_episode_depends_on_its_seed_alone(env_id: str, settings: dict[str, Any]) -> None:
    seeds = SEEDS[2:] if "NoFrameskip" in env_id else SEEDS  # an Atari game takes long to start
    together = trajectories(env_id, seeds, settings)
    shuffled = trajectories(env_id, seeds[::-1], settings)
    alone = trajectories(env_id, [77], settings)
    for seed in seeds:
        for other in (shuffled, alone):
            if seed in other:
                assert len(other[seed]) == len(together[seed])
                assert np.array_equal(other[seed][0], together[seed][0])
                for left, right in zip(together[seed][1:], other[seed][1:], strict=True):
                    assert np.array_equal(left[0], right[0])
                    assert left[1:] == right[1:]


def test_reset_plays_the_same_episodes_again() -> None:
    episodes = envs.make_episodes("Hopper-v4", [1, 2])
    first = episodes.reset()
    episodes.step(np.array([1]), np.ones((1, 3)))
    assert np.array_equal(episodes.reset(), first)
    assert episodes.lengths.tolist() == [0, 0]
    assert not np.array_equal(first[0], first[1])


def test_subsets_in_any_order() -> None:
    episodes = envs.make_episodes("Hopper-v4", [1, 2, 3])
    reference = envs.make_episodes("Hopper-v4", [1, 2, 3])
    episodes.reset(), reference.reset()
    actions = np.linspace(-1, 1, 9).reshape(3, 3)
    expected = reference.step(np.arange(3), actions)
    got = [episodes.step(np.array(ids), actions[ids]) for ids in ([2, 0], [1])]
    for field in range(4):
        assert np.array_equal(np.concatenate([g[field] for g in got])[[1, 2, 0]], expected[field])


def test_wrong_use_is_refused() -> None:
    episodes = envs.make_episodes("smoothrl/Toy-v0", [0, 1], max_episode_steps=1)
    with pytest.raises(RuntimeError, match="reset"):
        episodes.step(np.array([0]), np.array([0]))
    episodes.reset()
    with pytest.raises(ValueError, match="once"):
        episodes.step(np.array([0, 0]), np.array([0, 0]))
    episodes.step(np.array([0]), np.array([0]))
    with pytest.raises(ValueError, match=r"\[0\] have ended"):
        episodes.step(np.array([0, 1]), np.array([0, 0]))


@pytest.mark.parametrize(
    ("env_id", "drawn"),
    [
        *((f"{name}-v2", True) for name in ("Hopper", "Walker2d", "HalfCheetah", "Ant", "Humanoid")),
        ("CartPole-v1", True),
        ("MinAtar/Freeway-v1", True),
        ("PongNoFrameskip-v4", True),
        ("Acrobot-v1", False),
    ],
)
def test_render_gives_a_picture_or_none(env_id: str, drawn: bool) -> None:
    episodes = envs.make_episodes(env_id, [0])
    episodes.reset()
    frame = episodes.render_frame(0)
    if not drawn:
        assert frame is None
    else:
        assert frame is not None
        assert frame.dtype == np.uint8
        assert frame.ndim == 3
        assert frame.shape[-1] == 3
        assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 3
    episodes.close()
