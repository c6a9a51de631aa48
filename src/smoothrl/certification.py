"""Certificates of agents: episodes are played, votes, samples or returns recorded, and the pure functions of
`smoothrl.certificates` say what follows. Each function gives rows, sentences and a file that replays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smoothrl import certificates, envs, rollout, smoothing
from smoothrl.agents import Agent, Smoothing
from smoothrl.certificates import files, samplers
from smoothrl.certificates.actions import refuse_hopeless_actions
from smoothrl.certificates.crop import refuse_hopeless_crop
from smoothrl.certificates.radius import default_mode, largest_radius, refuse_hopeless
from smoothrl.certificates.returns import refuse_hopeless_returns
from smoothrl.errors import UserError
from smoothrl.noise import GeneratorNoise
from smoothrl.protocols import PAPER, SOUND, Protocol
from smoothrl.results import NORMALISED, PIXELS, ResultRow
from smoothrl.rollout import Progress
from smoothrl.statistics import mean_estimate

Array = npt.NDArray[Any]

ADIV_EPSILONS = (0.1, 0.2, 0.3)
"""The l2 budgets over which the paper averages ADIV."""
VECTOR_RETURN_EPSILONS = (0.002, 0.004, 0.006, 0.008, 0.01)
IMAGE_RETURN_EPSILONS = (0.001, 0.002, 0.003, 0.004, 0.005)
"""The paper's l2 budgets a step of reward lower bounds."""
RETURN_LANES, IMAGE_RETURN_LANES = 1000, 64
"""Episodes side by side in a return certificate."""
KEPT_STATES = 64
"""Steps of the first episode whose action samples an action certificate keeps for its replay."""


@dataclass(frozen=True)
class Certified:
    """What one certification gives."""

    rows: tuple[ResultRow, ...]
    """Rows of the results table."""
    record: dict[str, Any]
    """The certificate file's content (`smoothrl.certificates.files`)."""
    summary: tuple[str, ...]
    """Sentences for a person."""
    result: Any
    """The result object of `smoothrl.certificates`."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Curves and counts, for reports."""


def check_certifiable(agent: Agent, kinds: Sequence[smoothing.Kind]) -> None:
    """Refuse, before any work, an agent about which nothing can be certified."""
    if agent.batch_statistics:
        raise UserError(
            "this agent normalises with the statistics of the batch, so its votes are no independent draws "
            "of one function and certify nothing; use frozen or per-image statistics"
        )
    samplers.refuse_batch_dependent(agent.network)
    samplers.refuse_live_normaliser(agent.normaliser)
    if agent.smoothing.kind == "none":
        raise UserError("without smoothing there is nothing to certify: pass --smooth and --sigma")
    if agent.smoothing.kind not in kinds:
        raise UserError(
            f"this certificate is about {' or '.join(kinds)} smoothing; the agent uses {agent.smoothing.kind}"
        )
    generator = torch.Generator(device=agent.device).manual_seed(0)
    trial = torch.randn(16, *agent.info.observation_shape, generator=generator, device=agent.device)
    samplers.check_samplewise(agent.forward, trial)


def _play(agent: Agent, **how: Any) -> rollout.EpisodeResults:
    """Clean episodes, all of them: what an interruption left would be no independent sample."""
    played = rollout.evaluate(agent, **how)
    if played.interrupted:
        raise KeyboardInterrupt
    return played


def _outputs(outputs: torch.Tensor) -> Array:
    """Sampled outputs on the host; what is not finite certifies nothing."""
    if not torch.isfinite(outputs).all():
        raise UserError(
            "the agent's outputs contain NaN or infinite values: nothing can be certified about it"
        )
    return np.asarray(outputs.cpu().numpy())


def _votes(step: rollout.Step) -> Array:
    _outputs(step.outputs)
    return smoothing.vote_counts(step.outputs).cpu().numpy()


@dataclass
class _Recorder:
    """Keeps what `keep(step)` gives for each running episode, in the order episode by episode."""

    keep: Callable[[rollout.Step], Array]
    parts: list[Array] = field(default_factory=list)
    episodes: list[Array] = field(default_factory=list)

    def __call__(self, step: rollout.Step) -> None:
        self.parts.append(self.keep(step))
        self.episodes.append(step.index)

    def ordered(self) -> Array:
        """(all states, ...), the states of one episode together and in time order."""
        order = np.argsort(np.concatenate(self.episodes), kind="stable")
        return np.asarray(np.concatenate(self.parts)[order])


def _make(
    kind: str,
    data: Mapping[str, Any],
    parameters: Mapping[str, Any],
    agent: Agent,
    seed: int,
    how: dict[str, Any],
) -> dict[str, Any]:
    details = {"smoothing": agent.smoothing, "method": agent.info.method, "how": how}
    environment = agent.info.env_id
    return files.make(
        kind, data, parameters, agent_hash=agent.digest, environment=environment, seed=seed, details=details
    )


def _row(
    agent: Agent,
    metric: str,
    value: float,
    seed: int,
    episodes: int,
    wall: float,
    protocol: Protocol,
    **more: Any,
) -> ResultRow:
    smooth = agent.smoothing
    return ResultRow(
        environment=agent.info.env_id,
        agent=agent.name,
        metric=metric,
        mean=value,
        sigma=smooth.sigma,
        samples=smooth.samples,
        norm="l2",
        seed=seed,
        agent_seed=agent.info.seed,
        episodes=episodes,
        protocol=protocol.name,
        smoothing=smooth.kind,
        agent_hash=agent.digest,
        units=PIXELS if agent.normaliser.kind == "scale" else NORMALISED,
        wall_time=wall,
        steps=agent.info.steps or None,
        **more,
    )


# ----------------------------------------------------------------------------------- certified radius


def certify_radius(
    agent: Agent,
    episodes: int = 1,
    seed: int = 0,
    *,
    alpha: float = 0.05,
    protocol: Protocol = SOUND,
    mode: str | None = None,
    max_steps: int | None = 500,
    eta: float = 0.001,
    lanes: int | None = None,
    progress: Progress | None = None,
) -> Certified:
    """Certified radius (Theorems 1 and 2) at every state that clean episodes visit, from the acting votes."""
    check_certifiable(agent, ("vote",))
    smooth = agent.smoothing
    chosen = mode or (default_mode(agent.info.actions) if protocol.exact_bounds else "paper")
    if chosen not in ("paper", "majority", "rank"):
        raise UserError(
            f"mode {chosen!r} needs its action chosen on other samples; the acting votes serve the modes "
            "paper, majority and rank (for `anytime` pass --target RADIUS)"
        )
    refuse_hopeless(smooth.samples, smooth.sigma, alpha, chosen)
    recorder = _Recorder(_votes)
    played = _play(
        agent,
        episodes=episodes,
        seed=seed,
        lanes=lanes,
        max_steps=max_steps,
        on_step=recorder,
        progress=progress,
    )
    counts = recorder.ordered()
    result = certificates.radius(counts, smooth.sigma, alpha, chosen)
    deployed = certificates.deployed_radius(result, smooth.samples, eta)
    ends = np.cumsum(played.lengths)[:-1]
    cap = max_steps or envs.spec(agent.info.env_id, **agent.info.env_settings).horizon
    joint = [
        certificates.joint_radius(part, smooth.sigma, alpha, chosen, cap=cap).smallest
        for part in np.split(counts, ends)
    ]
    curve = certificates.certified_curve(
        np.split(result.radius, ends), np.linspace(0.0, 4.0 * smooth.sigma, 81)
    )
    how = {"episodes": episodes, "max_steps": max_steps, "lengths": played.lengths}
    parameters = {"sigma": smooth.sigma, "alpha": alpha, "mode": chosen}
    reach = largest_radius(smooth.samples, smooth.sigma, alpha, chosen)
    linf = result.mean_radius / math.sqrt(math.prod(agent.info.observation_shape))
    share = 100 * result.fraction_certified
    summary = (
        f"mean certified l2 radius {result.mean_radius:.4g} ({result.mean_radius / smooth.sigma:.3g} sigma; "
        f"as linf {linf:.3g}) over {len(counts)} states, {share:.1f} % certified "
        f"(mode {chosen}, alpha {alpha:g} a state)",
        f"the most that {smooth.samples} votes can show is {reach:.4g}",
        f"the deployed agent keeps its action w.p. {1 - eta:g} up to {deployed.radius.mean():.4g} on average",
        f"all steps of an episode together: {np.mean(joint):.4g} a step (smallest radius, mean of episodes)",
        str(result.claim),
    )
    row = _row(
        agent,
        "certified_radius",
        result.mean_radius,
        seed,
        episodes,
        played.wall_time,
        protocol,
        std=float(result.radius.std()),
        level=1.0 - alpha,
        note=f"mode {chosen}; {share:.1f} % of {len(counts)} states; abstentions count 0",
    )
    extras = {
        "radius": result.radius,
        "deployed_radius": deployed.radius,
        "joint": joint,
        "lengths": played.lengths,
        "returns": played.returns,
        "curve": curve.to_json(),
    }
    record = _make("radius", {"counts": counts}, parameters, agent, seed, how)
    return Certified((row,), record, summary, result, extras)


def certify_crop(
    agent: Agent,
    value_range: tuple[float, float] | None = None,
    episodes: int = 1,
    seed: int = 0,
    *,
    alpha: float = 0.05,
    protocol: Protocol = SOUND,
    max_steps: int | None = 500,
    lanes: int | None = None,
    progress: Progress | None = None,
) -> Certified:
    """CROP's radius of the Q-agent that averages values clipped to `value_range` (any range is sound).

    Without a range: the smoothed values of one episode that is not certified, as CROP estimates it.
    """
    check_certifiable(agent, ("mean",))
    if not agent.discrete:
        raise UserError(
            "CROP's radius is about Q-agents; a policy has action bounds: smoothrl certify actions"
        )
    mode = "exact" if protocol.exact_bounds else "paper"
    smooth = agent.smoothing
    refuse_hopeless_crop(smooth.samples, agent.info.actions, smooth.sigma, alpha, mode=mode)
    if value_range is None:
        pilot = _Recorder(lambda step: _outputs(step.outputs.mean(dim=1)))
        _play(agent, episodes=1, seed=seed, first=episodes, max_steps=max_steps, on_step=pilot)
        values = pilot.ordered()
        value_range = (float(values.min()), float(values.max()))
    recorder = _Recorder(lambda step: _outputs(step.outputs))
    played = _play(
        agent,
        episodes=episodes,
        seed=seed,
        lanes=lanes,
        max_steps=max_steps,
        on_step=recorder,
        progress=progress,
    )
    q_values = recorder.ordered()
    result = certificates.crop_radius(q_values, value_range, smooth.sigma, alpha, mode)
    row = _row(
        agent,
        "certified_radius",
        result.mean_radius,
        seed,
        episodes,
        played.wall_time,
        protocol,
        level=1.0 - alpha,
        note=f"CROP, values in [{value_range[0]:.4g}, {value_range[1]:.4g}], mode {mode}",
    )
    summary = (
        f"mean certified l2 radius {result.mean_radius:.4g} over {len(q_values)} states (CROP, values "
        f"clipped to [{value_range[0]:.4g}, {value_range[1]:.4g}], mode {mode})",
        str(result.claim),
    )
    how = {"episodes": episodes, "max_steps": max_steps, "lengths": played.lengths}
    parameters = {"value_range": list(value_range), "sigma": smooth.sigma, "alpha": alpha, "mode": mode}
    record = _make("crop", {"q_values": q_values}, parameters, agent, seed, how)
    return Certified((row,), record, summary, result, {"radius": result.radius, "lengths": played.lengths})


def decide_radius(
    agent: Agent,
    target: float,
    episodes: int = 1,
    seed: int = 0,
    *,
    alpha: float = 0.05,
    cap: int = 100,
    max_steps: int | None = 500,
    lanes: int | None = None,
    progress: Progress | None = None,
) -> Certified:
    """Is the radius at least `target`? The anytime test at every visited state stops as soon as it knows."""
    check_certifiable(agent, ("vote",))
    samplers.refuse_target(target, agent.smoothing.sigma, alpha, cap)
    seen = _Recorder(lambda step: step.observations.cpu().numpy())
    played = _play(
        agent,
        episodes=episodes,
        seed=seed,
        lanes=lanes,
        max_steps=max_steps,
        on_step=seen,
        progress=progress,
    )
    states = seen.ordered()

    def votes(rows: Array, m: int, generator: torch.Generator) -> Array:
        outputs = agent.sample_outputs(
            torch.from_numpy(rows).to(agent.device), GeneratorNoise(generator), samples=m
        )
        return np.asarray(_outputs(outputs).argmax(axis=-1))

    decision = samplers.decide_radius(
        votes,
        states,
        target,
        agent.smoothing.sigma,
        agent.info.actions,
        torch.Generator(device=agent.device).manual_seed(seed),
        alpha=alpha,
        cap=cap,
    )
    share = float(decision.certified.mean())
    row = _row(
        agent,
        "certified_at_target",
        share,
        seed,
        episodes,
        played.wall_time,
        SOUND,
        epsilon=target,
        level=1.0 - alpha,
        note=f"anytime test, {decision.mean_samples:.1f} samples a state on average, cap {cap}",
    )
    summary = (
        f"{100 * share:.1f} % of {len(states)} states certified at l2 radius {target:g} "
        f"({target / agent.smoothing.sigma:.3g} sigma), {decision.mean_samples:.1f} samples a state",
        str(decision.result.claim),
    )
    parameters = {"sigma": agent.smoothing.sigma, "alpha": alpha, "mode": "anytime"}
    data = {"counts": decision.counts, "selection_counts": decision.pilot}
    how = {"episodes": episodes, "max_steps": max_steps, "target": target, "cap": cap}
    record = _make("radius", data, parameters, agent, seed, how)
    return Certified((row,), record, summary, decision, {"status": decision.status})


# ------------------------------------------------------------------------------- action bounds and ADIV


def certify_actions(
    agent: Agent,
    episodes: int = 50,
    seed: int = 0,
    *,
    epsilons: Sequence[float] = ADIV_EPSILONS,
    alpha: float = 0.05,
    protocol: Protocol = SOUND,
    reading: str = "numpy",
    deployed: bool = False,
    max_steps: int | None = None,
    lanes: int | None = None,
    progress: Progress | None = None,
) -> Certified:
    """Action bounds (Theorems 3 and 4) at every visited state, and their mean width, ADIV.

    Episodes weigh the same, as in the paper. The certificate file holds the bounds and samples of the first
    `KEPT_STATES` states of the first episode.
    """
    check_certifiable(agent, ("median",))
    smooth = agent.smoothing
    mode = "paper" if not protocol.exact_bounds else ("deployed" if deployed else "exact")
    options: dict[str, Any] = {"mode": mode, "alpha": alpha}
    if mode == "paper":
        options["reading"] = reading
    if mode == "deployed":
        options["deployed_samples"] = smooth.samples
    refuse_hopeless_actions(smooth.samples, agent.info.actions, epsilons, smooth.sigma, alpha, mode=mode)
    widths = _Recorder(lambda step: _adiv_of(_outputs(step.outputs), epsilons, smooth.sigma, options))
    kept: list[Array] = []

    def on_step(step: rollout.Step) -> None:
        widths(step)
        if step.step < KEPT_STATES:
            kept.append(_outputs(step.outputs[step.index == 0]))

    played = _play(
        agent,
        episodes=episodes,
        seed=seed,
        lanes=lanes,
        max_steps=max_steps,
        on_step=on_step,
        progress=progress,
    )
    values = widths.ordered()
    by_episode = np.split(values, np.cumsum(played.lengths)[:-1])
    finite = np.isfinite(values)
    means = np.array([[_finite_mean(part[:, i]) for i in range(len(epsilons))] for part in by_episode])
    adiv = float(np.nanmean(means)) if np.isfinite(means).any() else math.nan
    rows = tuple(
        _row(
            agent,
            "adiv",
            value,
            seed,
            episodes,
            played.wall_time,
            protocol,
            epsilon=eps,
            level=0.95,
            note=f"mode {mode}; {100 * share:.2f} % of the states without a finite bound",
            **_spread(each, seed),
        )
        for eps, value, share, each in [
            (None, adiv, float(1 - finite.mean()), np.array([_finite_mean(m) for m in means])),
            *zip(
                epsilons, [_finite_mean(m) for m in means.T], 1.0 - finite.mean(axis=0), means.T, strict=True
            ),
        ]
        if math.isfinite(value)
    )
    samples = np.concatenate(kept)
    example = certificates.action_bound(samples, max(epsilons), smooth.sigma, **options)
    summary = (
        f"ADIV {adiv:.4g} over l2 budgets {', '.join(f'{e:g}' for e in epsilons)} ({len(values)} states, "
        f"mode {mode}; {100 * float(1 - finite.mean()):.2f} % of the bounds infinite and left out)",
        str(example.claim),
    )
    parameters = {"eps": list(epsilons), "sigma": smooth.sigma, **options}
    how = {"episodes": episodes, "max_steps": max_steps, "states kept": len(samples)}
    record = _make("adiv", {"samples": samples}, parameters, agent, seed, how)
    extras = {"adiv_by_episode": means, "returns": played.returns, "lengths": played.lengths}
    return Certified(rows, record, summary, example, extras)


def _adiv_of(samples: Array, epsilons: Sequence[float], sigma: float, options: Mapping[str, Any]) -> Array:
    """||U - L|| / (2 eps) of each state (rows) and budget (columns)."""
    return np.stack(
        [certificates.action_bound(samples, e, sigma, **options).adiv() for e in epsilons], axis=-1
    )


def _finite_mean(values: Array) -> float:
    good = values[np.isfinite(values)]
    return float(good.mean()) if good.size else math.nan


def _spread(values: Array, seed: int) -> dict[str, float]:
    """Deviation over episodes, and the interval of their mean."""
    good = values[np.isfinite(values)]
    if good.size < 2:
        return {}
    interval = mean_estimate([good], np.random.default_rng(seed))
    return {"std": float(good.std(ddof=1)), "low": interval.low, "high": interval.high}


# ----------------------------------------------------------------------------------------- returns


def one_draw(agent: Agent) -> Agent:
    """The agent with one fresh noise draw a step, the one that return certificates are about."""
    if agent.smoothing.kind == "none":
        raise UserError("without smoothing there is nothing to certify: pass --smooth and --sigma")
    return agent.with_smoothing(Smoothing(agent.smoothing.kind, agent.smoothing.sigma, 1))


def certify_return(
    agent: Agent,
    episodes: int = 1000,
    seed: int = 0,
    *,
    epsilons: Sequence[float] | None = None,
    budgets: Sequence[float] | None = None,
    horizon: int | None = None,
    kind: str = "quantile",
    band: str | None = None,
    p: float = 0.5,
    threshold: float | None = None,
    tail: float = 0.1,
    floor: float | None = None,
    alpha: float = 0.05,
    protocol: Protocol = SOUND,
    reading: str = "numpy",
    simultaneous: bool = False,
    lanes: int | None = None,
    progress: Progress | None = None,
) -> Certified:
    """Lower bounds of the return under any attack (Theorems 5 and 6), all budgets from one set of episodes.

    The horizon of per-step budgets is enforced: episodes are cut there, and the certified return is that
    of the first `horizon` steps.
    """
    agent = one_draw(agent)
    check_certifiable(agent, ("vote", "median", "mean"))
    image = len(agent.info.observation_shape) == 3
    if epsilons is None and budgets is None:
        epsilons = IMAGE_RETURN_EPSILONS if image else VECTOR_RETURN_EPSILONS
    enforced = horizon or envs.spec(agent.info.env_id, **agent.info.env_settings).horizon
    if epsilons is not None and enforced is None:
        raise UserError(
            f"{agent.info.env_id} has no step limit; a budget a step needs --horizon (or --budget)"
        )
    sigma = agent.smoothing.sigma
    mode = "exact" if protocol.exact_bounds else "paper"
    parameters: dict[str, Any] = {
        "sigma": sigma,
        "budget": None if budgets is None else list(budgets),
        "eps": None if epsilons is None else list(epsilons),
        "horizon": enforced if epsilons is not None else None,
        "kind": kind,
        "mode": mode,
        "band": band,
        "reading": reading,
        "p": p,
        "threshold": threshold,
        "tail": tail,
        "floor": floor,
        "alpha": alpha,
        "simultaneous": simultaneous,
    }
    rehearsed = certificates.return_bound(np.full(2, floor or 0.0), **parameters)
    totals = rehearsed.budget
    refuse_hopeless_returns(
        episodes, sigma, totals.tolist(), alpha, p, mode=mode, kind=kind, band=band, tail=tail,
        simultaneous=simultaneous,
    )  # fmt: skip
    played = _play(
        agent,
        episodes=episodes,
        seed=seed,
        lanes=lanes or min(episodes, IMAGE_RETURN_LANES if image else RETURN_LANES),
        max_steps=enforced,
        progress=progress,
    )
    result = certificates.return_bound(played.returns, **parameters)
    clean = float(np.median(played.returns))
    rows = tuple(
        _row(
            agent,
            "reward_lower_bound",
            float(result.bound[i]),
            seed,
            episodes,
            played.wall_time,
            protocol,
            epsilon=float(totals[i] if epsilons is None else epsilons[i]),
            low=float(result.bound[i]),
            level=1.0 - alpha,
            note=result.claims[i],
        )
        for i in range(len(totals))
        if math.isfinite(result.bound[i])
    )
    summary = (
        f"clean return of {episodes} one-draw episodes: median {clean:.1f}, mean {played.returns.mean():.1f}",
        *result.claims,
    )
    how = {"episodes": episodes, "horizon": enforced}
    record = _make("return", {"returns": played.returns}, parameters, agent, seed, how)
    extras = {"returns": played.returns, "lengths": played.lengths, "wall_time": played.wall_time}
    return Certified(rows, record, summary, result, extras)


# ----------------------------------------------------------------------------------------- replay


def resampler(
    agent: Agent, progress: Progress | None = None
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Draws a certificate's data anew from agent and recorded seed: no forgery of a file survives that.

    Noise, horizon and range are taken from the parameters behind the bound, and a return certificate is drawn
    with one sample a step: what else the file says about itself cannot lead astray.
    """

    def again(record: Mapping[str, Any]) -> dict[str, Any]:
        kind, options, how = record["kind"], record["parameters"], record["details"]["how"]
        asked = record["details"]["smoothing"]
        samples = 1 if kind == "return" else int(asked["samples"])
        mine = agent.with_smoothing(Smoothing(asked["kind"], float(options["sigma"]), samples))
        seed, episodes = int(record["seed"]), int(how["episodes"])
        if kind == "return":
            horizon = options["horizon"] or how["horizon"]
            lanes = min(episodes, RETURN_LANES)
            played = _play(
                mine, episodes=episodes, seed=seed, max_steps=horizon, lanes=lanes, progress=progress
            )
            return {"returns": played.returns}
        steps = {"max_steps": how["max_steps"], "progress": progress, "alpha": options["alpha"]}
        if kind == "radius" and options["mode"] == "anytime":
            decision = decide_radius(mine, how["target"], episodes, seed, cap=how["cap"], **steps).result
            return {"counts": decision.counts, "selection_counts": decision.pilot}
        steps["protocol"] = PAPER if options["mode"] == "paper" else SOUND
        if kind == "radius":
            fresh = certify_radius(mine, episodes, seed, mode=options["mode"], **steps)
        elif kind == "crop":
            fresh = certify_crop(mine, tuple(options["value_range"]), episodes, seed, **steps)
        elif kind == "adiv":
            steps["max_steps"] = min(KEPT_STATES, how["max_steps"] or KEPT_STATES)
            deployed = options["mode"] == "deployed"
            fresh = certify_actions(mine, 1, seed, epsilons=options["eps"], deployed=deployed, **steps)
        else:
            raise UserError(
                f"certificates of kind {kind!r} cannot be sampled again; verify without --resample"
            )
        return {name: files.decode(value) for name, value in fresh.record["data"].items()}

    return again
