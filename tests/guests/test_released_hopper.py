"""The page of the released agents, and the chain behind it on one of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from smoothrl import rollout
from smoothrl.agents.importers import import_released
from smoothrl.results import ResultRow, write_rows
from smoothrl.studies import released_hopper as page

from .test_released import RELEASED, needs_files


def row(agent: str, metric: str, mean: float, epsilon: float | None = None, **more: object) -> ResultRow:
    sigma = None if agent == "ppo" else 0.2
    return ResultRow("Hopper-v2", agent, metric, mean, epsilon, sigma, **more)  # type: ignore[arg-type]


def test_published_numbers_are_joined() -> None:
    assert page.published(row("ppo", "clean", 0.0)) == 3321
    assert page.published(row("s-ppo+sgld", "mad", 0.0, 0.075)) == 2896
    assert page.published(row("ppo+rs", "reward_lower_bound", 0.0, 0.004)) == 1218
    assert page.published(row("s-ppo+atla", "adiv", 0.0)) == 8.964
    assert all(page.published(row(a, "clean", 0.0)) is not None for a in page.agent_names())
    assert len(page.agent_names()) == 18


def test_distance_counts_both_samples() -> None:
    ours = row("s-ppo", "clean", 3600.0, low=3600 - 1.96 * 30, high=3600 + 1.96 * 30)
    assert math.isclose(page.distance(ours, 3558.0), 42 / math.hypot(30, 30), rel_tol=1e-9)
    attacked = row("s-ppo", "mad", 2600.0, 0.075, low=2600 - 1.96 * 40, high=2600 + 1.96 * 40, std=300.0)
    assert math.isclose(page.distance(attacked, 2500.0), 100 / math.hypot(40, 300 / math.sqrt(12)))
    assert math.isnan(page.distance(row("s-ppo", "clean", 1.0), 2.0))


def test_bounds_are_compared_by_counted_episodes() -> None:
    returns = np.arange(1000.0)
    assert page.count_distance(returns, 148.0, 0.148) == 0.0
    wanted = 0.022 / math.sqrt(2 * 0.148 * 0.852 / 1000)
    assert math.isclose(page.count_distance(returns, 170.0, 0.148), wanted)
    clustered = np.where(returns < 148, 985.0, 1046.0)
    assert page.count_distance(clustered, 1046.0, 0.148) == 0.0


def test_page_is_filled_between_its_marks_and_again(tmp_path: Path) -> None:
    for name, protocol in (("p", "paper"), ("s", "sound")):
        folder = tmp_path / name
        (folder / "jobs" / "certify-1").mkdir(parents=True)
        rows = [
            row(
                "ppo",
                "clean",
                3328.2,
                low=3327.0,
                high=3329.0,
                episodes=2,
                returns=(1.0, 2.0),
                protocol=protocol,
            ),
            row("s-ppo", "mad", 2671.0, 0.075, low=2396.0, high=2949.0, std=900.0, protocol=protocol),
            row("s-ppo", "reward_lower_bound", 5.0, 0.002, agent_hash="h", episodes=300, protocol=protocol),
        ]
        write_rows(rows, folder / "results.csv")
        returns = np.random.default_rng(0).uniform(1000, 3000, 300).tolist()
        parameters = {
            "sigma": 0.2,
            "eps": [0.002, 0.004, 0.006, 0.008, 0.01],
            "horizon": 1000,
            "mode": "paper",
        }
        record = {"kind": "return", "agent_hash": "h", "data": {"returns": returns}, "parameters": parameters}
        (folder / "jobs" / "certify-1" / "certificate.json").write_text(json.dumps(record))
    long = tmp_path / "long.json"
    write_rows([row("ppo", "clean", 3000.0, episodes=4, returns=(2900.0, 3000.0, 3100.0, 3000.0))], long)
    text = "a\n" + "".join(f"<!-- {n} -->\nold\n<!-- /{n} -->\n" for n in (*page.SECTIONS, "long")) + "z\n"
    target = tmp_path / "page.md"
    target.write_text(text)
    arguments = [str(tmp_path / "p"), str(tmp_path / "s"), str(target), "--long", str(long)]
    assert page.main(arguments) == 0
    once = target.read_text()
    assert "old" not in once
    assert once.startswith("a\n")
    assert once.endswith("z\n")
    assert "| ppo | 3321 | 3328 [3327, 3329] | +10.0 |" in once
    assert "| s-ppo | paper | 1959 |" in once
    assert "| ppo | 3321 | 3000 | " in once
    assert page.main(arguments) == 0
    assert target.read_text() == once
    assert (tmp_path / "page.csv").is_file()
    again = [row("s-ppo", "mad", 1500.0, 0.075, low=1400.0, high=1600.0, protocol="sound")]
    write_rows(again, tmp_path / "s" / "results.csv")
    assert page.main([str(tmp_path / "page.csv"), str(tmp_path / "s"), str(target)]) == 0
    both = "2671 [2396, 2949] | 2671 [2396, 2949]"
    assert both in once
    assert target.read_text() == once.replace(both, "2671 [2396, 2949] | 1500 [1400, 1600]")


@needs_files
def test_a_released_agent_scores_what_the_paper_says() -> None:
    agent = import_released(RELEASED / "s-ppo-hopper" / "hopper_sppo_sgld_median.model").agent
    result = rollout.evaluate(agent, episodes=6, seed=0)
    assert abs(result.returns.mean() - 2894) < 120
    assert (result.lengths == 1000).all()
