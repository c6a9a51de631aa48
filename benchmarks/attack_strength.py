"""Is each `sound` attack at least as strong as the `paper` one of its name? Writes docs/results/attacks.md.

    python benchmarks/attack_strength.py AGENT... [--attacks random,mad] [--epsilon 0.075] [--episodes 50]
        [--fit quick] [--out runs/attack-strength]

Unsmoothed agents are attacked as they are, smoothed ones with their own smoothing; the same episodes in both
protocols, so the difference is paired. Every finished row is kept in OUT/rows.json: a second call goes on.
Attacks that do not suit an agent are passed over, so one call serves Q-agents and policies;
the first line takes minutes, the second minutes a fit:

    python benchmarks/attack_strength.py AGENT... --attacks fgsm,mad,pgd --episodes 20
    python benchmarks/attack_strength.py AGENT... --attacks min-rs,pa-ad,optimal --fit quick
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from smoothrl.agents import Agent, load_agent
from smoothrl.attacks import ENTRIES, Adversary, load_adversary, make_attack
from smoothrl.learners.attack_runs import Episodes, play
from smoothrl.learners.fit_attacks import fit_attack
from smoothrl.protocols import PROTOCOLS
from smoothrl.statistics import mean_estimate, paired_difference
from smoothrl.storage import write_atomically

PAGE = Path(__file__).parent.parent / "docs" / "results" / "attacks.md"


def returns_of(
    agent: Agent, name: str, protocol: str, options: argparse.Namespace, kept: dict[str, Any], file: Path
) -> list[float]:
    epsilon = options.q_epsilon if agent.discrete else options.epsilon
    fit = options.fit if name != "clean" and ENTRIES[name].fitted else ""
    parts = (name, protocol, f"{epsilon:g}", fit, f"{options.episodes} from {options.seed}")
    key = "|".join((agent.digest[:16], str(agent.smoothing), *parts))
    if key not in kept:
        adversary: Adversary | None = None
        switches, episodes = PROTOCOLS[protocol], Episodes(options.episodes, options.seed)
        if name != "clean" and ENTRIES[name].fitted:
            folder = Path(options.out) / "adversaries"
            shared = {"folder": folder, "protocol": switches, "scale": options.fit, "test": episodes}
            adversary = load_adversary(fit_attack(agent, name, epsilon, **shared))
        made = None
        if name != "clean":
            made = make_attack(name, agent, epsilon, protocol=switches, adversary=adversary)
        kept[key] = [float(r) for r in play(agent, made, episodes).returns]
        write_atomically(file, json.dumps(kept).encode())
    return kept[key]  # type: ignore[no-any-return]


def cell(returns: list[float]) -> str:
    found = mean_estimate([returns], np.random.default_rng(0))
    return f"{found.value:.0f} [{found.low:.0f}, {found.high:.0f}]"


def row(agent: Agent, name: str, options: argparse.Namespace, kept: dict[str, Any], file: Path) -> str:
    """One line of the table."""
    clean = returns_of(agent, "clean", "sound", options, kept, file)
    paper = returns_of(agent, name, "paper", options, kept, file)
    sound = returns_of(agent, name, "sound", options, kept, file)
    gap = paired_difference({0: sound}, {0: paper}, np.random.default_rng(0), paired_episodes=True)
    verdict = "stronger" if gap.high < 0 else "weaker" if gap.low > 0 else "same within error"
    epsilon = options.q_epsilon if agent.discrete else options.epsilon
    return (
        f"| {agent.name}, {whence(agent)} | {agent.info.env_id} | {agent.smoothing} | {name}, {epsilon:g} | "
        f"{cell(clean)} | {cell(paper)} | {cell(sound)} | "
        f"{gap.value:+.0f} [{gap.low:+.0f}, {gap.high:+.0f}] | {verdict} |"
    )


def whence(agent: Agent) -> str:
    """Which of the agents of its method: the paper's, or ours with its seed."""
    return str(agent.info.notes.get("origin", f"seed {agent.info.seed}"))


def merged(old: str, lines: list[str]) -> list[str]:
    """The rows of an earlier table, those measured again replaced in their place, and the new ones."""
    rows = {key_of(line): line for line in old.splitlines()[2:] if line.startswith("|")}
    rows.update((key_of(line), line) for line in lines)
    return list(rows.values())


def key_of(line: str) -> tuple[str, ...]:
    """Agent, environment, smoothing, attack."""
    return tuple(cell.strip() for cell in line.split("|")[1:5])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("agents", nargs="+", type=Path)
    parser.add_argument("--attacks", default="fgsm,mad")
    parser.add_argument("--epsilon", type=float, default=0.075)
    parser.add_argument("--q-epsilon", type=float, default=0.05, help="for Q-agents")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=2, help="1: the episodes on which MAD was chosen")
    parser.add_argument("--fit", default="quick")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table stands; its other rows stay")
    parser.add_argument("--out", default="runs/attack-strength")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = Path(options.out) / "rows.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    lines = []
    for path in options.agents:
        agent = load_agent(path)
        for name in options.attacks.split(","):
            if ENTRIES[name].suits(agent):
                lines.append(row(agent, name, options, kept, file))
    text = options.page.read_text(encoding="utf-8")
    head, _, rest = text.partition("<!-- table -->")
    tail = rest.partition("<!-- end -->")[2]
    table = [
        "| agent | environment | smoothing | attack | clean | paper | sound | sound - paper | sound is |",
        "|---|---|---|---|---|---|---|---|---|",
        *merged(rest.partition("<!-- end -->")[0].lstrip(), lines),
    ]
    body = "\n".join(["<!-- table -->", *table, "<!-- end -->"])
    write_atomically(options.page, (head + body + tail).encode())


if __name__ == "__main__":
    main()
