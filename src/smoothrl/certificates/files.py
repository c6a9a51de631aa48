"""Certificate files: a statement with everything needed to compute it again.

`make` computes the statement from parameters and recorded counts or samples; `verify` computes it once more
with the same code and compares. What each check catches:

- the digest: any edit by someone who did not recompute it (and every accident);
- the replay from recorded data: a bound, claim, budget, confidence or sample count that was improved,
  digest recomputed or not, and counts or samples altered without altering the bound to match;
- the agent hash: a certificate shown beside another agent.

A forger who alters counts, bound and digest together writes a consistent file: only sampling again from
the agent and the recorded seed (`resample`) finds that out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smoothrl.certificates.actions import action_bound, adiv
from smoothrl.certificates.claims import plain
from smoothrl.certificates.crop import crop_radius
from smoothrl.certificates.episodes import certified_curve, joint_radius
from smoothrl.certificates.radius import deployed_radius, radius
from smoothrl.certificates.returns import per_step_return_bound, return_bound
from smoothrl.errors import UserError, unknown
from smoothrl.storage import write_atomically

FORMAT, VERSION = "smoothrl-certificate", 1
INLINE = 4096
Record = dict[str, Any]


def encode(values: npt.ArrayLike) -> Any:
    """An array as JSON: a list while it is short, compressed bytes with its type and shape otherwise."""
    array = np.asarray(values)
    if array.size <= INLINE:
        return plain(array)
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode("ascii")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "zlib": packed}


def decode(data: Any) -> Any:
    """What `encode` wrote; scalars and None pass through."""
    if isinstance(data, Mapping):
        raw = zlib.decompress(base64.b64decode(data["zlib"]))
        return np.frombuffer(raw, dtype=np.dtype(data["dtype"])).reshape(data["shape"])
    return np.asarray(data) if isinstance(data, list) else data


def digest(record: Mapping[str, Any]) -> str:
    """SHA-256 over the canonical JSON of everything but the digest itself."""
    content = {key: value for key, value in record.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


# --- one replay a kind of certificate -------------------------------------------------------------


def _radius(data: Record, options: Record) -> Record:
    result = radius(data["counts"], selection_counts=data.get("selection_counts"), **options)
    return {
        "claim": result.claim.to_json(),
        "budget": {"radius": plain(result.radius)},
        "samples": int(result.samples.sum()),
        "bound": {
            "radius": plain(result.radius),
            "action": plain(result.action),
            "mean_radius": result.mean_radius,
            "fraction_certified": result.fraction_certified,
        },
    }


def _deployed_radius(data: Record, options: Record) -> Record:
    own = {name: options.pop(name) for name in ("samples", "eta")}
    ideal = radius(data["counts"], selection_counts=data.get("selection_counts"), **options)
    result = deployed_radius(ideal, **own)
    return {
        "claim": result.claim.to_json(),
        "budget": {"radius": plain(result.radius)},
        "samples": int(ideal.samples.sum()),
        "bound": {"radius": plain(result.radius), "action": plain(result.action)},
    }


def _joint(data: Record, options: Record) -> Record:
    extra = {"selection_counts": data["selection_counts"]} if "selection_counts" in data else {}
    result = joint_radius(data["counts"], **extra, **options)
    return {
        "claim": result.claim.to_json(),
        "budget": {"radius": plain(result.radius)},
        "samples": int(result.steps.samples.sum()),
        "bound": {"radius": plain(result.radius), "smallest": result.smallest},
    }


def _actions(data: Record, options: Record) -> Record:
    result = action_bound(data["samples"], **options)
    return {
        "claim": result.claim.to_json(),
        "budget": {"epsilon": result.eps},
        "samples": int(np.prod(np.shape(data["samples"])[:-1])),
        "bound": {
            "lower": plain(result.lower),
            "upper": plain(result.upper),
            "infinite_fraction": result.infinite_fraction,
        },
    }


def _adiv(data: Record, options: Record) -> Record:
    result = adiv(data["samples"], **options)
    return {
        "claim": result.claim.to_json(),
        "budget": {"epsilon": [bound.eps for bound in result.bounds]},
        "samples": int(np.prod(np.shape(data["samples"])[:-1])),
        "bound": {
            "value": plain(result.value),
            "by_budget": plain(result.rows()),
            "lower": [plain(bound.lower) for bound in result.bounds],
            "upper": [plain(bound.upper) for bound in result.bounds],
        },
    }


def _return(data: Record, options: Record) -> Record:
    result = return_bound(data["returns"], **options)
    return {
        "claim": result.claim.to_json(),
        "budget": {"total": plain(result.budget), "epsilon": plain(result.eps), "horizon": result.horizon},
        "samples": result.episodes,
        "bound": {
            "bound": plain(result.bound),
            "valid": plain(result.valid),
            "statements": list(result.claims),
        },
    }


def _per_step_return(data: Record, options: Record) -> Record:
    result = per_step_return_bound(data["rewards"], **options)
    return {
        "claim": result.claim.to_json(),
        "budget": {"epsilon": result.eps, "horizon": len(result.by_step)},
        "samples": result.episodes,
        "bound": {"bound": result.bound},
    }


def _crop(data: Record, options: Record) -> Record:
    result = crop_radius(data["q_values"], **options)
    return {
        "claim": result.claim.to_json(),
        "budget": {"radius": plain(result.radius)},
        "samples": result.samples * len(result.radius),
        "bound": {
            "radius": plain(result.radius),
            "action": plain(result.action),
            "mean_radius": result.mean_radius,
        },
    }


def _curve(data: Record, options: Record) -> Record:
    edges = np.cumsum(data["lengths"])[:-1]
    result = certified_curve(np.split(np.asarray(data["radii"]), edges), **options)
    return {
        "claim": result.claim.to_json(),
        "budget": {"radius": plain(result.grid)},
        "samples": result.episodes,
        "bound": {"curve": plain(result.curve), "lower": plain(result.lower), "upper": plain(result.upper)},
    }


KINDS: dict[str, Callable[[Record, Record], Record]] = {
    "radius": _radius,
    "deployed-radius": _deployed_radius,
    "joint-radius": _joint,
    "actions": _actions,
    "adiv": _adiv,
    "return": _return,
    "per-step-return": _per_step_return,
    "crop": _crop,
    "curve": _curve,
}


def _derive(kind: str, data: Record, parameters: Record) -> Record:
    """Everything in the file that follows from the data and the parameters."""
    if kind not in KINDS:
        raise unknown("kind of certificate", kind, KINDS)
    derived = KINDS[kind](data, dict(parameters))
    claim = derived["claim"]
    prefix = "" if claim["valid"] else "not a valid bound: "
    return plain({**derived, "statement": prefix + claim["text"], "confidence": claim["confidence"]})  # type: ignore[no-any-return]


# --- the file -------------------------------------------------------------------------------------


def make(
    kind: str,
    data: Mapping[str, npt.ArrayLike],
    parameters: Mapping[str, Any],
    *,
    agent_hash: str,
    environment: str,
    seed: int,
    details: Mapping[str, Any] | None = None,
) -> Record:
    """A certificate record of `kind` from recorded `data` and the `parameters` of its function.

    `data` holds what was drawn (counts, samples, returns ...), `parameters` the other arguments of
    `radius`, `action_bound`, `return_bound` ... ; `details` anything worth keeping (agent path, protocol).
    """
    stored = {name: encode(values) for name, values in data.items() if values is not None}
    options = plain(dict(parameters))
    derived = _derive(kind, {name: decode(values) for name, values in stored.items()}, options)
    record: Record = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        **derived,
        "agent_hash": agent_hash,
        "environment": environment,
        "seed": int(seed),
        "parameters": options,
        "data": stored,
        "details": plain(dict(details or {})),
    }
    return {**record, "digest": digest(record)}


def write(path: Path | str, record: Mapping[str, Any]) -> Path:
    """Write a certificate record; returns the path."""
    target = Path(path)
    write_atomically(target, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())
    return target


def read(path: Path | str) -> Record:
    """Read a certificate file; one sentence where it is none."""
    source = Path(path)
    try:
        record = json.loads(source.read_text())
    except FileNotFoundError:
        raise UserError(f"{source} does not exist: give the path of a certificate file.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{source} is not a certificate file (not JSON: {error}).") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise UserError(f"{source} is not a certificate file: it does not say format {FORMAT!r}.")
    if record.get("version") != VERSION:
        raise UserError(
            f"{source} has format version {record.get('version')}, this program reads {VERSION}: update it."
        )
    return record


_REQUIRED = ("kind", "statement", "claim", "budget", "confidence", "samples", "bound")
_CONTEXT = ("agent_hash", "environment", "seed", "parameters", "data", "digest")


def verify(
    file: Path | str | Mapping[str, Any],
    agent_hash: str | None = None,
    resample: Callable[[Record], Mapping[str, npt.ArrayLike]] | None = None,
    environment: str | None = None,
) -> list[str]:
    """What is wrong with a certificate file: an empty list where nothing is.

    `agent_hash` and `environment` are those of the agent it is held against; `resample(record)` draws the
    data anew from agent and seed, for the one forgery that no file can betray.
    """
    record = dict(file) if isinstance(file, Mapping) else read(file)
    missing = [name for name in (*_REQUIRED, *_CONTEXT) if name not in record]
    if missing:
        return [f"the file has no {', '.join(missing)}: it is incomplete."]
    failures = []
    if record["digest"] != digest(record):
        failures.append("content digest: the file was altered after it was written.")
    if agent_hash is not None and agent_hash != record["agent_hash"]:
        failures.append(
            f"agent: the file certifies {_short(record['agent_hash'])}, not the given {_short(agent_hash)}."
        )
    if environment is not None and environment != record["environment"]:
        failures.append(f"environment: the file says {record['environment']}, the agent plays {environment}.")
    failures += _replay_failures(record)
    if resample is not None and not failures:
        failures += _resample_failures(record, resample(record))
    return failures


def _replay_failures(record: Record) -> list[str]:
    try:
        data = {name: decode(values) for name, values in record["data"].items()}
        derived = _derive(record["kind"], data, record["parameters"])
    except (UserError, KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
        return [f"replay: the recorded data cannot give any certificate ({error})."]
    return [
        f"{name}: the file says {_short(record[name])}, its data give {_short(derived[name])}."
        for name in derived
        if not same(record.get(name), derived[name])
    ]


def _resample_failures(record: Record, fresh: Mapping[str, npt.ArrayLike]) -> list[str]:
    failures = []
    for name, stored in record["data"].items():
        if name not in fresh:
            failures.append(f"resampling: {name} was not drawn again.")
            continue
        old, new = np.asarray(decode(stored)), np.asarray(fresh[name])
        if old.shape != new.shape or not np.allclose(old, new, rtol=1e-6, atol=1e-9):
            failures.append(f"resampling: {name} drawn again from agent and seed differ from the file's.")
    return failures


def same(first: Any, second: Any, rtol: float = 1e-9) -> bool:
    """Equal JSON data, numbers to rounding (other versions of numerical libraries may differ there)."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k], rtol) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(same(a, b, rtol) for a, b in zip(first, second, strict=True))
    numeric = (int, float)
    if isinstance(first, numeric) and isinstance(second, numeric) and not isinstance(first, bool):
        return math.isclose(first, second, rel_tol=rtol, abs_tol=1e-12)
    return bool(first == second)


def _short(value: Any, limit: int = 60) -> str:
    text = json.dumps(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
