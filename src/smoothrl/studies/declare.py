"""A study is data: methods x environments x seeds x evaluations, and the scale it is run at."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from smoothrl.errors import UserError, near, unknown
from smoothrl.learners import methods as grammar
from smoothrl.protocols import protocol as named_protocol

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
Family = Literal["ppo", "dqn"]
ANY = "*"


@dataclass(frozen=True)
class Metric:
    """What can be measured of an agent."""

    name: str
    kind: Literal["clean", "attack", "suite", "certify", "time"]
    families: tuple[Family, ...] = ("ppo", "dqn")
    """Agents it applies to."""
    fitted: bool = False
    """Whether something must be trained against the agent first."""
    smoothed: bool = False
    """Whether it exists for smoothed agents only."""
    norm: str = "linf"
    """Norm of its budget where nothing else is said."""


_PPO: tuple[Family, ...] = ("ppo",)
_DQN: tuple[Family, ...] = ("dqn",)
METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("clean", "clean"),
        Metric("seconds_per_step", "time"),
        Metric("random", "attack"),
        Metric("fgsm", "attack"),
        Metric("pgd", "attack", _DQN),
        Metric("s-pgd", "attack", _DQN, smoothed=True),
        Metric("targeted", "attack", _DQN),
        Metric("mad", "attack", _PPO),
        Metric("s-mad", "attack", _PPO, smoothed=True),
        Metric("min-rs", "attack", _PPO, fitted=True),
        Metric("s-min-rs", "attack", _PPO, fitted=True, smoothed=True),
        Metric("optimal", "attack", _PPO, fitted=True),
        Metric("s-optimal", "attack", _PPO, fitted=True, smoothed=True),
        Metric("pa-ad", "attack", fitted=True),
        Metric("s-pa-ad", "attack", fitted=True, smoothed=True),
        Metric("suite", "suite"),
        Metric("certified_radius", "certify", _DQN, smoothed=True, norm="l2"),
        Metric("adiv", "certify", _PPO, smoothed=True, norm="l2"),
        Metric("reward_lower_bound", "certify", smoothed=True, norm="l2"),
    )
}
"""What a study can measure. `suite` reports the worst of several attacks."""

FITS = ("tiny", "quick", "full", "paper")
SMOOTHING: dict[Family, tuple[str, ...]] = {"ppo": ("median",), "dqn": ("vote", "mean")}
"""How an agent of each family may decide under noise, the usual way first; `mean` is CROP's."""


@dataclass(frozen=True)
class Entry:
    """One method of a study, the way it is trained and tested."""

    method: str
    """Name of the method; `+rs` is smoothing added at test time to agents trained without."""
    label: str = ""
    """Name in the results; the method's where empty."""
    environments: tuple[str, ...] = ()
    """Only these; all of the study's where empty."""
    base: str = ""
    """The method whose agents an `s-dqn` puts its denoiser in front of."""
    sigma: float | None = None
    """Noise of this entry; the study's where not given."""
    samples: int | None = None
    """Noise samples at test time; the study's where not given."""
    smoothing: str = ""
    """How it decides under noise: vote or mean (CROP) for Q-agents, median for policies."""
    seeds: int | None = None
    """Agents in its pool; the study's where not given."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the training, as the command line names them (denoiser, adversarial, preset ...)."""
    file: str = ""
    """An agent trained elsewhere, in the folder given with --files, instead of a training."""

    @property
    def name(self) -> str:
        return self.label or self.method

    @property
    def trained(self) -> str:
        """The method that is trained: the name without `+rs`."""
        return self.method.removesuffix("+rs")

    @property
    def family(self) -> Family:
        return "dqn" if self.trained.removeprefix("s-").startswith("dqn") else "ppo"

    @property
    def smoothed(self) -> bool:
        return self.method.endswith("+rs") or self.method.startswith("s-")

    @property
    def decides(self) -> str:
        """none, or how it decides under noise."""
        return (self.smoothing or SMOOTHING[self.family][0]) if self.smoothed else "none"


@dataclass(frozen=True)
class Evaluation:
    """One column of the table."""

    metric: str
    """clean, an attack, suite, or a certificate; see METRICS."""
    epsilon: tuple[float, ...] = ()
    """Budgets; none for a clean evaluation."""
    norm: str = ""
    """linf or l2; the metric's own where empty."""
    on: Literal["pool", "selected"] = "pool"
    """Every agent of the pool, or the selected one."""
    agents: Literal["all", "plain", "smoothed"] = "all"
    """Only agents that act with (or without) smoothing."""
    episodes: int | None = None
    """Episodes; the study's where not given."""
    samples: int | None = None
    """Noise samples of one decision or one state; the entry's where not given."""
    environments: tuple[str, ...] = ()
    """Only these; all where empty."""
    methods: tuple[str, ...] = ()
    """Only these; all where empty."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the attack or certificate."""


@dataclass(frozen=True)
class Study:
    """A declared grid and its scale."""

    name: str
    """Name of its folder."""
    methods: tuple[Entry, ...]
    """What is compared."""
    environments: tuple[str, ...]
    """Where."""
    evaluations: tuple[Evaluation, ...]
    """What is measured."""
    title: str = ""
    """One line for people."""
    tables: tuple[str, ...] = ()
    """The paper's tables it answers."""
    seeds: int = 1
    """Agents in a pool."""
    first_seed: int = 0
    """Seeds are first_seed, first_seed + 1, ..."""
    steps: int | None = None
    """Environment steps of a training; the method's preset where not given."""
    fit: str = "quick"
    """How much is spent on fitting a learned attack: tiny, quick, full or paper."""
    episodes: int = 50
    """Episodes of an evaluation."""
    bound_episodes: int = 1000
    """One-draw episodes of a return bound."""
    sigma: Mapping[str, float] = field(default_factory=lambda: {ANY: 0.2})
    """Noise by environment; `*` stands for the others."""
    samples: int = 100
    """Noise samples of one decision at test time."""
    alpha: float = 0.05
    """Failure probability of a certificate."""
    protocol: str = "sound"
    """How agents are trained and measured: sound or paper."""
    select: tuple[str, ...] = ()
    """Metrics the median agent is selected by; the pool's first agent where empty."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of every training (preset, denoiser ...); an entry's own come first."""
    family_steps: Mapping[str, int] = field(default_factory=dict)
    """Steps for one family (ppo, dqn) or one method, where they differ from `steps`."""
    films: bool = True
    """Whether short films of the agents, clean and under attack, are made for the report."""

    def sigma_of(self, entry: Entry, environment: str) -> float | None:
        if not entry.smoothed:
            return None
        if entry.sigma is not None:
            return entry.sigma
        return self.sigma.get(environment, self.sigma.get(ANY))

    def seeds_of(self, entry: Entry) -> tuple[int, ...]:
        count = 1 if entry.file else self.seeds if entry.seeds is None else entry.seeds
        return tuple(range(self.first_seed, self.first_seed + count))

    def steps_of(self, method: str, family: str) -> int | None:
        return self.family_steps.get(method, self.family_steps.get(family, self.steps))

    @property
    def scale(self) -> str:
        """The knob's position, as every row of the results carries it."""
        steps = "preset steps" if self.steps is None else f"{self.steps} steps"
        own = "".join(f" ({k}: {v})" for k, v in sorted(self.family_steps.items()))
        return f"{steps}{own}, {self.seeds} seeds, {self.episodes} episodes, {self.fit} fits"


def scaled(
    study: Study,
    *,
    steps: int | None = None,
    seeds: int | None = None,
    episodes: int | None = None,
    bound_episodes: int | None = None,
    fit: str | None = None,
    samples: int | None = None,
    protocol: str | None = None,
) -> Study:
    """The study with its knob turned."""
    numbers = {
        "seeds": seeds,
        "episodes": episodes,
        "bound_episodes": bound_episodes,
        "samples": samples,
    }
    for name, value in {**numbers, "steps": steps}.items():
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: at least 1 is needed")
    changes: dict[str, Any] = {k: v for k, v in numbers.items() if v is not None}
    if steps is not None:
        changes |= {"steps": steps, "family_steps": {}}
    if fit is not None:
        changes["fit"] = fit
    if protocol is not None:
        changes["protocol"] = protocol
    if episodes is not None:
        changes["evaluations"] = tuple(replace(e, episodes=None) for e in study.evaluations)
    if seeds is not None:
        changes["methods"] = tuple(replace(e, seeds=None) for e in study.methods)
    return checked(replace(study, **changes)) if changes else study


def restricted(study: Study, only: Iterable[str]) -> Study:
    """The part of a study named by methods, environments or metrics."""
    wanted = [token for token in only if token]
    if not wanted:
        return study
    names = {e.name for e in study.methods}
    metrics = {e.metric for e in study.evaluations}
    places = set(_all_environments(study))
    for token in wanted:
        if token not in names | metrics | places:
            raise unknown(
                "part of the study (method, environment or metric)", token, names | metrics | places
            )
    chosen = {
        "methods": [t for t in wanted if t in names],
        "environments": [t for t in wanted if t in places],
        "metrics": [t for t in wanted if t in metrics],
    }
    changes: dict[str, Any] = {}
    if chosen["methods"]:
        changes["methods"] = tuple(e for e in study.methods if e.name in chosen["methods"])
    if chosen["environments"]:
        changes["environments"] = tuple(e for e in study.environments if e in chosen["environments"])
        kept = changes.get("methods", study.methods)
        changes["methods"] = tuple(
            replace(e, environments=tuple(v for v in e.environments if v in chosen["environments"]))
            for e in kept
            if not e.environments or set(e.environments) & set(chosen["environments"])
        )
    if chosen["metrics"]:
        changes["evaluations"] = tuple(e for e in study.evaluations if e.metric in chosen["metrics"])
    return replace(study, **changes)


def _all_environments(study: Study) -> list[str]:
    return list(dict.fromkeys([*study.environments, *(v for e in study.methods for v in e.environments)]))


def checked(study: Study) -> Study:
    """The study itself, or the reason why it cannot be run."""
    if not study.name or not study.methods or not study.evaluations or not _all_environments(study):
        raise UserError(
            f"study {study.name or 'without a name'!r}: a study needs a name, methods, environments and "
            "evaluations"
        )
    for token in ("/", "\\", "\0"):
        if token in study.name or study.name.startswith("."):
            raise UserError(f"study name {study.name!r}: it names a folder, so no slashes and no leading dot")
    named_protocol(study.protocol)
    if study.fit not in FITS:
        raise unknown("scale of fitting", study.fit, FITS)
    if not 0.0 < study.alpha < 1.0:
        raise UserError(f"study {study.name!r}: alpha {study.alpha} must lie between 0 and 1")
    if min(study.seeds, study.episodes, study.bound_episodes, study.samples) < 1:
        raise UserError(f"study {study.name!r}: seeds, episodes, bound_episodes and samples start at 1")
    doubled = sorted({e.name for e in study.methods if sum(o.name == e.name for o in study.methods) > 1})
    if doubled:
        raise UserError(
            f"study {study.name!r}: {doubled[0]!r} stands twice; give one of the two another label"
        )
    for entry in study.methods:
        _check_entry(study, entry)
    for evaluation in study.evaluations:
        _check_evaluation(study, evaluation)
    for metric in study.select:
        if metric not in METRICS:
            raise unknown("metric to select by", metric, METRICS)
    return study


def _check_entry(study: Study, entry: Entry) -> None:
    if not entry.file:
        _trainable(entry.trained)
        if entry.base:
            _trainable(entry.base)
    if entry.smoothing and not entry.smoothed:
        raise UserError(
            f"study {study.name!r}: {entry.name} acts without noise, so smoothing = {entry.smoothing!r} says "
            f"nothing; did you mean {entry.method + '+rs'!r}?"
        )
    if entry.smoothed and entry.decides not in SMOOTHING[entry.family]:
        raise unknown(f"smoothing of {entry.name}", entry.smoothing, SMOOTHING[entry.family])
    for environment in entry.environments or study.environments:
        sigma = study.sigma_of(entry, environment)
        if entry.smoothed and (sigma is None or not 0.0 < sigma < float("inf")):
            raise UserError(
                f"study {study.name!r}: {entry.name} on {environment} acts with noise, so it needs a sigma "
                f"above 0 (got {sigma})"
            )


def _trainable(method: str) -> None:
    """Refuse names outside the grammar; `s-dqn+x` is a denoiser in front of a `dqn+x` agent."""
    if method in ("s-dqn+s-pgd", "s-dqn+no-denoiser"):
        return
    grammar.parse(method)


def _check_evaluation(study: Study, evaluation: Evaluation) -> None:
    if evaluation.metric not in METRICS:
        raise unknown("metric", evaluation.metric, METRICS)
    kind = METRICS[evaluation.metric].kind
    names = {e.name for e in study.methods}
    for name in evaluation.methods:
        if name not in names:
            raise unknown(f"method of study {study.name!r}", name, names)
    if evaluation.norm not in ("", "linf", "l2"):
        raise unknown("norm", evaluation.norm, ("linf", "l2"))
    if kind in ("attack", "suite") and not evaluation.epsilon:
        raise UserError(f"study {study.name!r}: {evaluation.metric} needs an epsilon")
    for epsilon in evaluation.epsilon:
        if not 0.0 <= epsilon < float("inf"):
            raise UserError(f"study {study.name!r}: epsilon {epsilon} of {evaluation.metric} is impossible")
    if evaluation.on not in ("pool", "selected"):
        raise unknown("choice of `on`", evaluation.on, ("pool", "selected"))
    if evaluation.agents not in ("all", "plain", "smoothed"):
        raise unknown("choice of `agents`", evaluation.agents, ("all", "plain", "smoothed"))


def read_study(path: str | Path) -> Study:
    """A study from a TOML file."""
    source = Path(path)
    try:
        data = tomllib.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{source}: no such study file; `smoothrl list studies` shows the ready ones"
        ) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{source}: not a readable TOML file ({error})") from error
    return study_from(data, str(source), default_name=source.stem)


def study_from(data: Mapping[str, Any], where: str = "study", default_name: str = "") -> Study:
    """A study from plain data; unknown keys are refused with the nearest known one."""
    plain = dict(data)
    plain.setdefault("name", default_name)
    if isinstance(plain.get("sigma"), int | float):
        plain["sigma"] = {ANY: float(plain["sigma"])}
    plain["methods"] = [
        {"method": item} if isinstance(item, str) else item for item in _list(plain, "methods", where)
    ]
    plain["evaluations"] = [
        {"metric": item} if isinstance(item, str) else item for item in _list(plain, "evaluations", where)
    ]
    plain["methods"] = tuple(_record(Entry, item, f"{where}, methods") for item in plain["methods"])
    plain["evaluations"] = tuple(
        _record(Evaluation, item, f"{where}, evaluations") for item in plain["evaluations"]
    )
    return checked(_record(Study, plain, where))


def _list(plain: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = plain.get(key)
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"{where}: {key!r} must be a list with at least one entry")
    return list(value)


_TUPLES = ("epsilon", "environments", "tables", "select", "methods", "evaluations")
_TEXTS = ("method", "metric", "label", "base", "smoothing", "norm", "protocol", "file", "fit")
_NUMBERS = ("steps", "seeds", "first_seed", "episodes", "bound_episodes", "samples")


def _record(kind: type[T], data: Any, where: str) -> T:
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: {data!r} is not a table of settings")
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            close = near(str(key), known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
            raise UserError(f"{where}: unknown key {key!r}; {hint}")
    values: dict[str, Any] = {}
    for key, value in data.items():
        values[key] = _setting(key, value, where)
    try:
        return kind(**values)
    except TypeError as error:
        raise UserError(f"{where}: incomplete ({error})") from error


def _setting(key: str, value: Any, where: str) -> Any:
    if key in _TUPLES:
        return tuple(value) if isinstance(value, list | tuple) else (value,)
    if key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | None)):
        raise UserError(f"{where}: {key} = {value!r} must be a whole number")
    if key in _TEXTS and not isinstance(value, str):
        raise UserError(f"{where}: {key} = {value!r} must be text")
    return value


def study_data(study: Study) -> dict[str, Any]:
    """Plain data that `study_from` reads back."""
    data = dataclasses.asdict(study)
    data["methods"] = [_without_defaults(Entry, item) for item in data["methods"]]
    data["evaluations"] = [_without_defaults(Evaluation, item) for item in data["evaluations"]]
    return data


def _without_defaults(kind: type, item: Mapping[str, Any]) -> dict[str, Any]:
    skip: dict[str, Any] = {}
    for f in dataclasses.fields(kind):
        if f.default is not dataclasses.MISSING:
            skip[f.name] = f.default
        elif f.default_factory is not dataclasses.MISSING:
            skip[f.name] = f.default_factory()
    return {k: v for k, v in item.items() if k not in skip or v != skip[k]}
