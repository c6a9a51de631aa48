"""The tidy results table: one row a number, the same columns everywhere, the paper's numbers joined on it.

`environment, agent, metric, epsilon, sigma, samples, mean, std` are the columns of the paper's own table;
the rest says how the number was made. Episode returns live beside the rows (`returns`): in JSON within the
row, with a CSV in a neighbour file `<name>.returns.csv`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from smoothrl.errors import UserError, near
from smoothrl.storage import write_atomically

FORMAT_VERSION = 1
NORMALISED = "normalised observation"
PIXELS = "image in [0, 1]"


@dataclass(frozen=True)
class ResultRow:
    """One number, and everything needed to make it again."""

    environment: str
    """Environment id, version included."""
    agent: str
    """Method name, e.g. `s-ppo+sgld`; `+rs` where smoothing was added at test time."""
    metric: str
    """clean, an attack's name, worst, certified_radius, adiv, reward_lower_bound, seconds_per_step ..."""
    mean: float
    """The value: a mean over episodes, or the bound."""
    epsilon: float | None = None
    """Budget of the perturbation, in `units`."""
    sigma: float | None = None
    """Standard deviation of the smoothing noise, in `units`; none without smoothing."""
    samples: int | None = None
    """Noise samples of one decision."""
    std: float | None = None
    """Standard deviation over episodes (divisor n - 1)."""
    low: float | None = None
    """Lower end of the interval, or the confidence bound."""
    high: float | None = None
    """Upper end of the interval."""
    level: float | None = None
    """Coverage of the interval."""
    norm: str = ""
    """linf or l2, where there is a budget."""
    seed: int | None = None
    """Seed of the episodes."""
    agent_seed: int | None = None
    """Seed the agent was trained with."""
    episodes: int | None = None
    """Episodes behind the number."""
    protocol: str = ""
    """sound or paper."""
    smoothing: str = ""
    """none, mean, vote or median."""
    agent_hash: str = ""
    """Digest of the agent."""
    units: str = NORMALISED
    """Where epsilon and sigma live: normalised observation, or image in [0, 1]."""
    wall_time: float | None = None
    """Seconds it took."""
    steps: int | None = None
    """Environment steps the agent was trained for."""
    note: str = ""
    """Scale of the study, sanity flags, the claim of a certificate; in words."""
    command: str = ""
    """The command that makes this number again."""
    returns: tuple[float, ...] = field(default=(), repr=False)
    """Returns of the episodes; kept beside the table."""

    def data(self) -> dict[str, Any]:
        """Plain data in column order, without the episode returns."""
        return {name: getattr(self, name) for name in COLUMNS}


_TYPES: dict[str, type] = {
    **dict.fromkeys(("mean", "epsilon", "sigma", "std", "low", "high", "level", "wall_time"), float),
    **dict.fromkeys(("samples", "seed", "agent_seed", "episodes", "steps"), int),
}
_FIRST = ("environment", "agent", "metric", "epsilon", "sigma", "samples", "mean", "std")
COLUMNS: tuple[str, ...] = _FIRST + tuple(
    f.name for f in fields(ResultRow) if f.name not in _FIRST and f.name != "returns"
)


def row_from(data: Mapping[str, Any], where: str = "result row") -> ResultRow:
    """A row from text or JSON values; unknown columns and impossible values are refused."""
    known = {*COLUMNS, "returns"}
    odd = sorted(set(data) - known)
    if odd:
        close = near(str(odd[0]), known, 1)
        raise UserError(
            f"{where}: unknown column {odd[0]!r}" + (f"; did you mean {close[0]!r}?" if close else "")
        )
    missing = [name for name in ("environment", "agent", "metric", "mean") if data.get(name) in (None, "")]
    if missing:
        raise UserError(f"{where}: column {missing[0]!r} is empty; every row needs it")
    values = {name: _value(name, value, where) for name, value in data.items()}
    return ResultRow(**{k: v for k, v in values.items() if v is not None})


def _value(name: str, value: Any, where: str) -> Any:
    kind = _TYPES.get(name)
    try:
        if name == "returns":
            return tuple(float(v) for v in value)
        if kind is None:
            return "" if value is None else str(value)
        if value is None or value == "":
            return None
        number = float(value)
        return int(number) if kind is int and number == int(number) else kind(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where}: {name} = {value!r} is not a number") from error


def csv_text(rows: Iterable[ResultRow]) -> str:
    """The table as CSV, without the episode returns."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: _text(v) for k, v in row.data().items()})
    return stream.getvalue()


def _text(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def json_rows(rows: Iterable[ResultRow]) -> list[dict[str, Any]]:
    """The rows as JSON data, episode returns included; numbers that are not finite become null."""
    return [
        {k: _finite(v) for k, v in row.data().items() if v not in (None, "")}
        | ({"returns": [_finite(v) for v in row.returns]} if row.returns else {})
        for row in rows
    ]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_rows(rows: Sequence[ResultRow], path: str | Path) -> Path:
    """Write .csv (returns in a neighbour file) or .json, atomically."""
    target = Path(path)
    if target.suffix == ".csv":
        write_atomically(target, csv_text(rows).encode())
        returns = [(i, e, r) for i, row in enumerate(rows) for e, r in enumerate(row.returns)]
        beside = returns_path(target)
        if returns:
            lines = ["row,episode,return", *(f"{i},{e},{r!r}" for i, e, r in returns)]
            write_atomically(beside, ("\n".join(lines) + "\n").encode())
        else:
            beside.unlink(missing_ok=True)
    elif target.suffix == ".json":
        content = {"format": "smoothrl-results", "version": FORMAT_VERSION, "rows": json_rows(rows)}
        write_atomically(target, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    else:
        raise UserError(f"{target}: results are written as .csv or .json")
    return target


def returns_path(path: Path) -> Path:
    """Where the episode returns of a CSV table live."""
    return path.with_name(path.stem + ".returns.csv")


def read_rows(path: str | Path) -> list[ResultRow]:
    """Read a results file; every way it can be wrong gives one sentence."""
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{source}: no such results file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{source}: not a readable results file ({error})") from error
    if source.suffix == ".csv":
        return _rows_of_csv(source, text)
    return _rows_of_json(source, text)


def _rows_of_csv(source: Path, text: str) -> list[ResultRow]:
    reader = csv.DictReader(io.StringIO(text))
    if not reader.fieldnames or "metric" not in reader.fieldnames:
        raise UserError(f"{source}: no header with the columns of a results table")
    returns: dict[int, list[float]] = {}
    beside = returns_path(source)
    if beside.is_file():
        for line in csv.DictReader(io.StringIO(beside.read_text(encoding="utf-8"))):
            returns.setdefault(int(line["row"]), []).append(float(line["return"]))
    rows = []
    for number, line in enumerate(reader):
        where = f"{source}, line {number + 2}"
        if None in line or None in line.values():
            raise UserError(f"{where}: not as many values as columns; the file is damaged")
        rows.append(row_from({**line, **({"returns": returns[number]} if number in returns else {})}, where))
    return rows


def _rows_of_json(source: Path, text: str) -> list[ResultRow]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UserError(f"{source}: not JSON ({error}); take a fresh copy") from error
    if isinstance(data, dict):
        version = data.get("version")
        if data.get("format") != "smoothrl-results" or not isinstance(version, int):
            raise UserError(f"{source}: JSON, but not a smoothrl results file")
        if version > FORMAT_VERSION:
            raise UserError(
                f"{source}: results of a newer smoothrl (format {version}, this one reads up to "
                f"{FORMAT_VERSION}); `pip install -U smoothrl`"
            )
        data = data.get("rows")
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise UserError(f"{source}: holds no list of result rows")
    return [row_from(item, f"{source}, row {i + 1}") for i, item in enumerate(data)]


@dataclass(frozen=True)
class PaperRow:
    """One number of the paper's tables."""

    table: str
    environment: str
    agent: str
    group: str
    """ours, robust_baseline or previous_smoothed."""
    metric: str
    epsilon: float | None
    sigma: float | None
    samples: int | None
    mean: float
    std: float | None


@lru_cache(maxsize=1)
def paper_rows() -> tuple[PaperRow, ...]:
    """Every number of the paper's tables."""
    text = files("smoothrl.studies").joinpath("paper_results.csv").read_text(encoding="utf-8")
    out = []
    for line in csv.DictReader(io.StringIO(text)):
        numbers = {k: float(line[k]) if line[k] else None for k in ("epsilon", "sigma", "std")}
        out.append(
            PaperRow(
                line["table"],
                line["environment"],
                line["agent"],
                line["group"],
                line["metric"],
                numbers["epsilon"],
                numbers["sigma"],
                int(line["samples"]) if line["samples"] else None,
                float(line["mean"]),
                numbers["std"],
            )
        )
    return tuple(out)


_PAPER_AGENTS = {
    "ppo": "VanillaPPO",
    "ppo+sgld": "SGLDPPO",
    "ppo+radial": "RadialPPO",
    "ppo+wocar": "WocaRPPO",
    "ppo+atla": "ATLAPPO",
    "ppo+pa-atla": "PA-ATLAPPO",
    "dqn": "VanillaDQN",
    "dqn+sa": "SADQN",
    "dqn+radial": "RadialDQN",
    "dqn+wocar": "WocaRDQN",
}
PAPER_AGENTS: dict[str, str] = {
    **_PAPER_AGENTS,
    **{f"{name}+rs": f"{paper}+RS" for name, paper in _PAPER_AGENTS.items()},
    "s-ppo": "S-PPO (Vanilla)",
    "s-ppo+sgld": "S-PPO (SGLD)",
    "s-ppo+radial": "S-PPO (Radial)",
    "s-ppo+wocar": "S-PPO (WocaR)",
    "s-ppo+atla": "S-PPO (S-ATLA)",
    "s-ppo+pa-atla": "S-PPO (S-PA-ATLA)",
    "s-dqn": "S-DQN (Vanilla)",
    "s-dqn+sa": "S-DQN (SADQN)",
    "s-dqn+radial": "S-DQN (Radial)",
    "s-dqn+wocar": "S-DQN (WocaR)",
    "s-dqn+s-pgd": "S-DQN (S-PGD)",
    "s-dqn+no-denoiser": "S-DQN (Vanilla) w/o Denoiser",
}
"""Our method names and the paper's."""
_OUR_AGENTS = {paper: ours for ours, paper in PAPER_AGENTS.items()}
_PAPER_ENVIRONMENTS = {
    "Hopper": "Hopper",
    "Walker2d": "Walker",
    "Humanoid": "Humanoid",
    "Ant": "Ant",
    "HalfCheetah": "Halfcheetah",
    "ALE/Pong": "Pong",
    "ALE/Freeway": "Freeway",
    "ALE/RoadRunner": "RoadRunner",
}


def paper_agent(agent: str) -> str | None:
    """The paper's name of one of our methods, `s-ppo+sgld` or `s-ppo+sgld @0.1` -> `S-PPO (SGLD)`."""
    return PAPER_AGENTS.get(agent.lower().partition(" @")[0])


def our_agent(paper: str) -> str | None:
    """Our name of one of the paper's agents."""
    return _OUR_AGENTS.get(paper)


def paper_environment(environment: str) -> tuple[str, bool] | None:
    """The paper's environment, and whether ours is the same one (MuJoCo: physics `-v2` only)."""
    base, _, version = environment.rpartition("-v")
    base = base or environment
    name = _PAPER_ENVIRONMENTS.get(base)
    if name is None and "NoFrameskip" in base:
        name = _PAPER_ENVIRONMENTS.get("ALE/" + base.replace("NoFrameskip", ""))
    if name is None:
        return None
    return name, base.startswith("ALE/") or "NoFrameskip" in base or version == "2"


_DETAILED = (
    "ppo_reward",
    "dqn_reward",
    "ppo_reward_lower_bound",
    "dqn_reward_lower_bound",
    "certified_radius",
    "adiv",
)


def paper_value(row: ResultRow, table: str | None = None) -> PaperRow | None:
    """The published number this row answers, the detailed tables first; none where there is none."""
    where, agent = paper_environment(row.environment), paper_agent(row.agent)
    if where is None or agent is None:
        return None
    found = [
        p
        for p in _by_key().get((where[0], agent, row.metric), ())
        if (table is None or p.table == table)
        and _same(p.epsilon, row.epsilon)
        and (p.sigma is None or row.sigma is None or _same(p.sigma, row.sigma))
        and (p.samples is None or row.samples is None or p.samples == row.samples)
    ]
    found.sort(key=lambda p: (p.table not in _DETAILED, p.samples != row.samples))
    return found[0] if found else None


@lru_cache(maxsize=1)
def _by_key() -> dict[tuple[str, str, str], tuple[PaperRow, ...]]:
    grouped: dict[tuple[str, str, str], list[PaperRow]] = {}
    for row in paper_rows():
        grouped.setdefault((row.environment, row.agent, row.metric), []).append(row)
    return {key: tuple(rows) for key, rows in grouped.items()}


def _same(a: float | None, b: float | None) -> bool:
    return (not a and not b) or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9))
