"""`smoothrl train METHOD --env ENV`: parsing and printing; the learning is in `smoothrl.learners`."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from smoothrl.cli.common import pick_device, progress_bar, say
from smoothrl.errors import UserError

if TYPE_CHECKING:
    from smoothrl.learners.methods import Method


@dataclass(frozen=True)
class TrainOptions:
    """Train agents. METHOD says its parts: s-ppo+sgld is PPO, smoothed, with the SGLD regulariser."""

    method: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="METHOD")]
    """`smoothrl list methods` shows all."""
    env: str
    """Environment id; `smoothrl list environments` shows what is known."""
    seeds: int = 1
    """How many agents; PPO trains them as one pool."""
    seed: int = 0
    """The first of the seeds."""
    steps: int | None = None
    """Environment steps a seed (default: the preset's)."""
    sigma: float | None = None
    """Standard deviation of the smoothing noise, for `s-` methods."""
    samples: int | None = None
    """Noise samples of one decision: in training (s-ppo), of the deployed votes (s-dqn)."""
    epsilon: float | None = None
    """Budget that regularisers and adversaries train against."""
    out: Path | None = None
    """Run folder (default: runs/METHOD-ENV)."""
    resume: bool = False
    """Go on with the run in the folder."""
    refill_replay: bool = False
    """dqn, with --resume: keep the networks of a run whose replay was lost, and fill a new one."""
    protocol: Literal["sound", "paper"] = "sound"
    """Corrected, or exactly as published."""
    preset: str | None = None
    """Hyper-parameters by name, where an environment has several."""
    init: Path | None = None
    """Start from this agent's network and normaliser."""
    base: Path | None = None
    """The frozen agent that s-dqn puts its denoiser in front of."""
    adversarial: str | None = None
    """s-dqn: train the denoiser against this attack (s-pgd)."""
    denoiser: str | None = None
    """s-dqn: dncnn, fast, mlp or none."""
    set: tuple[str, ...] = ()
    """Any other setting as name=value; the run's config.json names them all."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the networks run."""
    threads: int | None = None
    """Threads that step environments (default: one a core)."""

    @property
    def folder(self) -> Path:
        name = f"{self.method}-{self.env}".replace("/", "-").replace(":", "-")
        return Path("runs") / name if self.out is None else self.out

    def overrides(self, names: dict[str, str]) -> dict[str, Any]:
        """The options given, under the names of the learner's settings, and those of --set."""
        given = {theirs: getattr(self, mine) for mine, theirs in names.items()}
        return {k: v for k, v in given.items() if v is not None} | dict(map(assignment, self.set))

    @property
    def seed_list(self) -> tuple[int, ...]:
        if self.seeds < 1:
            raise UserError(f"--seeds must be at least 1, got {self.seeds}")
        return tuple(range(self.seed, self.seed + self.seeds))


def assignment(text: str) -> tuple[str, Any]:
    """`lr=3e-4` -> ("lr", 0.0003); text that is no Python literal stays text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--set takes name=value, got {text!r}")
    words = {"true": True, "false": False, "none": None}
    if value.strip().lower() in words:
        return name.strip(), words[value.strip().lower()]
    try:
        return name.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        return name.strip(), value.strip()


def main(argv: Sequence[str]) -> int:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    options = tyro.cli(
        TrainOptions,
        args=list(argv),
        prog="smoothrl train",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    from smoothrl.learners.methods import parse

    method = parse(options.method)
    check(options, method)
    trainers: dict[str, Callable[[TrainOptions, Method], list[Path]]] = {"ppo": _ppo, "dqn": _dqn}
    try:
        files = trainers[method.algorithm](options, method)
    except KeyboardInterrupt:
        say(f"interrupted; go on with the same command and --resume (run folder {options.folder})")
        return 130
    for file in files:
        say(f"agent: {file}")
    say(f"run:   {options.folder}  (progress.csv; tensorboard --logdir {options.folder / 'events'})")
    return 0


def check(options: TrainOptions, method: Method) -> None:
    """Refuse options that the method has no use for."""
    if options.epsilon is not None and not method.robust and options.adversarial is None:
        raise UserError(
            f"--epsilon is the budget of a robust ingredient and {method.name} has none; "
            f"try {method.name}+{'sgld' if method.algorithm == 'ppo' else 'radial'}, or drop --epsilon"
        )
    if options.sigma is not None and not method.smoothed:
        raise UserError(
            f"--sigma is the noise of smoothed training and {method.name} has none; train s-{method.name}, "
            "or smooth at test time with `smoothrl evaluate --smooth`"
        )
    if options.samples is not None and not method.smoothed:
        raise UserError(f"--samples counts the noise draws of a smoothed agent and {method.name} has none")
    if method.algorithm == "ppo":
        for name in ("base", "adversarial", "denoiser", "preset"):
            if getattr(options, name) is not None:
                raise UserError(f"--{name} is for dqn methods; {method.name} has no use for it")


def _ppo(options: TrainOptions, method: Method) -> list[Path]:
    if options.device == "cuda":
        raise UserError(
            "PPO's networks have 64 units a layer and train fastest on a CPU; use --device cpu (or auto)"
        )
    import torch

    from smoothrl.agents import load_agent
    from smoothrl.learners.ppo import train
    from smoothrl.learners.presets import configure

    torch.set_num_threads(1)
    names = {"steps": "steps", "sigma": "sigma", "samples": "train_samples", "epsilon": "epsilon"}
    overrides = options.overrides(names) | {"protocol": options.protocol}
    config = configure(method, options.env, options.seed_list, overrides)
    init = None if options.init is None else load_agent(options.init)
    whole = config.iterations * config.horizon
    with progress_bar() as bar:
        first: list[int] = []

        def on_iteration(step: int, row: dict[str, float]) -> None:
            if not first:
                first.append(step - config.horizon)
                label = f"{method.name} {options.env} x {config.pool}"
                bar.start(label, (whole - first[0]) * config.pool, "steps")
            bar.update((step - first[0]) * config.pool, f"return {row['return']:,.0f}")

        return train(
            config,
            options.folder,
            resume=options.resume,
            init=init,
            on_iteration=on_iteration,
            threads=options.threads,
        )


def _dqn(options: TrainOptions, method: Method) -> list[Path]:
    import torch

    from smoothrl.learners.q_methods import configure, train

    torch.set_num_threads(1)
    device = pick_device(options.device)
    overrides = options.overrides({n: n for n in ("steps", "sigma", "samples", "epsilon")})
    seeds = options.seed_list
    files = []
    with progress_bar() as bar:
        for seed in seeds:
            job = configure(
                method,
                options.env,
                {**overrides, "seed": seed, "protocol": options.protocol},
                preset=options.preset,
                base=options.base,
                init=options.init,
                adversarial=options.adversarial,
                denoiser=options.denoiser,
            )
            out = options.folder if len(seeds) == 1 else options.folder / f"seed-{seed}"
            first: list[int] = []

            def report(step: int, note: str, first: list[int] = first, whole: int = job.config.steps) -> None:
                if not first:
                    first.append(step)
                    bar.start(f"{method.name} {options.env}", whole - step, "steps")
                bar.update(step - first[0], note)

            file = train(
                job,
                out,
                resume=options.resume and out.exists(),
                refill_replay=options.refill_replay,
                report=report,
                device=device,
                threads=options.threads,
            )
            files.append(file)
    return files


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
