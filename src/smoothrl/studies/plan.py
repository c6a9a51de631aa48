"""From a study to its graph of jobs: train a pool, select the median agent, fit attacks, evaluate, certify.

A job is named by the hash of everything its result depends on (its parameters and the names of the jobs it
needs), so the same work asked for by two entries, two runs or two studies in one folder is done once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smoothrl.studies.declare import METRICS, Entry, Evaluation, Metric, Study

KEY_VERSION = 1


@dataclass(frozen=True)
class JobSpec:
    """One piece of work."""

    kind: str
    """A name in `jobs.JOBS`, or `module:function`."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """JSON data that the result depends on."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Role -> key of the job that plays it."""
    label: str = ""
    """For people; no part of the key."""
    cost: float = 1.0
    """Rough seconds, for the estimate of the time left; no part of the key."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """What the rows are labelled with; no part of the key."""

    @property
    def key(self) -> str:
        content = [KEY_VERSION, self.kind, dict(self.params), dict(self.needs)]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return f"{self.kind.rpartition(':')[2]}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"

    def data(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "params": dict(self.params),
            "needs": dict(self.needs),
            "label": self.label,
            "cost": self.cost,
            "tags": dict(self.tags),
        }


def job_from(data: Mapping[str, Any]) -> JobSpec:
    return JobSpec(
        data["kind"], data["params"], data["needs"], data["label"], data["cost"], data.get("tags", {})
    )


class Plan:
    """Jobs in an order in which every need comes before who needs it."""

    def __init__(self, jobs: Iterable[JobSpec] = ()) -> None:
        self.jobs: dict[str, JobSpec] = {}
        self.rows: dict[tuple[str, str], dict[str, str]] = {}
        """(key, name of the agent) -> labels of the rows that job gives to the table."""
        for job in jobs:
            self.add(job)

    def add(self, job: JobSpec) -> str:
        key = job.key
        missing = [need for need in job.needs.values() if need not in self.jobs]
        if missing:
            raise ValueError(f"job {job.label!r} needs {missing[0]!r}, which is not planned before it")
        self.jobs.setdefault(key, job)
        if job.tags:
            self.rows.setdefault((key, job.tags.get("agent", "")), dict(job.tags))
        return key

    def __len__(self) -> int:
        return len(self.jobs)


def plan(study: Study) -> Plan:
    """The graph of jobs of a study."""
    graph = Plan()
    for entry in study.methods:
        for environment in entry.environments or study.environments:
            _Grower(study, entry, environment, graph).grow()
    return graph


@dataclass
class _Grower:
    """Adds the jobs of one method in one environment."""

    study: Study
    entry: Entry
    environment: str
    graph: Plan

    def grow(self) -> None:
        pool = self.pool()
        scored = {
            metric: [
                self.measure(self.selector(metric), pool, member, "agents", self.selection_entry())
                for member in self.members()
            ]
            for metric in self.study.select
            if self.selects(metric)
        }
        chosen = self.select(pool, scored)
        if self.study.films:
            self.film(pool, chosen)
        for evaluation in self.evaluations():
            if evaluation.on == "selected" and chosen is not None:
                self.measure(evaluation, chosen, None, "agent", self.entry)
            else:
                for member in self.members()[: None if evaluation.on == "pool" else 1]:
                    self.measure(evaluation, pool, member, "agents", self.entry)

    def members(self) -> tuple[int, ...]:
        return self.study.seeds_of(self.entry)

    def evaluations(self) -> list[Evaluation]:
        return [
            e
            for e in self.study.evaluations
            if applies(METRICS[e.metric], self.entry)
            and (not e.environments or self.environment in e.environments)
            and (not e.methods or self.entry.name in e.methods)
            and (e.agents == "all" or (e.agents == "smoothed") == self.entry.smoothed)
        ]

    def selection_entry(self) -> Entry:
        """`+rs` agents are those the method without smoothing selected."""
        return Entry(self.entry.trained, file=self.entry.file) if self.rs else self.entry

    @property
    def rs(self) -> bool:
        return self.entry.method.endswith("+rs")

    def selects(self, metric: str) -> bool:
        return len(self.members()) > 1 and applies(METRICS[metric], self.selection_entry())

    def selector(self, metric: str) -> Evaluation:
        """The evaluation of the study that the selection looks at: the largest budget of that metric."""
        found = [
            e
            for e in self.study.evaluations
            if e.metric == metric and (not e.environments or self.environment in e.environments)
        ]
        if found:
            return found[0]
        return Evaluation(metric, () if METRICS[metric].kind == "clean" else (0.075,))

    def pool(self) -> str:
        if self.entry.file:
            params = {
                "file": self.entry.file,
                "method": self.entry.trained,
                "environment": self.environment,
                "protocol": self.study.protocol,
            }
            return self.graph.add(JobSpec("import", params, {}, f"import {self.entry.file}", 2.0))
        return self.train(
            self.entry.trained,
            self.entry.base,
            self.entry.options,
            self.study.sigma_of(self.entry, self.environment),
        )

    def train(self, method: str, base: str, options: Mapping[str, Any], sigma: float | None) -> str:
        needs = {"base": self.train(base, "", self.options_of(base), None)} if base else {}
        steps = self.study.steps_of(method, self.entry.family)
        params = {
            "method": method,
            "environment": self.environment,
            "seeds": list(self.members()),
            "steps": steps,
            "sigma": sigma if method.startswith("s-") else None,
            "protocol": self.study.protocol,
            "options": {**self.study.options, **options},
        }
        cost = 60.0 + (steps or 2_000_000) * len(self.members()) / 4000.0
        label = f"train {method} on {self.environment} ({len(self.members())} seeds)"
        return self.graph.add(JobSpec("train", params, needs, label, cost))

    def options_of(self, method: str) -> Mapping[str, Any]:
        """The options that the study trains a method with: a base is the same pool as the method itself."""
        return next((e.options for e in self.study.methods if e.method == method), {})

    def select(self, pool: str, scored: Mapping[str, list[str]]) -> str | None:
        """Select among the pool; none where there is nothing to select from."""
        if not scored:
            return None
        needs = {"agents": pool}
        for metric, keys in scored.items():
            needs |= {f"{metric}:{seed}": key for seed, key in zip(self.members(), keys, strict=True)}
        params = {"metrics": list(scored), "seeds": list(self.members())}
        label = f"select {self.entry.trained} on {self.environment}"
        return self.graph.add(JobSpec("select", params, needs, label, 0.2))

    def acting(self, entry: Entry) -> dict[str, Any]:
        """How the agent acts at test time."""
        sigma = self.study.sigma_of(entry, self.environment)
        if sigma is None:
            return {"smoothing": "none", "sigma": None}
        return {"smoothing": entry.decides, "sigma": sigma}

    def measure(self, e: Evaluation, agents: str, member: int | None, role: str, entry: Entry) -> str:
        """Add the evaluation (and what must be fitted for it) of one agent; returns its key."""
        metric, study = METRICS[e.metric], self.study
        acting = self.acting(entry)
        samples = (e.samples or entry.samples or study.samples) if acting["sigma"] is not None else None
        bound = e.metric == "reward_lower_bound"
        episodes = e.episodes or (study.bound_episodes if bound else study.episodes)
        params: dict[str, Any] = {
            "metric": e.metric,
            "agent_seed": member,
            "epsilon": list(e.epsilon),
            "norm": e.norm or (metric.norm if e.epsilon else ""),
            **acting,
            "samples": samples,
            "episodes": episodes,
            "seed": 0,
            "protocol": study.protocol,
            "options": dict(e.options),
        }
        if metric.kind == "certify":
            params["alpha"] = study.alpha
        if metric.kind == "suite":
            params["scale"] = study.fit
        who = f"{entry.name} on {self.environment}" + ("" if member is None else f", seed {member}")
        needs = {role: agents}
        if metric.fitted:
            needs["attack"] = self.fit(e, agents, member, role, acting, who)
        kind = "certify" if metric.kind == "certify" else "evaluate"
        shown = any(entry.name == other.name for other in study.methods)
        tags = {"agent": entry.name, "environment": self.environment, "scale": study.scale} if shown else {}
        return self.graph.add(
            JobSpec(kind, params, needs, f"{e.metric} of {who}", self.cost(metric, episodes, e), tags)
        )

    def film(self, pool: str, chosen: str | None) -> None:
        """A short film of the agent that stands for the method."""
        attacks = [
            e
            for e in self.evaluations()
            if METRICS[e.metric].kind == "attack" and not METRICS[e.metric].fitted
        ]
        named = [e for e in attacks if e.metric not in ("random", "fgsm")] or attacks
        budget = max((max(e.epsilon) for e in named), default=0.0)
        acting = self.acting(self.entry)
        params = {
            "attack": named[-1].metric if named else "",
            "agent_seed": None if chosen else self.members()[0],
            "budget": budget,
            "norm": (named[-1].norm or METRICS[named[-1].metric].norm) if named else "",
            **acting,
            "samples": (self.entry.samples or self.study.samples) if acting["sigma"] is not None else None,
            "seed": 0,
            "protocol": self.study.protocol,
        }
        needs = {"agent": chosen} if chosen else {"agents": pool}
        tags = {"agent": self.entry.name, "environment": self.environment, "scale": self.study.scale}
        label = f"film of {self.entry.name} on {self.environment}"
        self.graph.add(JobSpec("film", params, needs, label, 5.0, tags))

    def cost(self, metric: Metric, episodes: int, e: Evaluation) -> float:
        a_step = 4.0 if self.entry.family == "dqn" else 0.25
        if metric.kind == "certify" and e.metric == "reward_lower_bound":
            a_step = 0.05
        return 1.0 + a_step * episodes * max(1, len(e.epsilon) if metric.kind == "attack" else 1)

    def fit(
        self, e: Evaluation, agents: str, member: int | None, role: str, acting: Mapping[str, Any], who: str
    ) -> str:
        params = {
            "attack": e.metric,
            "agent_seed": member,
            "epsilon": list(e.epsilon),
            "norm": e.norm or METRICS[e.metric].norm,
            **acting,
            "samples": self.study.samples if acting["sigma"] is not None else None,
            "scale": self.study.fit,
            "episodes": e.episodes or self.study.episodes,
            "protocol": self.study.protocol,
            "seed": 0,
            "options": dict(e.options),
        }
        cost = {"tiny": 5.0, "quick": 90.0, "full": 900.0, "paper": 4000.0}[self.study.fit]
        return self.graph.add(JobSpec("fit", params, {role: agents}, f"fit {e.metric} against {who}", cost))


def applies(metric: Metric, entry: Entry) -> bool:
    """Whether the metric exists for this kind of agent."""
    return entry.family in metric.families and (entry.smoothed or not metric.smoothed)
