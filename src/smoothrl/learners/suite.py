"""The suite: cheap attacks first, learned ones after them, the worst mean return with its interval, and flags
that say when that number should not be trusted.

Everything finished is kept in a folder (`suite.json`), so that an interrupted suite goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from smoothrl import envs, networks
from smoothrl.agents import Agent, Smoothing
from smoothrl.attacks import (
    ENTRIES,
    Adversary,
    Overrides,
    check_adversary,
    load_adversary,
    make_attack,
    make_budget,
    suitable,
)
from smoothrl.certificates import files
from smoothrl.errors import UserError
from smoothrl.learners.attack_runs import Attacked, Episodes, early_stopped, play, row_of
from smoothrl.learners.fit_attacks import FitScale, fit_attack, scale_named
from smoothrl.protocols import SOUND, Protocol
from smoothrl.results import ResultRow, row_from
from smoothrl.storage import write_atomically

Progress = Callable[[str, float, float, str], None]
"""(what, done, total, note)."""
ORDER = (
    "random",
    "fgsm",
    "pgd",
    "s-pgd",
    "targeted",
    "mad",
    "s-mad",
    "min-rs",
    "s-min-rs",
    "pa-ad",
    "s-pa-ad",
    "optimal",
    "s-optimal",
)
ZERO_SHARE = 0.05
"""More gradients than this share exactly zero: masked gradients."""
MORE_DRAWS = 4
"""The check for draws takes this many times as many."""


@dataclass(frozen=True)
class Flag:
    """One reason not to trust the number."""

    name: str
    """Short, fixed name."""
    text: str
    """What was seen and what to do."""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass
class Report:
    """What a suite found."""

    rows: list[ResultRow]
    """Clean first, then every attack that was played."""
    worst: ResultRow
    """The lowest mean return, as metric `worst`; its note says which attack."""
    worst_attack: str
    flags: list[Flag] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Attacks that were not tried, with the reason."""
    interrupted: bool = False


@dataclass(frozen=True)
class Certificate:
    """What a certificate of the same agent claims of the mean return: an attack below it breaks it."""

    bound: float
    """Lower bound of the return."""
    epsilon: float
    """Budget a step."""
    norm: str
    statistic: str = "mean"
    """mean or median."""


def claims_of(file: str | Path, agent: Agent) -> tuple[Certificate, ...]:
    """The claims of a return certificate (`smoothrl certify return`) about this very agent.

    Refused where the file speaks of another agent, another smoothing or shorter episodes.
    """
    record = files.read(file)
    if record.get("kind") != "return":
        raise UserError(f"{file}: a certificate of kind {record.get('kind')!r}; the suite compares returns")
    if record["agent_hash"] != agent.digest:
        raise UserError(
            f"{file}: about another agent ({record['agent_hash'][:12]}...); this is {agent.digest[:12]}..."
        )
    smoothing = Smoothing(**record["details"]["smoothing"])
    if smoothing != agent.smoothing:
        raise UserError(
            f"{file}: about the agent with smoothing {smoothing}, attacked is {agent.smoothing}; "
            f"use --sigma {smoothing.sigma:g} --samples {smoothing.samples}"
        )
    budget, options = record["budget"], record["parameters"]
    statistic = {"quantile": "median", "mean": "mean"}.get(options["kind"])
    if statistic is None or (statistic == "median" and options["p"] != 0.5):
        raise UserError(f"{file}: the suite compares medians and means, not this {options['kind']}")
    longest = envs.spec(agent.info.env_id, **agent.info.env_settings).horizon
    if budget["epsilon"] is None or longest is None or budget["horizon"] < longest:
        raise UserError(f"{file}: needs budgets a step over whole episodes ({longest} steps)")
    return tuple(
        Certificate(float(bound), float(epsilon), "l2", statistic)
        for bound, epsilon in zip(record["bound"]["bound"], budget["epsilon"], strict=True)
        if bound is not None and np.isfinite(bound)
    )


def attacks_for(agent: Agent, protocol: Protocol) -> list[str]:
    """The suite's attacks in order; `s-` twins only where the plain attack ignores the smoothing."""
    names = [name for name in ORDER if name in suitable(agent)]
    if protocol.attack_through_smoothing:
        names = [n for n in names if not ENTRIES[n].smoothed]
    return names


def run_suite(
    agent: Agent,
    epsilon: float,
    norm: str = "linf",
    *,
    episodes: Episodes | None = None,
    protocol: Protocol = SOUND,
    scale: FitScale | str = "quick",
    folder: str | Path,
    names: Sequence[str] | None = None,
    adversaries: Mapping[str, Adversary] | None = None,
    certificates: Sequence[Certificate] = (),
    overrides: Overrides | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Report:
    """Play the suite and report the worst.

    State and fitted adversaries live below `folder`; `adversaries` (kind -> adversary) are used instead of
    fitting; `certificates` of the same agent are held against what the attacks reach.
    """
    suite = Suite(
        agent,
        epsilon,
        norm,
        episodes or Episodes(),
        protocol,
        scale_named(scale) if isinstance(scale, str) else scale,
        Path(folder),
        dict(adversaries or {}),
        tuple(certificates),
        overrides or Overrides(),
        command,
        progress or (lambda what, done, total, note: None),
    )
    return suite.run(list(names) if names is not None else attacks_for(agent, protocol))


@dataclass
class Suite:
    """One suite on one agent and budget."""

    agent: Agent
    epsilon: float
    norm: str
    episodes: Episodes
    protocol: Protocol
    scale: FitScale
    out: Path
    adversaries: dict[str, Adversary]
    certificates: tuple[Certificate, ...]
    overrides: Overrides
    command: str
    progress: Progress
    rows: dict[str, ResultRow] = field(default_factory=dict)
    flags: list[Flag] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def run(self, names: list[str]) -> Report:
        make_budget(self.agent, self.epsilon, self.norm)
        for kind, adversary in self.adversaries.items():
            check_adversary(adversary, kind, self.agent, self.episodes.env_id)
        self._load()
        self.flags += agent_flags(self.agent)
        done = self._play("clean") and all(self._attack(name) for name in names)
        if done and self.epsilon > 0.0:
            self._zero_flag()
            self._draws_flag()
        return self._report(interrupted=not done)

    # ------------------------------------------------------------------------------- single attacks

    def _attack(self, name: str) -> bool:
        """Play one attack unless it is done or hopeless; False where it was interrupted."""
        if name in self.rows:
            return True
        reason = self._hopeless(name)
        if reason:
            self.skipped.append(f"{name}: {reason}")
            return True
        adversary = None
        if ENTRIES[name].fitted:
            adversary = self.adversaries.get(ENTRIES[name].kind) or self._fit(name)
            if adversary.info.notes.get("still_improving"):
                self._flag(
                    f"{name} unfinished", "the adversary was still improving when its fit stopped; fit longer"
                )
        return self._play(name, adversary)

    def _hopeless(self, name: str) -> str:
        """Why an attack cannot change the report."""
        if self.epsilon == 0.0:
            return "epsilon is 0"
        home = self.agent.info.env_id
        if ENTRIES[name].fitted and self.episodes.env_id not in (None, home):
            return f"adversaries are fitted where the agent was trained, {home}"
        floor = self._floor()
        if ENTRIES[name].fitted and floor is not None:
            best = min(float(np.max(row.returns)) for row in self.rows.values() if row.metric != "clean")
            if best <= floor:
                return "a cheaper attack already brings every episode to the lowest return seen"
        return ""

    def _floor(self) -> float | None:
        lows = [min(row.returns) for row in self.rows.values() if row.returns]
        return min(lows) if lows else None

    def _fit(self, name: str) -> Adversary:
        file = fit_attack(
            self.agent,
            name,
            self.epsilon,
            self.norm,
            folder=self.out / "adversaries",
            protocol=self.protocol,
            scale=self.scale,
            seed=self.episodes.seed,
            test=self.episodes,
            progress=lambda share, note: self.progress(f"{name} ({note})", share, 1.0, ""),
        )
        return load_adversary(file)

    def _play(self, name: str, adversary: Adversary | None = None) -> bool:
        if name in self.rows:
            return True
        attack = None
        if name != "clean":
            attack = make_attack(
                name,
                self.agent,
                self.epsilon,
                self.norm,
                protocol=self.protocol,
                adversary=adversary,
                overrides=self.overrides,
            )
        total = float(self.episodes.count)
        attacked = play(
            self.agent,
            attack,
            self.episodes,
            progress=lambda done, step: self.progress(name, done, total, f"step {step:,}"),
        )
        if not attacked.returns.size:
            if attacked.results.interrupted:
                return False
            raise UserError("no episode was finished, so there is no result; raise --max-steps")
        row = row_of(self.agent, attacked, self.episodes, self.protocol.name, self.command)
        if name != "clean":
            row = self._stopped_early(row)
        for flag in attack_flags(attacked, self.epsilon):
            self._flag(flag.name, flag.text)
        if attacked.results.interrupted:
            return False
        self.rows[name] = row
        self._save()
        return True

    def _stopped_early(self, row: ResultRow) -> ResultRow:
        """The released averages end early; see the switch `attack_early_stop`."""
        means = [r.mean for r in self.rows.values() if r.metric != "clean"]
        if not self.protocol.attack_early_stop or not means:
            return row
        kept = early_stopped(np.array(row.returns), min(means))
        if len(kept) == len(row.returns):
            return row
        note = f"{row.note}; average over the first {len(kept)} of {len(row.returns)} episodes, as released"
        return replace(row, mean=float(kept.mean()), episodes=len(kept), note=note, returns=tuple(kept))

    # ---------------------------------------------------------------------------------------- flags

    def _flag(self, name: str, text: str) -> None:
        if all(f.name != name for f in self.flags):
            self.flags.append(Flag(name, text))

    def _short(self) -> Episodes:
        """A few of the same episodes, for checks."""
        return replace(self.episodes, count=min(self.episodes.count, 8))

    def _zero_flag(self) -> None:
        """Epsilon 0 must equal clean, episode by episode."""
        name = next(
            (n for n in self.rows if n not in ("clean", "random") and not ENTRIES[n].fitted), "random"
        )
        attack = make_attack(name, self.agent, 0.0, self.norm, protocol=self.protocol)
        few = self._short()
        found = play(self.agent, attack, few).results.returns
        clean = np.array(self.rows["clean"].returns[: few.count])
        if not np.array_equal(found, clean):
            self._flag(
                "epsilon 0", "an attack without budget changes the returns; nothing here can be trusted"
            )

    def _draws_flag(self) -> None:
        """More noise draws in each gradient must not make the best gradient attack stronger still."""
        gradient = [
            n for n, row in self.rows.items() if n != "clean" and "through_smoothing True" in row.note
        ]
        if not gradient:
            return
        name = min(gradient, key=lambda n: self.rows[n].mean)
        if ENTRIES[name].fitted:
            return
        few = self._short()
        usual = make_attack(
            name, self.agent, self.epsilon, self.norm, protocol=self.protocol, overrides=self.overrides
        )
        draws = int(usual.describe()["draws"]) * MORE_DRAWS
        more = make_attack(
            name,
            self.agent,
            self.epsilon,
            self.norm,
            protocol=self.protocol,
            overrides=replace(self.overrides, draws=draws),
        )
        found = play(self.agent, more, few).results.returns
        flag = draws_flag(np.array(self.rows[name].returns[: few.count]), found, name, draws)
        if flag is not None:
            self._flag(flag.name, flag.text)

    # --------------------------------------------------------------------------------------- report

    def _report(self, interrupted: bool) -> Report:
        attacked = {n: r for n, r in self.rows.items() if n != "clean"}
        if not attacked:
            if "clean" not in self.rows:
                raise KeyboardInterrupt
            attacked = {"clean": self.rows["clean"]}
        name = min(attacked, key=lambda n: attacked[n].mean)
        for flag in comparison_flags(self.rows, self.certificates, self.epsilon, self.norm):
            self._flag(flag.name, flag.text)
        self._save()
        notes = [f"worst attack: {name}", *(f"flag: {f}" for f in self.flags)]
        if interrupted:
            notes.append("interrupted")
        worst = replace(
            attacked[name], metric="suite", epsilon=self.epsilon, norm=self.norm, note="; ".join(notes)
        )
        return Report([*self.rows.values()], worst, name, self.flags, self.skipped, interrupted)

    # ---------------------------------------------------------------------------------------- state

    @property
    def folder(self) -> Path:
        """This suite's own folder; adversaries are shared by all suites of `out`."""
        identity = json.dumps(self._identity(), sort_keys=True).encode()
        return self.out / f"suite-{self.agent.digest[:12]}-{hashlib.sha256(identity).hexdigest()[:8]}"

    @property
    def _file(self) -> Path:
        return self.folder / "suite.json"

    def _identity(self) -> dict[str, Any]:
        return {
            "agent": self.agent.digest,
            "smoothing": str(self.agent.smoothing),
            "epsilon": self.epsilon,
            "norm": self.norm,
            "protocol": self.protocol.name,
            "scale": self.scale.name,
            "episodes": {k: v for k, v in asdict(self.episodes).items() if k != "lanes"},
            "overrides": asdict(self.overrides),
        }

    def _save(self) -> None:
        data = {
            "format": "smoothrl-suite",
            "version": 1,
            "of": self._identity(),
            "rows": {n: row.data() | {"returns": row.returns} for n, row in self.rows.items()},
            "flags": [asdict(f) for f in self.flags],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, (json.dumps(data, indent=1) + "\n").encode())

    def _load(self) -> None:
        """Take over what an earlier, interrupted run of the same suite has finished."""
        if not self._file.is_file():
            return
        try:
            data = json.loads(self._file.read_text(encoding="utf-8"))
            theirs, rows, flags = data["of"], data["rows"], data["flags"]
            mine = {n: row_from({k: v for k, v in row.items() if v is not None}) for n, row in rows.items()}
            seen = [Flag(f["name"], f["text"]) for f in flags]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{self._file}: not a suite's state ({error}); choose another --out") from error
        if theirs != json.loads(json.dumps(self._identity())):
            raise UserError(f"{self._file}: the state of another suite; choose another --out")
        self.rows, self.flags = mine, seen


# ------------------------------------------------------------------------------------- sanity flags


def agent_flags(agent: Agent) -> list[Flag]:
    """The agent itself: a network in train mode is another function at each call."""
    flags = []
    training = [n or type(m).__name__ for n, m in agent.network.named_modules() if m.training]
    if training:
        flags.append(Flag("train mode", f"the agent's network is in train mode ({training[0]}); call eval()"))
    mixing = networks.batch_dependent(agent.network)
    if mixing:
        flags.append(
            Flag(
                "batch statistics",
                f"layer {mixing[0]} mixes the batch: attack and agent differentiate two functions",
            )
        )
    return flags


def attack_flags(attacked: Attacked, epsilon: float) -> list[Flag]:
    """One attack: its gradients and its budget."""
    flags, health, name = [], attacked.health, attacked.name
    if health.rows and health.zero > ZERO_SHARE * health.rows:
        share = 100.0 * health.zero / health.rows
        text = (
            f"{share:.0f} % of the gradients of {name} are exactly zero: they are masked, the attack is blind"
        )
        flags.append(Flag(f"{name} zero gradients", text))
    if health.broken:
        text = f"{health.broken} of {health.rows} gradients of {name} are not finite"
        flags.append(Flag(f"{name} broken gradients", text))
    if attacked.excess > 0.0:
        text = f"a perturbation of {name} lies {attacked.excess:.2g} outside the budget {epsilon:g}"
        flags.append(Flag(f"{name} outside the budget", text))
    return flags


def comparison_flags(
    rows: Mapping[str, ResultRow], certificates: Sequence[Certificate], epsilon: float, norm: str
) -> list[Flag]:
    """All attacks beside each other and beside what is certified."""
    flags = []
    attacked = {n: r for n, r in rows.items() if n != "clean"}
    gradient = {n: r for n, r in attacked.items() if n not in ("random", "fgsm") and not ENTRIES[n].fitted}
    if "random" in attacked and gradient:
        best = min(gradient, key=lambda n: gradient[n].mean)
        control = attacked["random"]
        hurts = "clean" in rows and rows["clean"].mean - control.mean > _error(control) + _error(
            rows["clean"]
        )
        if hurts and control.mean <= gradient[best].mean:
            text = f"random noise ({control.mean:.4g}) is as strong as {best} ({gradient[best].mean:.4g})"
            flags.append(
                Flag(
                    "random as strong",
                    text + ": its gradients tell nothing; try more steps, draws or restarts",
                )
            )
    for claim in certificates:
        if claim.norm != norm or epsilon > claim.epsilon:
            continue
        for name, row in attacked.items():
            returns = np.array(row.returns)
            found = float(np.median(returns)) if claim.statistic == "median" else row.mean
            if found + _error(row) < claim.bound:
                text = f"{name}: {claim.statistic} return {found:.4g}, certified at least {claim.bound:.4g}"
                flags.append(Flag("certificate broken", text + ": one of the two is wrong"))
    return flags


def _error(row: ResultRow) -> float:
    """Half the width of the row's interval."""
    if row.low is None or row.high is None:
        return 0.0
    return (row.high - row.low) / 2.0


def draws_flag(usual: Any, more: Any, name: str, draws: int) -> Flag | None:
    """More EOT draws lower the return of the same episodes beyond chance (paired, two standard errors)."""
    difference = np.asarray(usual) - np.asarray(more)
    if difference.size < 3:
        return None
    error = float(difference.std(ddof=1) / np.sqrt(difference.size))
    gain = float(difference.mean())
    if gain > 2.0 * error and gain > 0.02 * max(abs(float(np.mean(usual))), 1e-12):
        text = f"{name} with {draws} noise draws lowers the return by another {gain:.4g}; raise --draws"
        return Flag("more draws", text)
    return None
