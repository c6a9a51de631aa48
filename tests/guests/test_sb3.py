"""Agents of the real Stable-Baselines3, imported without it."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from smoothrl import SmoothedPolicy
from smoothrl.agents import Smoothing, load_agent, save_agent
from smoothrl.agents.importers import import_sb3, looks_normalised, read_statistics
from smoothrl.errors import UserError

sb3 = pytest.importorskip(
    "stable_baselines3", reason="needs the extra sb3 (the real library to compare with)"
)
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

ROWS = 1000


def observations(env: gym.Env[Any, Any], seed: int = 0) -> np.ndarray:
    """Observations of random play."""
    env.action_space.seed(seed)
    raw, _ = env.reset(seed=seed)
    rows = []
    while len(rows) < ROWS:
        rows.append(raw)
        raw, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            raw, _ = env.reset()
    return np.stack(rows)


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """PPO trained by the library itself on Hopper with VecNormalize, saved its own way."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("hopper")
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Hopper-v5")]))
    model = sb3.PPO("MlpPolicy", env, n_steps=512, n_epochs=3, device="cpu", seed=0, learning_rate=3e-3)
    model.learn(2048)
    model.save(folder / "ppo.zip")
    env.save(str(folder / "stats.pkl"))
    env.training = False
    return model, env, folder


def test_ppo_on_mujoco_acts_identically(hopper: tuple[Any, Any, Path]) -> None:
    model, env, folder = hopper
    found = import_sb3(folder / "ppo.zip", "Hopper-v5", normaliser=read_statistics(folder / "stats.pkl"))
    rows = observations(gym.make("Hopper-v5"))
    rows[::7] *= 30.0
    theirs = model.predict(env.normalize_obs(rows), deterministic=True)[0]
    ours = SmoothedPolicy(found.agent).predict(rows)[0]
    assert np.abs(theirs).max() == 1.0, "some action must reach the box for the clipping to be tested"
    assert theirs.shape == ours.shape == (ROWS, 3)
    assert np.abs(theirs - ours).max() < 1e-6
    with torch.no_grad():
        values = model.policy.predict_values(torch.from_numpy(env.normalize_obs(rows)))
        assert torch.allclose(found.parts["critic"].network(found.agent.observe(rows)), values, atol=1e-4)
    assert found.agent.info.steps == 2048
    assert looks_normalised(folder / "ppo.zip")


def test_imported_agent_file_is_an_ordinary_one(hopper: tuple[Any, Any, Path], tmp_path: Path) -> None:
    _, _, folder = hopper
    found = import_sb3(folder / "ppo.zip", "Hopper-v5", normaliser=read_statistics(folder / "stats.pkl"))
    agent = load_agent(
        save_agent(found.agent, tmp_path / "a.safetensors"), smooth=Smoothing("median", 0.2, 50)
    )
    assert agent.name == "ppo+rs"
    rows = observations(gym.make("Hopper-v5"))[:20]
    smooth = SmoothedPolicy(agent, seed=3).predict(rows)[0]
    assert np.array_equal(smooth, SmoothedPolicy(agent, seed=3).predict(rows)[0])
    assert np.abs(smooth).max() <= 1.0


def test_evaluate_policy_of_the_library_runs_on_it(hopper: tuple[Any, Any, Path]) -> None:
    model, env, folder = hopper
    agent = import_sb3(
        folder / "ppo.zip", "Hopper-v5", normaliser=read_statistics(folder / "stats.pkl")
    ).agent
    plain = DummyVecEnv([lambda: gym.wrappers.RecordEpisodeStatistics(gym.make("Hopper-v5"))])
    plain.seed(5)
    mine = evaluate_policy(SmoothedPolicy(agent), plain, 3, return_episode_rewards=True, warn=False)  # type: ignore[arg-type]
    normalised = VecNormalize(
        DummyVecEnv([lambda: gym.wrappers.RecordEpisodeStatistics(gym.make("Hopper-v5"))]),
        training=False,
        norm_reward=False,
    )
    normalised.obs_rms = env.obs_rms
    normalised.seed(5)
    theirs = evaluate_policy(model, normalised, 3, return_episode_rewards=True, warn=False)
    assert mine[1] == theirs[1]
    assert np.allclose(mine[0], theirs[0], atol=1e-2)


def test_the_whole_chain_from_the_command_line(
    hopper: tuple[Any, Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(words: str) -> str:
        done = command(*words.split())
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    source = hopper[2]
    said = run(f"import {source / 'ppo.zip'} --from sb3 --env Hopper-v5 --out raw.safetensors")
    assert "without --normaliser it will act wrongly" in said
    stats = source / "stats.pkl"
    said = run(
        f"import {source / 'ppo.zip'} --from sb3 --env Hopper-v5 --normaliser {stats} --out a.safetensors"
    )
    assert "mean and std, clipped at 10" in said
    noisy = "--smooth median --sigma 0.2 --samples 10 --episodes 2"
    assert "ppo+rs on Hopper-v5" in run(f"evaluate a.safetensors {noisy}")
    assert "mad linf 0.075" in run(f"attack a.safetensors --attack mad --epsilon 0.075 {noisy}")
    run("certify actions a.safetensors --smooth median --sigma 0.2 --samples 100 --episodes 1 --out c.json")
    run(
        "train s-ppo --env Hopper-v5 --init a.safetensors --steps 256 --set horizon=256 minibatches=4 "
        "epochs=1 --samples 4 --out tuned"
    )
    first, tuned = load_agent("a.safetensors"), load_agent("tuned")
    assert (tuned.info.method, str(tuned.smoothing)[:17]) == ("s-ppo", "median, sigma 0.2")
    x = torch.randn(50, 11, generator=torch.Generator().manual_seed(0))
    moved = (tuned.forward(x).clamp(-1, 1) - first.forward(x)).abs().mean()
    assert 0.0 < float(moved) < 0.2, "it starts from the imported agent"
    model = sb3.DQN("MlpPolicy", gym.make("CartPole-v1"), device="cpu", buffer_size=10, seed=0)
    model.save("dqn.zip")
    run("import dqn.zip --from sb3 --env CartPole-v1 --out q.safetensors")
    run("certify radius q.safetensors --smooth vote --sigma 0.05 --samples 100 --episodes 1 --out r.json")
    run("train s-dqn --env CartPole-v1 --base q.safetensors --sigma 0.05 --steps 100 --out denoised")
    assert load_agent("denoised").info.method == "s-dqn"


class Discretes(gym.ObservationWrapper):  # type: ignore[type-arg]
    """Images of numbers: a tiny environment for CNN policies."""

    def __init__(self, size: int = 84) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(0, 255, (4, size, size), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(np.abs(observation * 1e6).astype(np.uint64))
        brightest = rng.integers(1, 256)
        return rng.integers(0, brightest, self.observation_space.shape, dtype=np.uint8, endpoint=True)


def _shaken(model: Any, seed: int = 1) -> Any:
    """Random weights instead of training: every output differs visibly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.policy.parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=generator))
    return model


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "ppo-relu-own-sizes": lambda: (
        sb3.PPO(
            "MlpPolicy",
            env := gym.make("Walker2d-v5"),
            device="cpu",
            policy_kwargs={"net_arch": {"pi": [32, 16, 8], "vf": [24]}, "activation_fn": torch.nn.ReLU},
        ),
        env,
    ),
    "ppo-elu": lambda: (
        sb3.PPO(
            "MlpPolicy",
            env := gym.make("Hopper-v5"),
            device="cpu",
            policy_kwargs={"activation_fn": torch.nn.ELU},
        ),
        env,
    ),
    "ppo-no-hidden-layer": lambda: (
        sb3.PPO("MlpPolicy", env := gym.make("Hopper-v5"), device="cpu", policy_kwargs={"net_arch": []}),
        env,
    ),
    "ppo-sde": lambda: (sb3.PPO("MlpPolicy", env := gym.make("Hopper-v5"), device="cpu", use_sde=True), env),
    "ppo-discrete": lambda: (sb3.PPO("MlpPolicy", env := gym.make("CartPole-v1"), device="cpu"), env),
    "a2c-discrete": lambda: (sb3.A2C("MlpPolicy", env := gym.make("Acrobot-v1"), device="cpu"), env),
    "a2c-continuous": lambda: (sb3.A2C("MlpPolicy", env := gym.make("Pendulum-v1"), device="cpu"), env),
    "dqn": lambda: (sb3.DQN("MlpPolicy", env := gym.make("CartPole-v1"), device="cpu"), env),
    "dqn-cnn": lambda: (
        sb3.DQN(
            "CnnPolicy", env := Discretes(), device="cpu", buffer_size=10, policy_kwargs={"net_arch": []}
        ),
        env,
    ),
    "dqn-cnn-with-layers": lambda: (
        sb3.DQN(
            "CnnPolicy", env := Discretes(48), device="cpu", buffer_size=10, policy_kwargs={"net_arch": [32]}
        ),
        env,
    ),
    "ppo-cnn": lambda: (
        sb3.PPO("CnnPolicy", env := Discretes(48), device="cpu", n_steps=8, batch_size=8),
        env,
    ),
    "ppo-cnn-two-extractors": lambda: (
        sb3.PPO(
            "CnnPolicy",
            env := Discretes(48),
            device="cpu",
            n_steps=8,
            batch_size=8,
            policy_kwargs={"share_features_extractor": False, "net_arch": [16]},
        ),
        env,
    ),
    "ppo-sde-squashed": lambda: (
        sb3.PPO(
            "MlpPolicy",
            env := gym.make("Hopper-v5"),
            device="cpu",
            use_sde=True,
            policy_kwargs={"squash_output": True},
        ),
        env,
    ),
    "sac-sde": lambda: (
        sb3.SAC(
            "MlpPolicy",
            env := gym.make("Pendulum-v1"),
            device="cpu",
            buffer_size=10,
            use_sde=True,
            policy_kwargs={"net_arch": [32]},
        ),
        env,
    ),
    "sac-no-hidden-layer": lambda: (
        sb3.SAC(
            "MlpPolicy",
            env := gym.make("Hopper-v5"),
            device="cpu",
            buffer_size=10,
            policy_kwargs={"net_arch": []},
        ),
        env,
    ),
    "td3-tanh": lambda: (
        sb3.TD3(
            "MlpPolicy",
            env := gym.make("Walker2d-v5"),
            device="cpu",
            buffer_size=10,
            policy_kwargs={"net_arch": [30, 20], "activation_fn": torch.nn.Tanh},
        ),
        env,
    ),
    "sac": lambda: (sb3.SAC("MlpPolicy", env := gym.make("Pendulum-v1"), device="cpu", buffer_size=10), env),
    "td3": lambda: (sb3.TD3("MlpPolicy", env := gym.make("Hopper-v5"), device="cpu", buffer_size=10), env),
    "ddpg": lambda: (
        sb3.DDPG("MlpPolicy", env := gym.make("Pendulum-v1"), device="cpu", buffer_size=10),
        env,
    ),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_algorithm_acts_identically(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, env = MODELS[name]()
    rows = observations(env)
    rows = rows if rows.ndim == 4 else rows * 5.0
    for seed in range(20):
        theirs = _shaken(model, seed).predict(rows, deterministic=True)[0]
        if np.ptp(theirs.astype(float)) > 0:
            break
    else:
        pytest.fail("a constant policy proves nothing")
    model.save(tmp_path / "model.zip")
    agent = import_sb3(tmp_path / "model.zip", "CartPole-v1").agent
    assert agent.info.method == {"ddpg": "td3"}.get(name, name.split("-")[0])
    ours = SmoothedPolicy(agent).predict(rows)[0]
    assert theirs.shape == ours.shape
    assert len(theirs) == ROWS
    if agent.discrete:
        assert (theirs == ours).all()
    else:
        assert np.abs(theirs - ours).max() < 1e-6 * max(1.0, np.abs(theirs).max())
    if name.startswith("dqn"):
        with torch.no_grad():
            wanted = model.q_net(model.policy.obs_to_tensor(rows[:50])[0])
        assert torch.allclose(agent.forward(agent.observe(rows[:50])), wanted, rtol=1e-5, atol=1e-5)
    again = load_agent(save_agent(agent, tmp_path / "agent.safetensors"))
    assert again.digest == agent.digest


def test_vecnormalize_of_another_algorithm_and_its_own_settings(tmp_path: Path) -> None:
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Hopper-v5")]), clip_obs=2.0, epsilon=1e-2)
    model = sb3.SAC("MlpPolicy", env, device="cpu", buffer_size=300, learning_starts=190, seed=0)
    model.learn(200)
    _shaken(model).save(tmp_path / "sac.zip")
    env.save(str(tmp_path / "stats.pkl"))
    env.training = False
    rows = observations(gym.make("Hopper-v5"))
    theirs = model.predict(env.normalize_obs(rows), deterministic=True)[0]
    agent = import_sb3(
        tmp_path / "sac.zip", "Hopper-v5", normaliser=read_statistics(tmp_path / "stats.pkl")
    ).agent
    assert np.abs(env.normalize_obs(rows)).max() == 2.0
    assert np.abs(theirs - SmoothedPolicy(agent).predict(rows)[0]).max() < 1e-6


def test_first_layers_that_older_versions_shared(tmp_path: Path) -> None:
    env = gym.make("Hopper-v5")
    model = _shaken(sb3.PPO("MlpPolicy", env, device="cpu", policy_kwargs={"net_arch": [64, 32]}))
    model.save(tmp_path / "new.zip")

    def older(name: str, data: bytes) -> bytes:
        if name != "policy.pth":
            return data
        state = torch.load(io.BytesIO(data), weights_only=True)
        moved = {
            k.replace("policy_net.0", "shared_net.0").replace("policy_net.2", "policy_net.0"): v
            for k, v in state.items()
            if "value_net" not in k
        }
        moved |= {f"mlp_extractor.value_net.0.{k}": torch.zeros(s) for k, s in _sizes(32, 64).items()}
        moved |= {f"value_net.{k}": torch.zeros(s) for k, s in _sizes(1, 32).items()}
        buffer = io.BytesIO()
        torch.save(moved, buffer)
        return buffer.getvalue()

    with zipfile.ZipFile(tmp_path / "new.zip") as old, zipfile.ZipFile(tmp_path / "old.zip", "w") as new:
        for name in old.namelist():
            new.writestr(name, older(name, old.read(name)))
    rows = observations(env)
    agent = import_sb3(tmp_path / "old.zip", "Hopper-v5").agent
    theirs = model.predict(rows, deterministic=True)[0]
    assert np.abs(theirs - SmoothedPolicy(agent).predict(rows)[0]).max() < 1e-6


def _sizes(outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {"weight": (outputs, inputs), "bias": (outputs,)}


def test_one_observation_and_a_batch(tmp_path: Path) -> None:
    model = sb3.PPO("MlpPolicy", gym.make("CartPole-v1"), device="cpu")
    model.save(tmp_path / "m.zip")
    policy = SmoothedPolicy(import_sb3(tmp_path / "m.zip", "CartPole-v1").agent)
    one, state = policy.predict(np.zeros(4, np.float32), state=None)
    many, _ = policy.predict(np.zeros((3, 4), np.float32))
    assert (one.shape, many.shape, state) == ((), (3,), None)
    with pytest.raises(UserError, match=r"shape \(5,\)"):
        policy.predict(np.zeros(5, np.float32))
    with pytest.raises(UserError, match="not a dictionary"):
        policy.predict({"a": np.zeros(4)})


def test_stochastic_predictions_stay_in_the_box(hopper: tuple[Any, Any, Path]) -> None:
    agent = import_sb3(hopper[2] / "ppo.zip", "Hopper-v5").agent
    rows = np.zeros((400, 11))
    drawn = SmoothedPolicy(agent).predict(rows, deterministic=False)[0]
    assert drawn.std(axis=0).min() > 0.3
    assert np.abs(drawn).max() <= 1.0


# ------------------------------------------------------------------------------ refusals


def _rewritten(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as out:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "data":
                content = json.loads(data)
                change(content)
                data = json.dumps(content).encode()
            out.writestr(name, data)
    return target


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch executed",)


def test_a_space_that_would_run_code_is_refused(
    hopper: tuple[Any, Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    packed = base64.b64encode(pickle.dumps(Evil())).decode()
    for key in ("observation_space", "action_space"):
        path = _rewritten(
            hopper[2] / "ppo.zip",
            tmp_path / "x.zip",
            lambda d, k=key: d[k].update({":serialized:": packed}),  # type: ignore[misc]
        )
        with pytest.raises(UserError, match=r"system"):
            import_sb3(path, "Hopper-v5")
    (tmp_path / "stats.pkl").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match=r"system"):
        read_statistics(tmp_path / "stats.pkl")
    assert not (tmp_path / "executed").exists()


def test_code_in_fields_nobody_reads_never_runs(
    hopper: tuple[Any, Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    packed = base64.b64encode(pickle.dumps(Evil())).decode()
    path = _rewritten(
        hopper[2] / "ppo.zip",
        tmp_path / "x.zip",
        lambda d: d["policy_class"].update({":serialized:": packed}),
    )
    import_sb3(path, "Hopper-v5")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (3,))}), "Dict"),
        (gym.spaces.MultiDiscrete([2, 3]), "MultiDiscrete"),
        (gym.spaces.Discrete(3, start=1), "start at 0"),
        (gym.spaces.Box(-1, 1, (3, 3)), r"shape \(3, 3\)"),
    ],
)
def test_spaces_that_are_not_supported_are_named(
    space: gym.Space[Any], words: str, hopper: tuple[Any, Any, Path], tmp_path: Path
) -> None:
    packed = base64.b64encode(pickle.dumps(space)).decode()
    path = _rewritten(
        hopper[2] / "ppo.zip",
        tmp_path / "x.zip",
        lambda d: d["action_space"].update({":serialized:": packed}),
    )
    with pytest.raises(UserError, match=words):
        import_sb3(path, "Hopper-v5")


class Doubled(BaseFeaturesExtractor):
    """An extractor without a single weight, which a reader of weights alone would miss."""

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__(space, space.shape[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * x


class Own(sb3.ppo.MlpPolicy):  # type: ignore[misc]
    pass


def test_code_of_their_own_is_refused_even_where_the_weights_would_fit(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    for name, policy, kwargs in (
        ("Doubled", "MlpPolicy", {"features_extractor_class": Doubled}),
        ("test_sb3", Own, {}),
    ):
        sb3.PPO(policy, env, device="cpu", policy_kwargs=kwargs).save(tmp_path / "m.zip")  # type: ignore[arg-type]
        with pytest.raises(UserError, match=f"of its own .*{name}"):
            import_sb3(tmp_path / "m.zip", "CartPole-v1")
    dictionary = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (3,)), "b": gym.spaces.Box(-1, 1, (2,))})
    for entry, words in (
        (dictionary, "Dict"),
        (gym.spaces.Box(-1, 1, (5,)), r"observations of shape \(5,\)"),
    ):
        sb3.PPO("MlpPolicy", env, device="cpu").save(tmp_path / "m.zip")
        packed = base64.b64encode(pickle.dumps(entry)).decode()
        path = _rewritten(
            tmp_path / "m.zip",
            tmp_path / "x.zip",
            lambda d, p=packed: d["observation_space"].update({":serialized:": p}),  # type: ignore[misc]
        )
        with pytest.raises(UserError, match=words):
            import_sb3(path, "CartPole-v1")


def test_other_refusals(hopper: tuple[Any, Any, Path], tmp_path: Path) -> None:
    good = hopper[2] / "ppo.zip"
    path = _rewritten(
        good,
        tmp_path / "x.zip",
        lambda d: d.update(policy_kwargs={"activation_fn": "<class 'mine.Strange'>"}),
    )
    with pytest.raises(UserError, match=r"mine\.Strange"):
        import_sb3(path, "Hopper-v5")
    (tmp_path / "cut.zip").write_bytes(good.read_bytes()[:-300])
    with pytest.raises(UserError, match="truncated"):
        import_sb3(tmp_path / "cut.zip", "Hopper-v5")
    with pytest.raises(UserError, match="no such file"):
        import_sb3(tmp_path / "none.zip", "Hopper-v5")
    with pytest.raises(UserError, match="VecNormalize"):
        read_statistics(good)
    np.savez(tmp_path / "other.npz", mean=np.zeros(4), var=np.ones(4))
    with pytest.raises(UserError, match=r"shape \(4,\)"):
        import_sb3(good, "Hopper-v5", normaliser=read_statistics(tmp_path / "other.npz"))
    buffer = io.BytesIO()
    pickle.dump({"mean": np.zeros(3)}, buffer)
    (tmp_path / "dict.pkl").write_bytes(buffer.getvalue())
    with pytest.raises(UserError, match="not a VecNormalize"):
        read_statistics(tmp_path / "dict.pkl")
