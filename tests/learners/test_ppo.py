"""PPO for pools: gradients, members against single runs, resuming after a kill, refusals."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from smoothrl.agents import load_agent
from smoothrl.errors import UserError
from smoothrl.learners import losses, methods, ppo, presets
from smoothrl.learners.actor_critic import Batch, draw, generators
from smoothrl.learners.collect import PoolMoments
from smoothrl.learners.pools import PoolAdam, PoolNet, PoolPolicy, layers

QUICK = {"horizon": 128, "minibatches": 4, "epochs": 2, "value_epochs": 2, "hidden": (16, 16)}


def config(name, seeds=(0,), iterations=2, env="InvertedPendulum-v4", **changes):
    settings = {**QUICK, "steps": 128 * iterations, **changes}
    return presets.configure(methods.parse(name), env, seeds, settings)


def pool_of(count, sizes=(5, 16, 16, 3)):
    sources = generators(range(count), 0, "test")
    net = PoolNet.orthogonal(sizes, 0.5, sources)
    return PoolPolicy(net, torch.zeros(count, 1, sizes[-1], requires_grad=True))


# ------------------------------------------------------------------------------------------- formulas


def test_gae_by_hand():
    """gamma .5, lambda .5: deltas 1 + .5 * 2 - 1 = 1, 2 + 0 - 2 = 0 (end), 3 + .5 * 4 - 3 = 2."""
    column = lambda *x: np.array(x).reshape(3, 1, 1)  # noqa: E731
    found = losses.advantages(
        column(1.0, 2.0, 3.0),
        column(1.0, 2.0, 3.0),
        column(2.0, 0.0, 4.0),
        column(False, True, False),
        0.5,
        0.5,
    )
    np.testing.assert_allclose(found[:, 0, 0], [1.0 + 0.25 * 0.0, 0.0, 2.0])


def test_log_prob_and_entropy_match_torch():
    mean, log_std, action = torch.randn(2, 4, 3), torch.randn(2, 1, 3), torch.randn(2, 4, 3)
    normal = torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(losses.log_prob(mean, log_std, action), normal.log_prob(action).sum(-1))
    torch.testing.assert_close(losses.entropy(log_std), normal.entropy()[:, 0].sum(-1))


def test_surrogate_by_hand():
    ratio, advantage = torch.tensor([[1.5, 0.5, 1.5, 0.5]]), torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    found = losses.surrogate(ratio, advantage, torch.tensor([[0.2]]))
    torch.testing.assert_close(found, torch.tensor([[1.2, 0.5, -1.5, -0.8]]))


def test_clipped_value_loss_by_hand():
    """Clipping at .2: (1.5 -> target 1): moved to .7 by the clip: max(.25, .09) = .25; masked row ignored."""
    one = torch.tensor
    found = losses.value_loss(one([[1.5, 9.0]]), one([[0.5, 0.0]]), one([[1.0, 0.0]]), one([[1.0, 0.0]]), 0.2)
    torch.testing.assert_close(found, one([0.25]))


def test_running_moments_equal_numpy():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (50, 2, 3, 4))
    moments = PoolMoments(2, 4)
    for row in rows:
        moments.push(row)
    for member in range(2):
        flat = rows[:, member].reshape(-1, 4)
        np.testing.assert_allclose(moments.mean[member], flat.mean(0))
        np.testing.assert_allclose(moments.std[member], flat.std(0, ddof=1))


# ------------------------------------------------------------------------------------------- networks


def test_pooled_gradients_equal_those_of_ordinary_modules():
    policy = pool_of(3)
    x = torch.randn(3, 7, 5, requires_grad=True)
    weights = torch.randn(3, 7, 3)
    theta, back = torch.autograd.grad((policy.mean(x) * weights).sum(), [policy.mean.theta, x])
    for i in range(3):
        module = policy.mean.member(i)
        xi = x[i].detach().requires_grad_()
        wanted = torch.autograd.grad((module(xi) * weights[i]).sum(), [xi, *module.parameters()])
        torch.testing.assert_close(back[i], wanted[0])
        for k, (weight, bias) in enumerate(layers(theta, policy.mean.sizes)):
            torch.testing.assert_close(weight[i], wanted[1 + 2 * k].T)
            torch.testing.assert_close(bias[i, 0], wanted[2 + 2 * k])


def test_median_gradient_equals_that_of_the_full_computation():
    """Keeping only the selected samples loses nothing: torch.median over all 20 forwards says the same."""
    policy = pool_of(2)
    x, noise, weights = torch.randn(2, 6, 5), 0.3 * torch.randn(2, 6, 20, 5), torch.randn(2, 6, 3)
    found = policy.smoothed_mean(x, noise)
    gradient = torch.autograd.grad((found * weights).sum(), policy.mean.theta)[0]
    every = policy.mean((x[:, :, None] + noise).reshape(2, 120, 5)).view(2, 6, 20, 3)
    wanted = every.median(dim=2).values
    torch.testing.assert_close(found, wanted)
    full = torch.autograd.grad((wanted * weights).sum(), policy.mean.theta)[0]
    torch.testing.assert_close(gradient, full, atol=1e-5, rtol=1e-4)


def test_pool_adam_equals_torch_adam():
    start, rates = torch.randn(2, 5), torch.tensor([1e-2, 3e-3])
    mine = start.clone()
    adam = PoolAdam([mine], eps=1e-5)
    theirs = [start[i].clone().requires_grad_() for i in range(2)]
    torch_adams = [torch.optim.Adam([p], lr=float(r), eps=1e-5) for p, r in zip(theirs, rates, strict=True)]
    for _ in range(20):
        gradient = torch.randn(2, 5)
        adam.step([gradient], rates)
        for p, g, optimiser in zip(theirs, gradient, torch_adams, strict=True):
            p.grad = g.clone()
            optimiser.step()
    torch.testing.assert_close(mine, torch.stack([p.detach() for p in theirs]), atol=1e-6, rtol=1e-5)


def test_minibatches_cover_every_row_once():
    names = ("states", "values")
    rows = torch.arange(24.0).view(2, 12)
    batch = Batch(rows[..., None], rows, rows, rows, rows, rows)
    parts = list(batch.minibatches(generators((0, 1), 0, "x"), 3, names))
    seen = torch.cat([p.values for p in parts], dim=1)
    assert torch.equal(seen.sort(1).values, rows)
    assert all(torch.equal(p.states[..., 0], p.values) for p in parts)
    assert parts[0].actions is None


# ------------------------------------------------------------------------------------------- the pool


def train(conf, path, **kw):
    return ppo.train(conf, path, tensorboard=False, **kw)


@pytest.mark.parametrize("name", ["ppo", "s-ppo"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_each_member_of_a_pool_is_the_run_with_its_seed(tmp_path, name, lanes):
    """Some hundred updates: the same environments, draws and parameters, whatever the company."""
    settings = {"iterations": 8, "lanes": lanes, "epochs": 5, "value_epochs": 5, "train_samples": 5}
    pool = train(config(name, (3, 4, 5), **settings), tmp_path / "pool")
    for seed, path in zip((3, 4, 5), pool, strict=True):
        (single,) = train(config(name, (seed,), **settings), tmp_path / f"single-{seed}")
        mine, theirs = load_agent(path), load_agent(single)
        np.testing.assert_allclose(mine.normaliser.mean, theirs.normaliser.mean, rtol=1e-4, atol=1e-6)
        for key, value in theirs.network.state_dict().items():
            torch.testing.assert_close(mine.network.state_dict()[key], value, atol=1e-4, rtol=1e-3)


def test_agents_say_what_they_are(tmp_path):
    (path,) = train(config("s-ppo", (7,), sigma=0.3), tmp_path / "run")
    agent = load_agent(path)
    assert (agent.info.method, agent.info.seed, agent.info.steps) == ("s-ppo", 7, 256)
    assert str(agent.info.trained_with) == "median, sigma 0.3, 100 samples"
    assert agent.act(agent.observe(np.zeros((9, 4))), noise=_Zero()).shape == (9, 1)


class _Zero:
    def normal(self, index, count, shape):
        return torch.zeros(len(index), count, *shape)

    def uniform(self, index, shape):
        return torch.zeros(len(index), *shape)


# --------------------------------------------------------------------------------------------- resume


SCRIPT = """
import sys, torch
from smoothrl.learners import methods, ppo, presets
torch.set_num_threads(1)
conf = presets.configure(methods.parse(sys.argv[2]), "InvertedPendulum-v4", (0, 1), {settings!r})
ppo.train(conf, sys.argv[1], resume=True, tensorboard=False, save_every=0.0)
"""


def digests(folder):
    return [load_agent(p).digest for p in sorted(folder.glob("agent-*.safetensors"))]


@pytest.mark.parametrize("name", ["s-ppo+wocar+pa-atla"])
def test_killed_at_random_times_and_resumed_ends_with_the_same_bits(tmp_path, name):
    """Every kind of state at once: the agents', the worst-case Q's, the adversaries'."""
    settings = {**QUICK, "steps": 128 * 12, "train_samples": 5}
    script = SCRIPT.replace("{settings!r}", repr(settings))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(folder):
        return subprocess.Popen([sys.executable, "-c", script, str(folder), name], env=environment)

    assert start(tmp_path / "whole").wait() == 0
    rng = random.Random(5)
    for _ in range(3):
        process = start(tmp_path / "killed")
        state = tmp_path / "killed/state/state.safetensors"
        before = state.stat().st_mtime_ns if state.exists() else 0
        while process.poll() is None and (not state.exists() or state.stat().st_mtime_ns == before):
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(tmp_path / "killed").wait() == 0
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole") != []
    rows = [(tmp_path / f / "progress.csv").read_text() for f in ("killed", "whole")]
    assert rows[0] == rows[1]


def test_a_nan_stops_the_run_and_keeps_the_last_good_state(tmp_path):
    conf = config("ppo", iterations=4)
    learner_rows = []

    def poison(step, row):
        learner_rows.append(step)

    broken = presets.configure(
        methods.parse("ppo"), conf.env_id, (0,), {**QUICK, "steps": 512, "policy_lr": 1e30}
    )
    with pytest.raises(UserError, match=r"seed 0 .*(NaN|exploded).* last good state"):
        train(broken, tmp_path / "run", on_iteration=poison)
    from smoothrl.learners.run_directory import RunDirectory

    settings = __import__("dataclasses").asdict(broken) | {"init": None}
    with RunDirectory.open(tmp_path / "run", settings, True, tensorboard=False) as run:
        tensors, _ = run.load_state()
    assert all(torch.isfinite(t).all() for t in tensors.values())


# ------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "env", "changes", "words"),
    [
        ("ppo", "CartPole-v1", {}, "discrete"),
        ("s-ppo", "InvertedPendulum-v4", {"sigma": 0.0}, "sigma above 0"),
        ("ppo+sgld", "InvertedPendulum-v4", {"epsilon": -1.0}, "epsilon"),
        ("ppo", "InvertedPendulum-v4", {"minibatches": 7}, "minibatches"),
        ("ppo", "InvertedPendulum-v4", {"epsilon": 0.1}, "robust ingredient"),
        ("ppo+sgld", "InvertedPendulum-v4", {"sigma": 0.1}, "train s-ppo"),
        ("ppo", "InvertedPendulum-v4", {"minibatches": 4.0}, "of type int"),
        ("ppo", "InvertedPendulum-v4", {"policy_lr": "fast"}, "of type float"),
        ("ppo+radial", "InvertedPendulum-v4", {"growth": "quick"}, "of type Growth"),
        ("ppo", "InvertedPendulum-v4", {"hidden": ()}, "at least one unit"),
        ("ppo", "InvertedPendulum-v4", {"value_clip": 0.0}, "value_clip must be above 0"),
        ("ppo", "InvertedPendulum-v4", {"entropy": float("nan")}, "entropy must be"),
        ("ppo", "InvertedPendulum-v4", {"steps": 5}, "less than one iteration"),
        ("ppo", "InvertedPendulum-v4", {"learning_rate": 1.0}, "unknown PPO setting"),
    ],
)
def test_refused_before_any_work(tmp_path, name, env, changes, words):
    with pytest.raises(UserError, match=words):
        train(config(name, env=env, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_lists_are_read_as_tuples():
    """Settings from TOML and JSON come as lists."""
    assert config("ppo", hidden=[8, 8]).hidden == (8, 8)


def test_resume_of_another_method_is_refused(tmp_path):
    train(config("ppo"), tmp_path / "run")
    with pytest.raises(UserError, match=r"method: 'ppo' there, 's-ppo' now"):
        train(config("s-ppo"), tmp_path / "run", resume=True)


def test_draws_depend_on_the_member_alone():
    assert torch.equal(draw(generators((1, 2), 4, "a"), 3)[1], draw(generators((2,), 4, "a"), 3)[0])
    assert not torch.equal(draw(generators((2,), 5, "a"), 3), draw(generators((2,), 4, "a"), 3))
