"""The losses against numbers worked out by hand, and what the updates may and may not touch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from smoothrl import bounds, envs, networks
from smoothrl.learners import q_losses as losses
from smoothrl.learners.dqn import DQNLearner, as_input, copied, preset_config, seeded
from smoothrl.learners.q_adversary import s_pgd
from smoothrl.learners.q_config import SDQNConfig
from smoothrl.learners.q_loop import exploration, updates_due
from smoothrl.learners.replay import Batch
from smoothrl.learners.robust_dqn import LEARNERS, advantages
from smoothrl.learners.s_dqn import SDQNLearner

Q = torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, 4.0]])


def test_targets_plain_and_double() -> None:
    returns, discounts = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0])
    assert losses.td_target(returns, discounts, Q).tolist() == [2.5, 2.0]
    online = torch.tensor([[9.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    assert losses.td_target(returns, discounts, Q, online).tolist() == [1.5, 2.0]


def test_huber_and_weights() -> None:
    td = losses.huber_td(Q, torch.tensor([0, 2]), torch.tensor([1.5, 1.0]))
    assert td.tolist() == [0.125, 2.5]
    assert losses.weighted_mean(td, torch.tensor([1.0, 0.5])).item() == pytest.approx((0.125 + 1.25) / 2)


def test_s_dqn_loss_means_and_sums() -> None:
    clean, denoised = torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 0.5)
    td, weights = torch.tensor([1.0, 3.0]), torch.ones(2)
    loss, mse = losses.s_dqn(td, weights, denoised, clean, 10.0, 1.0, summed=False)
    assert (loss.item(), mse.item()) == (pytest.approx(10 * 0.25 + 2.0), 0.25)
    summed, _ = losses.s_dqn(td, weights, denoised, clean, 1.0, 1.0, summed=True)
    assert summed.item() == pytest.approx(8 * 0.25 + 2.0)


def test_advantages_apart_by_hand() -> None:
    """The value may differ; the second row leaves its advantages (0, 0) for (1, -1)."""
    q = torch.tensor([[3.0, 5.0], [1.0, -1.0]], requires_grad=True)
    where = torch.tensor([[0.0, 2.0], [7.0, 7.0]], requires_grad=True)
    apart = losses.advantages_apart(q, where)
    assert apart.tolist() == pytest.approx([0.0, 1.0])
    apart.sum().backward()  # type: ignore[no-untyped-call]
    assert where.grad is None
    assert q.grad is not None
    assert q.grad[0].tolist() == [0.0, 0.0]


def test_sa_hinge_is_the_worst_margin_capped() -> None:
    margins = torch.tensor([[0.0, 0.4, -0.3], [2.0, 0.0, 5.0]])
    assert losses.sa_hinge(margins, torch.tensor([0, 1])).tolist() == [pytest.approx(0.3), -1.0]


def test_radial_overlap_by_hand() -> None:
    q = torch.tensor([[2.0, 1.0, 3.0]])
    lower, upper = q - 0.75, q + 0.75
    value = losses.radial_overlap(q, torch.tensor([0]), lower, upper)
    assert value.item() == pytest.approx(1.0 * (1.75 - 1.25 + 0.5))


def test_radial_first_approach_by_hand() -> None:
    q = torch.tensor([[2.0, 1.0]])
    lower, upper = torch.tensor([[1.5, 0.0]]), torch.tensor([[2.5, 1.5]])
    value = losses.radial_bounds_to_target(q, torch.tensor([0]), torch.tensor([4.0]), lower, upper)
    assert value.item() == pytest.approx(2.5 + 1.0)


def test_reachable_actions_and_the_worst_target() -> None:
    lower, upper = torch.tensor([[1.0, 0.0, -2.0]]), torch.tensor([[2.0, 1.5, 0.5]])
    possible = losses.reachable_actions(lower, upper)
    assert possible.tolist() == [[True, True, False]]
    worst = losses.worst_target(
        torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([[4.0, 2.0, -9.0]]), possible
    )
    assert worst.tolist() == [2.0]


def test_ramp_is_smooth_and_ends_at_its_height() -> None:
    ramp = [losses.smoothed_ramp(t, 0.2, 0.8, 0.1) for t in np.linspace(0, 1, 401)]
    assert ramp[80] == 0.0
    assert ramp[-1] == ramp[320] == pytest.approx(0.1)
    steps = np.diff(ramp)
    assert (steps >= 0).all()
    assert steps[110:319].max() < 1.02 * steps[150]


def test_exploration_of_the_reference() -> None:
    config = preset_config("dqn", "PongNoFrameskip-v4", "paper")
    assert exploration(config, 79_999) == 1.0
    assert exploration(config, 80_000 + 750_000) == pytest.approx(0.525)
    assert exploration(config, 80_000 + 1_500_000) == pytest.approx(0.05)
    assert exploration(config, 6_000_000) == pytest.approx(0.0)
    assert (updates_due(config, 80_000), updates_due(config, 80_010)) == (0, 10)


def boards(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (count, 4, 10, 10), dtype=np.uint8)


def batch(count: int = 8) -> Batch:
    rng = np.random.default_rng(1)
    return Batch(
        np.arange(count),
        boards(count),
        rng.integers(0, 3, count),
        rng.random(count).astype(np.float32),
        np.full(count, 0.9, np.float32),
        boards(count, 2),
        np.ones(count, np.float32),
    )


SPEC = envs.spec("MinAtar/Breakout-v1")


def s_config(**changes: object) -> SDQNConfig:
    values = {
        "env": SPEC.id,
        "batch": 8,
        "warmup": 8,
        "sigma": 0.3,
        "denoiser_factor": 2,
        "denoiser_depth": 3,
    }
    return SDQNConfig(**{**values, "denoiser_width": 8, **changes})


def base() -> nn.Module:
    return seeded(networks.SmallQ(4, 3, hidden=16).description, 5)


@pytest.mark.parametrize("changes", [{}, {"adversarial": "s-pgd"}, {"denoiser": "dncnn"}])
@pytest.mark.parametrize("protocol", ["sound", "paper"])
def test_an_s_dqn_update_trains_the_denoiser_and_never_the_base(changes: dict, protocol: str) -> None:
    learner = SDQNLearner(s_config(**changes, protocol=protocol), SPEC, base())
    before_q = [p.clone() for p in learner.q.parameters()]
    before_d = [p.clone() for p in learner.parameters]
    for _ in range(3):
        learner.update(batch(), 0.0)
    assert all(p.grad is None for p in learner.q.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before_q, learner.q.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(before_d, learner.parameters, strict=True))


def test_the_target_base_draws_the_denoiser_to_the_policy_of_the_clean_observation() -> None:
    """Identity without noise: nothing to learn. With noise the term falls, and no next state is looked at."""
    config = s_config(td_target="base", lambda_reconstruction=0.0, sigma=1e-9, denoiser_factor=1)
    learner = SDQNLearner(config, SPEC, base())
    assert learner.update(batch(), 0.0)[1]["td"] == pytest.approx(0.0, abs=1e-9)
    learner = SDQNLearner(replace(config, sigma=0.5, lr=5e-3, denoiser_width=32), SPEC, base())
    blind = replace(batch(), following=np.zeros((0, 4, 10, 10), np.uint8))
    found = [learner.update(blind, 0.0)[1]["td"] for _ in range(300)]
    assert np.mean(found[-20:]) < 0.7 * np.mean(found[:20])


def test_sound_noise_is_one_a_sample_and_paper_noise_one_a_minibatch() -> None:
    like = torch.zeros(4, 4, 10, 10)
    sound = SDQNLearner(s_config(), SPEC, base())._batch_noise(like)
    paper = SDQNLearner(s_config(protocol="paper"), SPEC, base())._batch_noise(like)
    assert sound.shape[0] == 4
    assert not torch.equal(sound[0], sound[1])
    assert paper.shape[0] == 1


def test_the_agent_of_s_dqn_is_one_function_of_one_observation() -> None:
    learner = SDQNLearner(s_config(denoiser="dncnn"), SPEC, base())
    learner.update(batch(), 0.0)
    agent = learner.agent(8)
    assert not agent.batch_statistics
    assert (agent.smoothing.kind, agent.smoothing.sigma) == ("vote", 0.3)
    assert SDQNLearner(s_config(denoiser="dncnn", protocol="paper"), SPEC, base()).agent(0).batch_statistics


def test_acting_in_training_uses_what_the_deployed_agent_will_use() -> None:
    """In the sound protocol acting leaves the DnCNN's statistics alone and returns it to training."""
    learner = SDQNLearner(s_config(denoiser="dncnn"), SPEC, base())
    learner.denoiser.train()
    before = {k: v.clone() for k, v in learner.denoiser.state_dict().items()}
    learner.greedy(boards(5))
    assert learner.denoiser.training
    assert all(torch.equal(v, before[k]) for k, v in learner.denoiser.state_dict().items())


def test_s_pgd_stays_in_the_ball_and_goes_up() -> None:
    torch.manual_seed(0)
    q = base()
    clean = as_input(boards(16), 1.0)
    found, slipped = s_pgd(q, clean, torch.zeros_like, 0.2, 5, (0.0, 1.0))
    assert (found - clean).abs().max() <= 0.2 + 1e-6
    assert found.min() >= 0.0
    assert found.max() <= 1.0
    assert slipped == []
    actions = q(clean).argmax(1)
    assert losses.s_pgd_objective(q(found), actions) > losses.s_pgd_objective(q(clean), actions)


def test_the_leak_is_the_gradient_of_the_last_step() -> None:
    q = base()
    parameters = list(q.parameters())
    clean = as_input(boards(4), 1.0)
    _, slipped = s_pgd(q, clean, torch.zeros_like, 0.2, 1, None, parameters)
    expected = torch.autograd.grad(losses.s_pgd_objective(q(clean), q(clean).argmax(1)), parameters)
    for mine, theirs in zip(slipped, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", list(LEARNERS))
def test_robust_updates_add_their_term_once_the_radius_is_open(name: str) -> None:
    config = preset_config(f"dqn+{name}", SPEC.id, regulariser=name, hidden=16, epsilon=0.05)
    learner = LEARNERS[name](config, SPEC)
    plain = DQNLearner(config, SPEC)
    _, before = learner.update(batch(), 0.0)
    _, alone = plain.update(batch(), 0.0)
    _, after = learner.update(batch(), 0.95)
    assert "train_epsilon" not in before
    assert after["train_epsilon"] == pytest.approx(0.05)
    assert np.isfinite(after["loss"])
    if name == "sa":
        assert before["loss"] == pytest.approx(alone["loss"])


def test_noise_training_holds_the_policy_of_the_moment_it_set_in() -> None:
    config = preset_config("dqn", SPEC.id, hidden=16, noise=0.5, noise_start=0.5, lr=3e-3)
    learner = DQNLearner(config, SPEC)
    _, before = learner.update(batch(), 0.4)
    assert "noise" not in before
    assert learner.teacher is None
    then = copied(learner.q).state_dict()
    apart = [learner.update(batch(), 0.6)[1]["noise"] for _ in range(200)]
    assert learner.teacher is not None
    assert all(torch.equal(then[k], v) for k, v in learner.teacher.state_dict().items())
    assert np.mean(apart[-20:]) < 0.5 * np.mean(apart[:20])
    shown = learner.noisy(torch.zeros(400, 4, 10, 10)).std(dim=(1, 2, 3))
    assert shown.max() < 0.55
    assert shown.mean().item() == pytest.approx(0.25, abs=0.03)


def test_the_advantage_chain_gives_q_up_to_the_value() -> None:
    for network, x in (
        (networks.SmallQ(4, 3, hidden=16), torch.rand(5, 4, 10, 10)),
        (networks.DuelingMLP(6, 3, (16, 8)), torch.rand(5, 6)),
        (networks.NatureQ(1, 4, hidden=16, width=0.25), torch.rand(2, 1, 84, 84)),
    ):
        q, a = network(x), advantages(network)(x)
        a = a - a.mean(1, keepdim=True)
        torch.testing.assert_close(q - q.mean(1, keepdim=True), a, atol=1e-5, rtol=1e-4)


def test_bf16_training_stays_close_to_fp32() -> None:
    found = []
    for precision in ("fp32", "bf16"):
        config = preset_config("dqn", SPEC.id, hidden=16, precision=precision)
        learner = DQNLearner(config, SPEC)
        found.append([learner.update(batch(), 0.0)[1]["loss"] for _ in range(20)][-1])
    assert found[1] == pytest.approx(found[0], rel=0.1)
    assert bounds.box(torch.zeros(1), 0.1)[1].item() == pytest.approx(0.1)
