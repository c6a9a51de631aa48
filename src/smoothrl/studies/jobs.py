"""The kinds of jobs: each calls the same library functions as the command of that name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoothrl.errors import UserError
from smoothrl.results import ResultRow, row_from
from smoothrl.studies.plan import JobSpec
from smoothrl.studies.selection import RULE, median_agent
from smoothrl.studies.store import write_json
from smoothrl.studies.work import Context, JobFunction

if TYPE_CHECKING:
    from smoothrl.agents import Agent
    from smoothrl.attacks import Adversary
    from smoothrl.learners.attack_runs import Attacked


def nothing(job: JobSpec, context: Context) -> list[ResultRow]:
    """Does nothing: for measuring what the scheduler itself costs."""
    return []


# ------------------------------------------------------------------------------------------- agents


def train(job: JobSpec, context: Context) -> list[ResultRow]:
    """Train the pool, or take it over from a finished run; killed, it resumes its run folder."""
    import torch

    torch.set_num_threads(context.settings.threads)
    dqn = job.params["method"].removeprefix("s-").startswith("dqn")
    found = _train_dqn(job, context) if dqn else _train_ppo(job, context)
    context.artefacts["agents"] = {
        str(seed): str(path.relative_to(context.folder)) for seed, path in found.items()
    }
    return []


def _train_ppo(job: JobSpec, context: Context) -> dict[int, Path]:
    from smoothrl.learners import ppo, presets
    from smoothrl.learners.methods import parse

    given = {k: job.params[k] for k in ("steps", "sigma", "protocol") if job.params[k] is not None}
    seeds = tuple(job.params["seeds"])
    config = presets.configure(
        parse(job.params["method"]), job.params["environment"], seeds, {**given, **job.params["options"]}
    )
    adopted = adopt(json.loads(json.dumps(asdict(config) | {"init": None})), context)
    if adopted is not None:
        files = [
            adopted / (f"agent-{s}.safetensors" if len(seeds) > 1 else "agent.safetensors") for s in seeds
        ]
        return _copied(files, seeds, context)
    whole = config.iterations * config.horizon

    def on_iteration(step: int, row: dict[str, float]) -> None:
        context.tick(step, whole, f"return {row['return']:,.0f}")

    paths = ppo.train(
        config,
        context.folder / "run",
        resume=True,
        on_iteration=on_iteration,
        threads=context.settings.threads,
    )
    return dict(zip(seeds, paths, strict=True))


def _train_dqn(job: JobSpec, context: Context) -> dict[int, Path]:
    from smoothrl.learners import q_methods
    from smoothrl.learners.methods import parse
    from smoothrl.learners.q_loop import config_json

    p, options = job.params, dict(job.params["options"])
    named = {name: options.pop(name, None) for name in ("preset", "adversarial", "denoiser")}
    method = parse("s-dqn" if p["method"].startswith("s-") else p["method"])
    if not method.smoothed:
        named["adversarial"] = named["denoiser"] = None
    bases = _members(context, "base") if "base" in job.needs else {}
    found: dict[int, Path] = {}
    for number, seed in enumerate(p["seeds"]):
        given = {k: p[k] for k in ("steps", "sigma", "protocol") if p[k] is not None}
        changes = {**given, **options, "seed": seed}
        prepared = q_methods.configure(method, p["environment"], changes, base=bases.get(seed), **named)
        adopted = adopt(json.loads(json.dumps(config_json(prepared.config), default=str)), context)
        if adopted is not None:
            found |= _copied([adopted / "agent.safetensors"], (seed,), context)
            continue
        whole = prepared.config.steps

        def report(step: int, note: str, number: int = number, whole: int = whole) -> None:
            context.tick(number * whole + step, whole * len(p["seeds"]), note)

        out = context.folder / "run" / f"seed-{seed}"
        found[seed] = q_methods.train(prepared, out, resume=out.exists(), report=report)
    return found


_SAME = ("method", "env_id", "env", "seed", "seeds", "sigma", "protocol")


def adopt(config: Mapping[str, Any], context: Context) -> Path | None:
    """A finished run with exactly these settings among the folders the user named."""
    for folder in context.settings.adopt:
        for path in sorted({Path(folder) / "config.json", *Path(folder).glob("**/config.json")}):
            if not path.is_file():
                continue
            found = json.loads(path.read_text(encoding="utf-8"))
            if any(found.get(k) != config.get(k) for k in _SAME if k in config):
                continue
            different = [k for k in config if found.get(k) != config[k]]
            if different:
                key = different[0]
                raise UserError(
                    f"--adopt {path.parent}: trained with other settings than the study asks for "
                    f"({key}: {found.get(key)!r} there, {config[key]!r} here)"
                )
            return path.parent
    return None


def _copied(files: list[Path], seeds: tuple[int, ...], context: Context) -> dict[int, Path]:
    out = {}
    for seed, source in zip(seeds, files, strict=True):
        if not source.is_file():
            raise UserError(f"--adopt: {source} is missing; has that training finished?")
        target = context.folder / "run" / f"agent-{seed}.safetensors"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        out[seed] = target
    context.artefacts.setdefault("adopted", []).extend(str(f) for f in files)
    return out


def import_(job: JobSpec, context: Context) -> list[ResultRow]:
    """Read an agent trained elsewhere."""
    from smoothrl.agents import load_agent, save_agent
    from smoothrl.agents.importers import import_released

    if not context.settings.files:
        raise UserError("this study measures agents trained elsewhere; name their folder with --files DIR")
    source = Path(context.settings.files) / job.params["file"]
    if source.suffix == ".safetensors":
        agent = load_agent(source)
    else:
        imported = import_released(source, env_id=job.params["environment"], method=job.params["method"])
        agent = imported.agent
    save_agent(agent, context.folder / "agent.safetensors")
    context.artefacts["agents"] = {"0": "agent.safetensors"}
    return []


def select(job: JobSpec, context: Context) -> list[ResultRow]:
    """The agent that stands for its method; its file is copied here."""
    seeds = job.params["seeds"]
    scores = {
        metric: [_score(context.needs_done(f"{metric}:{seed}")) for seed in seeds]
        for metric in job.params["metrics"]
    }
    seed = seeds[median_agent(scores)]
    source = _members(context, "agents")[seed]
    shutil.copyfile(source, context.folder / "agent.safetensors")
    from smoothrl.agents import load_agent

    digest = load_agent(source).digest
    context.artefacts.update(seed=seed, rule=RULE, scores=scores, digest=digest)
    return []


def _score(done: Mapping[str, Any]) -> float:
    """The mean return at the largest budget of an evaluation."""
    rows = [row_from(item) for item in done["rows"]]
    return max(rows, key=lambda row: row.epsilon or 0.0).mean


def _members(context: Context, role: str) -> dict[int, Path]:
    found = context.needs_done(role)["artefacts"]["agents"]
    return {int(seed): context.inputs[role] / path for seed, path in found.items()}


def acting_agent(job: JobSpec, context: Context) -> Agent:
    """The agent a measuring job is about, with the smoothing it is measured with."""
    import torch

    from smoothrl.agents import Smoothing, load_agent

    torch.set_num_threads(context.settings.threads)
    p = job.params
    if "agent" in job.needs:
        path = context.inputs["agent"] / "agent.safetensors"
    else:
        path = _members(context, "agents")[p["agent_seed"]]
    smooth = Smoothing() if p["sigma"] is None else Smoothing(p["smoothing"], p["sigma"], p["samples"] or 1)
    return load_agent(path, smooth=smooth, device=context.settings.device)


# ---------------------------------------------------------------------------------------- measuring


def evaluate(job: JobSpec, context: Context) -> list[ResultRow]:
    """Clean returns, returns under an attack at each budget, or the time of one decision."""
    metric = job.params["metric"]
    if metric == "seconds_per_step":
        return _seconds(job, context)
    agent = acting_agent(job, context)
    if metric == "clean":
        return [_played(job, context, agent, None, 0, 1)]
    if metric == "suite":
        return _suite(job, context, agent)
    budgets = job.params["epsilon"]
    return [_played(job, context, agent, epsilon, i, len(budgets)) for i, epsilon in enumerate(budgets)]


def _played(
    job: JobSpec, context: Context, agent: Agent, epsilon: float | None, number: int, count: int
) -> ResultRow:
    from smoothrl.attacks import make_attack
    from smoothrl.learners import attack_runs
    from smoothrl.protocols import protocol

    p = job.params
    attack, adversary = None, None
    if epsilon is not None:
        adversary = _adversary(context, epsilon) if "attack" in job.needs and epsilon else None
        attack = make_attack(
            p["metric"],
            agent,
            epsilon,
            p["norm"],
            protocol=protocol(p["protocol"]),
            adversary=adversary,
        )
    before, whole = number * p["episodes"], count * p["episodes"]
    episodes = attack_runs.Episodes(p["episodes"], p["seed"])
    played = attack_runs.play(
        agent,
        attack,
        episodes,
        progress=lambda done, step: context.tick(before + done, whole, f"step {step:,}"),
    )
    if played.results.interrupted:
        raise KeyboardInterrupt
    row = attack_runs.row_of(
        agent, played, episodes, p["protocol"], context.settings.command, _warning(played, adversary)
    )
    return replace(row, agent_seed=row.agent_seed if p["agent_seed"] is None else p["agent_seed"])


def _warning(played: Attacked, adversary: Adversary | None) -> str:
    """What speaks against trusting the number of an attack."""
    health, flags = played.health, []
    if health.rows and health.zero > 0.05 * health.rows:
        flags.append(f"flag: {100 * health.zero / health.rows:.0f} % of the gradients are exactly zero")
    if health.broken:
        flags.append(f"flag: {health.broken} gradients are not finite")
    if played.excess > 0.0:
        flags.append(f"flag: the perturbation leaves the budget by {played.excess:.2g}")
    if adversary is not None and adversary.info.notes.get("still_improving"):
        flags.append("flag: the adversary was still improving when its training stopped")
    return "; ".join(flags)


def _seconds(job: JobSpec, context: Context) -> list[ResultRow]:
    """Wall time of one decision, one episode at a time, without the environment's own share."""
    import time

    from smoothrl import envs
    from smoothrl.noise import StreamNoise

    agent, p = acting_agent(job, context), job.params
    episodes = envs.make_episodes(agent.info.env_id, [p["seed"]], **agent.info.env_settings)
    observations = agent.observe(episodes.reset())
    episodes.close()
    noise, times = StreamNoise([p["seed"]]), []
    for number in range(60):
        started = time.perf_counter()
        agent.act(observations, noise, [0])
        times.append(time.perf_counter() - started)
        context.tick(number + 1, 60)
    kept = times[10:]
    mean = sum(kept) / len(kept)
    spread = (sum((t - mean) ** 2 for t in kept) / (len(kept) - 1)) ** 0.5
    return [
        ResultRow(
            agent.info.env_id,
            agent.name,
            "seconds_per_step",
            mean,
            sigma=p["sigma"],
            samples=p["samples"],
            std=spread,
            episodes=1,
            protocol=p["protocol"],
            smoothing=agent.smoothing.kind,
            agent_hash=agent.digest,
            agent_seed=agent.info.seed,
            wall_time=sum(times),
            note=f"one decision at a time, {context.settings.threads} thread(s)",
        )
    ]


def _suite(job: JobSpec, context: Context, agent: Agent) -> list[ResultRow]:
    """The suite at each budget: its worst, every attack behind it, and its flags; killed, it goes on."""
    from smoothrl.learners.attack_runs import Episodes
    from smoothrl.learners.suite import run_suite
    from smoothrl.protocols import protocol

    p, rows = job.params, []
    for number, epsilon in enumerate(p["epsilon"]):

        def told(what: str, done: float, total: float, note: str, number: int = number) -> None:
            context.tick(number + done / max(total, 1e-9), len(p["epsilon"]), what)

        report = run_suite(
            agent,
            epsilon,
            p["norm"],
            episodes=Episodes(p["episodes"], p["seed"]),
            protocol=protocol(p["protocol"]),
            scale=p["scale"],
            folder=context.folder,
            command=context.settings.command,
            progress=told,
        )
        if report.interrupted:
            raise KeyboardInterrupt
        rows += [report.worst, *(row for row in report.rows if row.metric != "clean")]
    seed = p["agent_seed"]
    return [replace(row, agent_seed=row.agent_seed if seed is None else seed) for row in rows]


def _adversary(context: Context, epsilon: float) -> Adversary:
    from smoothrl.attacks import load_adversary

    files = context.needs_done("attack")["artefacts"]["adversaries"]
    return load_adversary(context.inputs["attack"] / files[f"{epsilon:g}"])


def fit(job: JobSpec, context: Context) -> list[ResultRow]:
    """Fit a learned attack against the agent, for each budget; killed, it goes on where it was."""
    from smoothrl.learners.attack_runs import Episodes
    from smoothrl.learners.fit_attacks import fit_attack
    from smoothrl.protocols import protocol

    agent, p = acting_agent(job, context), job.params
    found = {}
    budgets = [e for e in p["epsilon"] if e > 0.0]

    def told(number: int) -> Callable[[float, str], None]:
        return lambda share, note: context.tick(number + share, len(budgets), note)

    for number, epsilon in enumerate(budgets):
        path = fit_attack(
            agent,
            p["attack"],
            epsilon,
            p["norm"],
            folder=context.folder,
            protocol=protocol(p["protocol"]),
            scale=p["scale"],
            seed=p["seed"],
            test=Episodes(p["episodes"], p["seed"]),
            progress=told(number),
        )
        found[f"{epsilon:g}"] = path.name
    context.artefacts["adversaries"] = found
    return []


def film(job: JobSpec, context: Context) -> list[ResultRow]:
    """Short films for the report: clean, and under the strongest attack that needs no fitting."""
    from smoothrl.attacks import make_attack
    from smoothrl.protocols import protocol
    from smoothrl.studies.film import shoot

    agent, p = acting_agent(job, context), job.params
    films = [("clean", shoot(agent, None, p["seed"], context.folder / "clean"), "")]
    if p["budget"]:
        attack = make_attack(p["attack"], agent, p["budget"], p["norm"], protocol=protocol(p["protocol"]))
        shot = shoot(agent, attack, p["seed"], context.folder / "attacked")
        films.append((f"under {p['attack'].upper()}", shot, f"{p['norm']} budget {p['budget']:g}. "))
    context.artefacts["films"] = [
        {"file": shot.path.name, "title": title, "caption": f"{words}Return {shot.total:,.1f} {shot.when}"}
        for title, shot, words in films
    ]
    return []


def certify(job: JobSpec, context: Context) -> list[ResultRow]:
    """A certificate of the agent; its file is kept in the job's folder."""
    from smoothrl import certification
    from smoothrl.certificates import files
    from smoothrl.protocols import protocol

    agent, p = acting_agent(job, context), job.params
    shared: dict[str, Any] = {
        "alpha": p["alpha"],
        "protocol": protocol(p["protocol"]),
        "progress": lambda done, step: context.tick(done, p["episodes"], f"step {step:,}"),
        **p["options"],
    }
    if p["metric"] == "certified_radius" and agent.smoothing.kind == "mean":
        done = certification.certify_crop(agent, None, p["episodes"], p["seed"], **shared)
    elif p["metric"] == "certified_radius":
        done = certification.certify_radius(agent, p["episodes"], p["seed"], **shared)
    elif p["metric"] == "adiv":
        budgets = {"epsilons": p["epsilon"]} if p["epsilon"] else {}
        done = certification.certify_actions(agent, p["episodes"], p["seed"], **budgets, **shared)
    else:
        done = certification.certify_return(
            agent, p["episodes"], p["seed"], epsilons=p["epsilon"] or None, **shared
        )
    files.write(context.folder / "certificate.json", done.record)
    if "curve" in done.extras:
        write_json(context.folder / "curve.json", done.extras["curve"])
        context.artefacts["curve"] = "curve.json"
    context.artefacts["summary"] = list(done.summary)
    return [
        replace(
            row,
            agent_seed=row.agent_seed if p["agent_seed"] is None else p["agent_seed"],
            command=context.settings.command,
        )
        for row in done.rows
    ]


JOBS: dict[str, JobFunction] = {
    "nothing": nothing,
    "train": train,
    "import": import_,
    "select": select,
    "fit": fit,
    "evaluate": evaluate,
    "certify": certify,
    "film": film,
}
