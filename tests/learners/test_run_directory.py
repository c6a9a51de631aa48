"""The run directory: refuses what does not fit, survives damage, resumes where the state says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smoothrl.errors import UserError
from smoothrl.learners import methods
from smoothrl.learners.run_directory import RunDirectory

CONFIG = {"method": "ppo", "lr": 3e-4, "shape": (3, 4)}


def open_run(path, resume=False, config=CONFIG, **kw):
    return RunDirectory.open(path, config, resume, tensorboard=False, **kw)


def test_refuses_an_existing_run_without_resume(tmp_path):
    open_run(tmp_path / "run").close()
    with pytest.raises(UserError, match="--resume"):
        open_run(tmp_path / "run")


def test_refuses_a_foreign_folder(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="holds no run"):
        open_run(tmp_path)


def test_names_the_key_that_differs_but_for_free_ones(tmp_path):
    open_run(tmp_path / "run").close()
    with pytest.raises(UserError, match=r"method: 'ppo' there, 's-ppo' now"):
        open_run(tmp_path / "run", True, {**CONFIG, "method": "s-ppo"})
    open_run(tmp_path / "run", True, {**CONFIG, "lr": 1.0}, free=("lr",)).close()


def test_one_writer_at_a_time(tmp_path):
    run = open_run(tmp_path / "run")
    with pytest.raises(UserError, match="another process"):
        open_run(tmp_path / "run", True)
    run.close()
    open_run(tmp_path / "run", True).close()


def test_state_roundtrip_and_fallback_to_the_previous_generation(tmp_path):
    run = open_run(tmp_path / "run")
    assert run.load_state() is None
    for step in (1, 2):
        run.save_state(
            {"w": torch.full((2, 3), float(step)), "n": np.arange(3)}, {"step": step, "rng": 2**80}
        )
    tensors, meta = run.load_state()
    assert meta == {"step": 2, "rng": 2**80}
    assert torch.equal(tensors["w"], torch.full((2, 3), 2.0))
    assert torch.equal(tensors["n"], torch.arange(3))
    path = tmp_path / "run/state/state.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert run.load_state()[1]["step"] == 1
    (tmp_path / "run/state/previous.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="damaged"):
        run.load_state()


def test_progress_past_the_state_is_cut_on_resume(tmp_path):
    run = open_run(tmp_path / "run")
    run.log(1, {"return": 1.5})
    run.save_state({}, {"step": 1})
    run.log(2, {"return": 2.5, "kl": 0.1})
    run.close()
    with (tmp_path / "run/progress.csv").open("a") as stream:
        stream.write("3,9")
    run = open_run(tmp_path / "run", True)
    assert run.progress() == [{"step": "1", "return": "1.5", "kl": ""}]
    run.log(2, {"return": 3.5})
    assert [r["return"] for r in run.progress()] == ["1.5", "3.5"]


@pytest.mark.parametrize(
    "name", ["ppo", "s-ppo+sgld", "ppo+pa-atla", "s-ppo+wocar+atla", "dqn+radial", "s-dqn"]
)
def test_method_names_say_their_parts(name):
    assert methods.parse(name).name == name


def test_method_errors():
    with pytest.raises(UserError, match="s-ppo"):
        methods.parse("sppo")
    with pytest.raises(UserError, match="sgld"):
        methods.parse("ppo+sgdl")
    with pytest.raises(UserError, match="two ingredients"):
        methods.parse("ppo+sgld+radial")
    with pytest.raises(UserError, match="--smooth"):
        methods.parse("ppo+radial+rs")
    assert len(methods.catalogue()) == len(set(methods.names()))
