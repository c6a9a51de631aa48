"""Agents the paper's authors released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smoothrl.agents import load_agent, save_agent
from smoothrl.agents.agent import Agent, AgentInfo
from smoothrl.agents.importers import (
    denoised_agent,
    import_denoiser,
    import_q_network,
    import_released,
    kind_of,
)
from smoothrl.agents.importers.denoisers import turned
from smoothrl.agents.importers.released import method_from_name
from smoothrl.agents.normaliser import Normaliser
from smoothrl.agents.parts import load_part, save_part
from smoothrl.attacks import load_adversary, make_attack
from smoothrl.cli.main import main
from smoothrl.errors import UserError
from smoothrl.networks import DnCNN, NatureQ
from smoothrl.noise import StreamNoise
from smoothrl.protocols import PAPER

from . import pickles as p

RELEASED = Path(__file__).resolve().parents[3] / "shared" / "released"
needs_files = pytest.mark.skipif(not RELEASED.is_dir(), reason=f"the released agents are not at {RELEASED}")


def reference_mean(state: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    for i in (0, 1):
        x = np.tanh(x @ state[f"affine_layers.{i}.weight"].T + state[f"affine_layers.{i}.bias"])
    return x @ state["final_mean.weight"].T + state["final_mean.bias"]


def test_walker_checkpoint_acts_as_its_numbers_say(tmp_path: Path) -> None:
    path, inside = p.released(tmp_path / "walker_sppo_sgld_median.model")
    found = import_released(path)
    agent = found.agent
    assert (agent.info.method, agent.info.env_id) == ("s-ppo+sgld", "Walker2d-v2")
    assert (agent.info.observation_shape, agent.info.actions, agent.info.steps) == ((17,), 6, 900)
    assert (agent.smoothing.kind, agent.smoothing.sigma, agent.smoothing.samples) == ("median", 0.2, 100)
    raw = np.random.default_rng(1).standard_normal((50, 17)) * 3
    wanted = np.clip((raw - inside["mean"]) / (inside["std"] + 1e-8), -10, 10)
    assert np.allclose(agent.observe(raw), wanted, atol=1e-6)
    assert np.allclose(agent.forward(agent.observe(raw)), reference_mean(inside["policy"], wanted), atol=1e-5)
    assert np.array_equal(agent.network.log_std.detach(), inside["policy"]["log_stdev"])  # type: ignore[union-attr,operator]


def test_imported_agent_survives_its_file(tmp_path: Path) -> None:
    path, _ = p.released(tmp_path / "walker_atla.model", adversary=17)
    found = import_released(path)
    again = load_agent(save_agent(found.agent, tmp_path / "agent.safetensors"))
    assert again.digest == found.agent.digest
    part = load_part(save_part(found.parts["adversary"], tmp_path / "adversary.safetensors"), "adversary")
    assert part.about["victim"] == found.agent.digest
    x = torch.randn(9, 17, generator=torch.Generator().manual_seed(0))
    assert torch.equal(part.network(x), found.parts["adversary"].network(x))
    with pytest.raises(UserError, match="'director' is needed"):
        load_part(tmp_path / "adversary.safetensors", "director")


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("hopper_vanilla_median", "ppo"),
        ("hopper_sgld_median", "ppo+sgld"),
        ("walker_pa_atla_median", "ppo+pa-atla"),
        ("hopper_sppo_median", "s-ppo"),
        ("walker_sppo_pa_atla_median", "s-ppo+pa-atla"),
        ("walker_sppo_wocar", "s-ppo+wocar"),
        ("my_agent", None),
        ("hopper", None),
    ],
)
def test_method_from_the_file_name(name: str, method: str | None) -> None:
    assert method_from_name(Path(name + ".model")) == method


def test_content_must_fit_the_method(tmp_path: Path) -> None:
    path, _ = p.released(tmp_path / "walker_sgld_median.model", q=True)
    with pytest.raises(UserError, match="trained with wocar"):
        import_released(path)
    assert import_released(path, method="s-ppo+wocar").parts["critic-q"].network.sizes[0] == 23
    unnamed, _ = p.released(tmp_path / "mine.model")
    with pytest.raises(UserError, match="--method"):
        import_released(unnamed)
    with pytest.raises(UserError, match="not of Hopper-v2"):
        import_released(unnamed, method="ppo", env_id="Hopper-v2")


def test_director_and_adversary_are_told_apart(tmp_path: Path) -> None:
    path, _ = p.released(tmp_path / "walker_sppo_pa_atla_median.model", adversary=6)
    assert set(import_released(path).parts) == {"critic", "director"}


def test_turned_denoiser_is_the_same_on_turned_frames() -> None:
    torch.manual_seed(0)
    network = DnCNN(1, 8, 4)
    for value in network.parameters():
        torch.nn.init.normal_(value, std=0.2)
    network.eval()
    frames = torch.rand(3, 1, 12, 12)
    upright = turned(network).eval()(frames)
    assert torch.allclose(upright, network(frames.transpose(2, 3)).transpose(2, 3), atol=1e-6)


@needs_files
def test_all_twelve_hopper_agents() -> None:
    files = sorted((RELEASED / "s-ppo-hopper").glob("*.model"))
    assert len(files) == 12
    found = {f.stem: import_released(f) for f in files}
    assert all(i.agent.info.env_id == "Hopper-v2" for i in found.values())
    assert {i.agent.info.steps for i in found.values()} == {1_998_848, 4_999_168}
    assert sum(i.agent.smoothing.kind == "median" for i in found.values()) == 6
    assert len({i.agent.digest for i in found.values()}) == 12
    assert set(found["hopper_atla_median"].parts) == {"critic", "adversary", "critic-adversary"}
    assert set(found["hopper_sppo_wocar_median"].parts) == {"critic", "critic-q"}
    spread = found["hopper_sppo_median"].agent.normaliser.std
    assert np.allclose(spread[:4], [0.2, 0.06, 0.25, 0.3], atol=0.1)


def pong_frames() -> np.ndarray:
    """Three single frames of random play, preprocessed and transposed as the paper has it."""
    import ale_py
    import gymnasium

    from smoothrl.envs.atari import single_frame

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("PongNoFrameskip-v4")
    env.reset(seed=0)
    env.action_space.seed(0)
    frames = []
    for step in range(200):
        screen = env.step(env.action_space.sample())[0]
        if step in (100, 150, 199):
            frames.append(single_frame(screen, 10, True))
    return np.stack(frames)


@needs_files
def test_released_denoisers() -> None:
    files = sorted((RELEASED / "s-dqn-pong").glob("*.pth"))
    assert [kind_of(f) for f in files] == ["denoiser"] * 3
    part = import_denoiser(files[0])
    assert part.about["sigma"] == 0.1
    assert part.about["transposed"] is True
    frames = torch.from_numpy(pong_frames()).float()[:, None] / 255
    noisy = frames + 0.1 * torch.randn(frames.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert float((part.network(noisy) - frames).square().mean()) < 1e-4
        assert float((part.network(noisy.transpose(2, 3)).transpose(2, 3) - frames).square().mean()) > 1e-3
    info = AgentInfo("dqn", "PongNoFrameskip-v4", "discrete", 4, (1, 84, 84), {"transpose": True})
    base = Agent(NatureQ(1, 4), Normaliser("scale", 1 / 255), info)
    agent = denoised_agent(part, base)
    assert (agent.info.method, str(agent.smoothing)) == ("s-dqn", "vote, sigma 0.1, 100 samples")
    live = denoised_agent(import_denoiser(files[0], "batch"), base)
    assert live.batch_statistics


@pytest.mark.parametrize(("zipped", "prefix"), [(True, "features."), (False, "module."), (False, "")])
def test_q_networks_in_both_formats_of_torch(zipped: bool, prefix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = NatureQ(1, 4)
    path = tmp_path / "Pong-natural.model"
    state = {prefix + k: v for k, v in theirs.state_dict().items()}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    assert kind_of(path) == "q-network"
    agent = import_q_network(path, "PongNoFrameskip-v4", env_settings={"profile": "paper", "transpose": True})
    x = torch.rand(3, 1, 84, 84)
    with torch.no_grad():
        assert torch.equal(agent.forward(x), theirs(x))
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 5).astype(int):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError):
            import_q_network(path, "PongNoFrameskip-v4")


def test_options_of_the_command(tmp_path: Path, command: Any) -> None:
    theirs, path, out = NatureQ(1, 4), tmp_path / "Pong.model", tmp_path / "q.safetensors"
    torch.save(theirs.state_dict(), path)
    words = ("import", path, "--from", "released", "--env", "PongNoFrameskip-v4", "--out", out)
    assert command(*words).returncode == 0
    assert load_agent(out).info.env_settings == {"profile": "single-frame", "transpose": True}
    assert command(*words, "--profile", "single-frame").returncode == 0
    assert load_agent(out).info.env_settings == {"profile": "single-frame"}
    assert "single-frame" in command(*words, "--profile", "paper").stderr
    said = command(*words, "--normaliser", "x.npz")
    assert (said.returncode, "--normaliser means nothing with --from released" in said.stderr) == (2, True)


def test_old_format_with_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "Pong-natural.model"
    torch.save({"x": torch.zeros(3), "y": torch.nn.Linear(2, 2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(UserError, match="Linear"):
        kind_of(path)


def test_command_line_writes_the_agent_and_its_company(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = p.released(tmp_path / "walker_sppo_atla_median.model", adversary=17)
    out = tmp_path / "agent.safetensors"
    assert main(["import", str(path), "--from", "released", "--out", str(out)]) == 0
    assert "s-ppo+atla of Walker2d-v2" in capsys.readouterr().out
    agent = load_agent(out)
    adversary = load_adversary(tmp_path / "agent-adversary.safetensors")
    attack = make_attack("optimal", agent, 0.075, protocol=PAPER, adversary=adversary)
    x = torch.zeros(4, 17)
    seen = attack.perturb(x, range(4), StreamNoise([1, 2, 3, 4]), 0)
    assert 0.0 < float(seen.abs().max()) <= 0.075 + 1e-6
    assert load_part(tmp_path / "agent-critic.safetensors", "critic").about["victim"] == agent.digest
    assert main(["import", str(path), "--from", "sb3", "--env", "Walker2d-v2", "--out", str(out)]) == 2
    assert "the zip has no entry 'data'" in capsys.readouterr().err
    assert main(["import", str(path), "--from", "released", "--env", "Hopper-v2", "--out", str(out)]) == 2
    assert "not of Hopper-v2" in capsys.readouterr().err
