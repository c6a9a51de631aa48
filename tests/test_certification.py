"""From agents to certificates: what is recorded, replayed, resampled and refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_policy
from smoothrl import certification, envs, networks, rollout
from smoothrl.agents import Agent, AgentInfo, Normaliser, Smoothing
from smoothrl.certificates import action_bound, files
from smoothrl.errors import UserError
from smoothrl.protocols import PAPER, SOUND

MEDIAN = Smoothing("median", 0.2, 60)


def voter(samples: int = 40, kind: str = "vote") -> Agent:
    """A Q-agent on Breakout whose first action wins by a margin that depends on the board."""
    torch.manual_seed(1)
    spec = envs.spec("MinAtar/Breakout-v1")
    network = networks.SmallQ(spec.obs_shape[0], spec.action_size)
    info = AgentInfo("s-dqn", "MinAtar/Breakout-v1", "discrete", spec.action_size, spec.obs_shape)
    return Agent(network, Normaliser("scale", scale=1 / spec.obs_scale), info, Smoothing(kind, 0.3, samples))


@pytest.fixture(scope="module")
def radius() -> certification.Certified:
    return certification.certify_radius(voter(), episodes=3, seed=1, max_steps=40)


def test_radius_counts_every_visited_state_once(radius: certification.Certified) -> None:
    counts = np.asarray(files.decode(radius.record["data"]["counts"]))
    lengths = radius.extras["lengths"]
    assert len(counts) == lengths.sum() == len(radius.result.radius)
    assert (counts.sum(axis=1) == 40).all()
    assert radius.rows[0].mean == pytest.approx(radius.result.radius.mean())
    assert len(radius.extras["joint"]) == 3
    assert (radius.extras["deployed_radius"] <= radius.result.radius).all()
    assert max(radius.extras["joint"]) <= radius.result.radius.max()


def test_states_are_in_order_episode_by_episode(radius: certification.Certified) -> None:
    """Sampling one episode alone gives its rows of the joint run: order and streams are right."""
    alone = certification.certify_radius(voter(), episodes=1, seed=1, max_steps=40)
    first = np.asarray(files.decode(alone.record["data"]["counts"]))
    both = np.asarray(files.decode(radius.record["data"]["counts"]))
    assert np.array_equal(first, both[: len(first)])


def test_exact_is_longer_than_published_on_the_same_votes(radius: certification.Certified) -> None:
    paper = certification.certify_radius(voter(), episodes=3, seed=1, max_steps=40, protocol=PAPER)
    counts = np.asarray(files.decode(radius.record["data"]["counts"]))
    unanimous = counts.max(axis=1) == 40
    assert (radius.result.radius[unanimous] > 1.4 * paper.result.radius[unanimous]).all()
    assert paper.rows[0].protocol == "paper"


def test_decisions_need_fewer_samples_than_the_cap() -> None:
    agent = voter(200)
    done = certification.decide_radius(agent, 0.15, episodes=1, seed=0, cap=200, max_steps=30)
    assert done.result.mean_samples < 200
    assert 0.0 <= done.rows[0].mean <= 1.0


def test_crop_with_an_estimated_range() -> None:
    agent = voter(kind="mean")
    done = certification.certify_crop(agent, episodes=1, seed=0, max_steps=20)
    assert done.record["kind"] == "crop"
    assert done.result.claim.valid
    published = certification.certify_crop(agent, episodes=1, seed=0, max_steps=20, protocol=PAPER)
    assert (published.result.radius >= 0).all()


def test_action_bounds_hold_the_median_and_average_to_adiv() -> None:
    agent = make_policy("Hopper-v4", MEDIAN)
    done = certification.certify_actions(agent, 2, 0, epsilons=(0.1,), max_steps=30)
    samples = np.asarray(files.decode(done.record["data"]["samples"]))
    medians = np.sort(samples, axis=1)[:, 29]
    assert (done.result.lower <= medians).all()
    assert (medians <= done.result.upper).all()
    assert done.rows[0].metric == "adiv"
    assert done.rows[0].mean > 0


def test_linear_policy_has_the_adiv_of_its_weights() -> None:
    """Population ADIV of a linear policy is the Frobenius norm of its weights, at every budget."""
    agent = make_policy("Pendulum-v1", Smoothing("median", 0.2, 4000))
    network = networks.GaussianPolicy(3, 1, hidden=())
    with torch.no_grad():
        network.mean.layers[0].weight.copy_(torch.tensor([[3.0, 0.0, 4.0]]))
    linear = Agent(network, agent.normaliser, agent.info, agent.smoothing)
    done = certification.certify_actions(linear, 1, 0, epsilons=(0.2,), max_steps=20)
    assert done.rows[0].mean == pytest.approx(5.0, rel=0.1)
    assert done.rows[0].mean > 5.0


@pytest.fixture(scope="module")
def bound() -> certification.Certified:
    agent = make_policy("Hopper-v4", MEDIAN)
    return certification.certify_return(agent, 60, 3, epsilons=(0.0005, 0.002), horizon=40)


def test_return_bounds_fall_with_the_budget(bound: certification.Certified) -> None:
    assert (bound.extras["lengths"] <= 40).all()
    assert bound.result.bound[0] >= bound.result.bound[1]
    assert bound.result.bound[0] <= np.median(bound.extras["returns"])
    assert bound.rows[0].samples == 1, "return certificates are about one noise draw a step"
    assert bound.rows[0].epsilon == 0.0005


def test_horizon_of_the_environment_is_taken_and_enforced() -> None:
    agent = make_policy("Pendulum-v1", MEDIAN)
    done = certification.certify_return(agent, 20, 0, epsilons=(0.0001,))
    assert done.record["parameters"]["horizon"] == 200


@pytest.mark.parametrize(
    "tamper",
    [
        lambda r: r["bound"]["bound"].__setitem__(0, 1e6),
        lambda r: r["parameters"].__setitem__("alpha", 0.01),
        lambda r: r.__setitem__("statement", "everything is fine"),
        lambda r: r.__setitem__("confidence", 0.999),
        lambda r: r["data"].__setitem__("returns", [x + 100.0 for x in r["data"]["returns"]]),
        lambda r: r.__setitem__("agent_hash", "0" * 64),
    ],
    ids=["bound", "alpha", "statement", "confidence", "data", "agent"],
)
def test_an_altered_certificate_fails(bound: certification.Certified, tamper) -> None:
    agent_hash = bound.record["agent_hash"]
    assert files.verify(bound.record, agent_hash) == []
    record = json.loads(json.dumps(bound.record))
    tamper(record)
    assert files.verify(record, agent_hash) != []
    record["digest"] = files.digest(record)
    assert files.verify(record, agent_hash) != [], "not even with the digest made anew"


def test_another_environment_is_found(bound: certification.Certified) -> None:
    record = {**bound.record, "environment": "Ant-v4"}
    record["digest"] = files.digest(record)
    assert any("environment" in line for line in files.verify(record, environment="Hopper-v4"))


def test_a_consistent_forgery_is_found_by_sampling_again(bound: certification.Certified) -> None:
    agent = make_policy("Hopper-v4", MEDIAN)
    again = certification.resampler(agent)
    assert files.verify(bound.record, agent.digest, again) == []
    returns = np.asarray(files.decode(bound.record["data"]["returns"])) + 100.0
    forged = files.make(
        "return",
        {"returns": returns},
        bound.record["parameters"],
        agent_hash=agent.digest,
        environment="Hopper-v4",
        seed=3,
        details=bound.record["details"],
    )
    assert files.verify(forged, agent.digest) == []
    assert any("resampling" in line for line in files.verify(forged, agent.digest, again))


def forged(record: dict, agent: Agent, parameters: dict, details: dict) -> dict:
    """The same data under other parameters, consistent in itself."""
    data = {name: files.decode(values) for name, values in record["data"].items()}
    return files.make(
        record["kind"], data, record["parameters"] | parameters, agent_hash=agent.digest,
        environment=record["environment"], seed=record["seed"], details=record["details"] | details,
    )  # fmt: skip


def test_sampling_again_uses_the_noise_and_horizon_of_the_bound(
    radius: certification.Certified, bound: certification.Certified
) -> None:
    """A larger sigma or a shorter horizon lengthens every bound while the recorded data stay honest."""
    agent = voter()
    longer = forged(radius.record, agent, {"sigma": 0.6}, {})
    assert files.verify(longer, agent.digest) == []
    assert files.verify(longer, agent.digest, certification.resampler(agent)) != []
    policy = make_policy("Hopper-v4", MEDIAN)
    again = certification.resampler(policy)
    assert files.verify(forged(bound.record, policy, {"horizon": 10}, {}), policy.digest, again) != []
    assert files.verify(forged(bound.record, policy, {"sigma": 0.9}, {}), policy.digest, again) != []


def test_return_certificates_are_sampled_again_with_one_draw() -> None:
    """Returns of the agent with many samples, shown as those of one draw a step."""
    policy = make_policy("Hopper-v4", MEDIAN)
    played = rollout.evaluate(policy, episodes=20, seed=3, max_steps=40)
    parameters = {"sigma": 0.2, "eps": [0.0005], "horizon": 40}
    details = {"smoothing": MEDIAN, "how": {"episodes": 20, "horizon": 40}}
    record = files.make(
        "return", {"returns": played.returns}, parameters, agent_hash=policy.digest,
        environment="Hopper-v4", seed=3, details=details,
    )  # fmt: skip
    assert files.verify(record, policy.digest) == []
    assert files.verify(record, policy.digest, certification.resampler(policy)) != []


def test_every_kind_can_be_sampled_again(radius: certification.Certified) -> None:
    """Also where the episodes were played in other company than the certificate's."""
    voting, averaging, policy = voter(), voter(kind="mean"), make_policy("Hopper-v4", MEDIAN)
    widths = {"epsilons": (0.05, 0.1), "max_steps": 12}
    made = [
        (voting, radius),
        (voter(60), certification.decide_radius(voter(60), 0.1, 1, 0, cap=60, max_steps=12)),
        (averaging, certification.certify_crop(averaging, (-1.0, 1.0), 2, 0, max_steps=8, lanes=1)),
        (policy, certification.certify_actions(policy, 5, 0, lanes=2, **widths)),
        (policy, certification.certify_actions(policy, 2, 0, deployed=True, **widths)),
        (policy, certification.certify_actions(policy, 2, 0, protocol=PAPER, **widths)),
    ]
    for agent, done in made:
        again = certification.resampler(agent)
        assert files.verify(done.record, agent.digest, again, agent.info.env_id) == []


def test_lanes_change_no_certificate() -> None:
    policy = make_policy("Hopper-v4", MEDIAN)
    one, five = (
        certification.certify_actions(policy, 5, 0, epsilons=(0.1,), max_steps=12, lanes=lanes)
        for lanes in (1, 5)
    )
    assert one.record == five.record


def test_an_action_certificate_holds_the_bounds_it_speaks_of() -> None:
    policy = make_policy("Hopper-v4", MEDIAN)
    record = certification.certify_actions(policy, 1, 0, epsilons=(0.05, 0.1), max_steps=6).record
    assert "at most 0.05, 0.1 (each by itself)" in record["statement"]
    assert np.shape(record["bound"]["lower"]) == np.shape(record["bound"]["upper"]) == (2, 6, 3)


def test_an_interrupted_certification_gives_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which episodes are finished depends on their returns: what is left is no sample of anything."""
    real = rollout.evaluate

    def stopped(*args: object, **options: object) -> rollout.EpisodeResults:
        return replace(real(*args, **options), interrupted=True)  # type: ignore[arg-type]

    monkeypatch.setattr("smoothrl.rollout.evaluate", stopped)
    policy = make_policy("Hopper-v4", MEDIAN)
    for certify in (
        lambda: certification.certify_return(policy, 8, 0, epsilons=(0.0001,), horizon=5),
        lambda: certification.certify_actions(policy, 1, 0, epsilons=(0.1,), max_steps=5),
        lambda: certification.certify_radius(voter(), max_steps=5),
    ):
        with pytest.raises(KeyboardInterrupt):
            certify()


def test_outputs_that_are_not_finite_certify_nothing() -> None:
    agent = voter()
    with torch.no_grad():
        next(agent.network.parameters()).fill_(math.nan)
    with pytest.raises(UserError, match="NaN"):
        certification.certify_radius(agent, max_steps=3)
    with pytest.raises(UserError, match="NaN"):
        certification._outputs(torch.tensor([[1.0, math.inf]]))


def test_a_live_normaliser_certifies_nothing() -> None:
    agent = voter()
    live = Agent(agent.network, agent.normaliser, agent.info, agent.smoothing)
    object.__setattr__(live.normaliser, "updating", True)
    with pytest.raises(UserError, match="still updating"):
        certification.certify_radius(live)


def test_refusals_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_args: object, **_options: object) -> None:
        raise AssertionError("an episode was played")

    monkeypatch.setattr("smoothrl.rollout.evaluate", never)
    with pytest.raises(UserError, match=r"can never certify.*at least"):
        certification.certify_radius(voter(3))
    with pytest.raises(UserError, match="nothing to certify"):
        certification.certify_radius(make_policy("Hopper-v4"))
    with pytest.raises(UserError, match="vote smoothing"):
        certification.certify_radius(make_policy("Hopper-v4", MEDIAN))
    with pytest.raises(UserError, match="median smoothing"):
        certification.certify_actions(voter())
    with pytest.raises(UserError, match="at least"):
        certification.certify_actions(make_policy("Hopper-v4", Smoothing("median", 0.2, 5)), epsilons=(0.3,))
    with pytest.raises(UserError, match="can never bound the return"):
        certification.certify_return(make_policy("Hopper-v4", MEDIAN), 5, epsilons=(0.1,))
    with pytest.raises(UserError, match="can never certify radius"):
        certification.decide_radius(voter(10), 5.0, cap=10)
    with pytest.raises(UserError, match=r"mean-smoothed.*At least \d+ samples"):
        certification.certify_crop(voter(3, "mean"))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kind": "mean"}, "floor"),
        ({"kind": "cvar"}, "floor"),
        ({"kind": "threshold"}, "named before"),
        ({"kind": "mean", "floor": 0.0, "protocol": PAPER}, "quantile"),
        ({"p": 1.0}, "probabilities"),
        ({"budgets": (0.1,)}, "exactly one"),
        ({"band": "dkw", "episodes": 40}, "at least 60 are needed"),
        ({"band": "berk-jones", "episodes": 20}, "39 are enough"),
        ({"episodes": 17}, "at least 18 are needed"),
        ({"episodes": 18, "epsilons": (0.02, 0.03), "simultaneous": True}, "at least 22 are needed"),
        ({"kind": "cvar", "floor": 0.0, "episodes": 100}, "862 are enough"),
        ({"protocol": PAPER, "episodes": 5}, "at least 6 are needed"),
    ],
)
def test_return_refusals_before_any_work(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], word: str
) -> None:
    """One sigma of budget a episode of 100 steps: eps = .02 a step at sigma = .2."""

    def never(*_args: object, **_options: object) -> None:
        raise AssertionError("an episode was played")

    monkeypatch.setattr("smoothrl.rollout.evaluate", never)
    with pytest.raises(UserError, match=word):
        certification.certify_return(
            make_policy("Hopper-v4", MEDIAN),
            **({"episodes": 1000, "epsilons": (0.02,), "horizon": 100} | options),  # type: ignore[arg-type]
        )


def test_action_refusals_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1 sigma and d = 3 the exact bound needs 28 samples; the deployed one 59."""

    def never(*_args: object, **_options: object) -> None:
        raise AssertionError("an episode was played")

    monkeypatch.setattr("smoothrl.rollout.evaluate", never)
    for samples, options, needed in (
        (27, {}, 28),
        (28, {"deployed": True}, 59),
        (5, {"protocol": PAPER}, 6),
    ):
        agent = make_policy("Hopper-v4", Smoothing("median", 0.2, samples))
        with pytest.raises(UserError, match=f"at least {needed} are needed"):
            certification.certify_actions(agent, epsilons=(0.2,), **options)  # type: ignore[arg-type]
    for mode, needed in (("exact", 28), ("deployed", 59), ("paper", 6)):
        assert action_bound(np.zeros((needed, 3)), 0.2, 0.2, mode=mode, reading="numpy").finite
        fewer = np.zeros((needed - 1, 3))
        assert not action_bound(fewer, 0.2, 0.2, mode=mode, reading="numpy").finite


def test_agents_with_batch_statistics_certify_nothing() -> None:
    network = networks.DenoisedQ(networks.DnCNN(4, 4, 3, "batch"), networks.SmallQ(4, 3))
    info = AgentInfo("s-dqn", "MinAtar/Breakout-v1", "discrete", 3, (4, 10, 10))
    agent = Agent(
        network, Normaliser("scale", scale=1 / 255), info, Smoothing("vote", 0.3, 100), batch_statistics=True
    )
    with pytest.raises(UserError, match="certify nothing"):
        certification.certify_radius(agent)


def test_protocols_differ_in_what_they_claim() -> None:
    agent = make_policy("Hopper-v4", MEDIAN)
    options = {"epsilons": (0.01,), "horizon": 30}
    sound = certification.certify_return(agent, 40, 0, protocol=SOUND, **options)
    paper = certification.certify_return(agent, 40, 0, protocol=PAPER, **options)
    assert sound.result.valid.all()
    assert math.isfinite(paper.result.violation[0])


def test_certificate_command(command, policy_file: Path, tmp_path: Path) -> None:
    out, rows = tmp_path / "bound.json", tmp_path / "rows.json"
    done = command(
        "certify", "return", policy_file, "--episodes", 60, "--horizon", 40, "--epsilon", 0.001, 0.002,
        "--out", out, "--json", rows,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "with probability at least 0.5" in done.stdout
    assert [row["epsilon"] for row in json.loads(rows.read_text())] == [0.001, 0.002]
    verified = command("certify", "verify", out, "--agent", policy_file, "--resample")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    record = json.loads(out.read_text())
    record["bound"]["bound"][0] += 1.0
    out.write_text(json.dumps(record))
    failed = command("certify", "verify", out)
    assert failed.returncode == 1
    assert "FAILED" in failed.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("radus", "AGENT"), "did you mean 'radius'"),
        (("radius", "AGENT"), "vote smoothing"),
        (("actions", "AGENT", "--smooth", "none"), "nothing to certify"),
        (("return", "AGENT", "--episodes", "4", "--epsilon", "0.1"), "can never bound"),
        (("radius", "AGENT", "--value-range", "0", "1"), "--smooth mean"),
        (("radius", "AGENT", "--target", "0.1", "--mode", "rank"), "drop --mode"),
        (("verify", "FILE", "--resample"), "needs --agent"),
        (("verify", "nothing.json"), "does not exist"),
    ],
)
def test_certificate_errors(command, policy_file: Path, arguments: tuple[str, ...], message: str) -> None:
    done = command("certify", *(policy_file if a == "AGENT" else a for a in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
