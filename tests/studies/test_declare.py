"""Studies as data: TOML, refusals, the knob, the parts, and the graph they become."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from smoothrl import results
from smoothrl.errors import UserError
from smoothrl.studies import declare, predefined
from smoothrl.studies.plan import plan
from smoothrl.studies.selection import median_agent

MINE = """
methods = ["ppo", "ppo+rs", {method = "s-ppo", label = "mine", sigma = 0.1}]
environments = ["InvertedPendulum-v4"]
seeds = 3
steps = 4096
episodes = 5
sigma = 0.2
select = ["clean", "mad"]

[[evaluations]]
metric = "clean"

[[evaluations]]
metric = "mad"
epsilon = [0.05, 0.1]

[[evaluations]]
metric = "optimal"
epsilon = 0.1
on = "selected"

[[evaluations]]
metric = "adiv"
on = "selected"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_a_toml_study(tmp_path: Path) -> None:
    study = declare.read_study(written(tmp_path, MINE))
    assert study.name == "mine"
    assert [e.name for e in study.methods] == ["ppo", "ppo+rs", "mine"]
    assert [study.sigma_of(e, "InvertedPendulum-v4") for e in study.methods] == [None, 0.2, 0.1]
    assert study.evaluations[2].epsilon == (0.1,)
    assert study.scale == "4096 steps, 3 seeds, 5 episodes, quick fits"
    assert declare.study_from(declare.study_data(study)) == study


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = 3", "seads = 3", "unknown key 'seads'; did you mean 'seeds'"),
        ('metric = "mad"', 'metric = "madd"', "unknown metric 'madd': did you mean 'mad'"),
        (
            'metric = "mad"\nepsilon',
            'metric = "mad"\nepsilom',
            "unknown key 'epsilom'; did you mean 'epsilon'",
        ),
        ('"ppo", "ppo+rs"', '"ppo", "pppo+rs"', "unknown method"),
        ('"ppo", "ppo+rs"', '"ppo", "ppo+radical"', "did you mean 'radial'"),
        ("sigma = 0.2", "sigma = 0", "needs a sigma above 0"),
        ("[0.05, 0.1]", "[-0.05]", "epsilon -0.05 of mad is impossible"),
        ("epsilon = [0.05, 0.1]", "", "mad needs an epsilon"),
        ("seeds = 3", 'seeds = "three"', "must be a whole number"),
        ("seeds = 3", "seeds = 0", "start at 1"),
        ("seeds = 3", 'protocol = "papr"', "did you mean 'paper'"),
        ('label = "mine"', 'label = "ppo"', "stands twice"),
        ("seeds = 3", "seeds = = 3", "not a readable TOML"),
        ('on = "selected"', 'on = "slected"', "did you mean 'selected'"),
    ],
)
def test_bad_studies(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MINE
    with pytest.raises(UserError, match=message):
        declare.read_study(written(tmp_path, MINE.replace(old, new)))


def test_unknown_and_missing_studies() -> None:
    with pytest.raises(UserError, match="did you mean 'paper-ppo'"):
        predefined.find_study("paper-pop")
    with pytest.raises(UserError, match="no such study file"):
        predefined.find_study("nowhere.toml")


def test_the_graph_of_a_small_study(tmp_path: Path) -> None:
    graph = plan(declare.read_study(written(tmp_path, MINE)))
    kinds = [job.kind for job in graph.jobs.values()]
    assert kinds.count("train") == 2  # ppo and ppo+rs share their pool
    assert kinds.count("select") == 2  # and their selection
    assert kinds.count("fit") == 3
    assert kinds.count("certify") == 2  # adiv needs smoothing
    assert kinds.count("evaluate") == 3 * 3 * 2 + 3
    for job in graph.jobs.values():
        if job.kind == "fit":
            assert [graph.jobs[k].kind for k in job.needs.values()] == ["select"]
    rs = [labels for labels in graph.rows.values() if labels["agent"] == "ppo+rs"]
    assert len(rs) == 9


def test_the_same_work_under_two_names_is_done_once() -> None:
    study = predefined.find_study("quick")
    study = replace(study, evaluations=tuple(e for e in study.evaluations if not e.methods))
    twin = replace(study, methods=(declare.Entry("s-ppo"), declare.Entry("s-ppo", label="twin")))
    one = replace(study, methods=(declare.Entry("s-ppo"),))
    assert set(plan(twin).jobs) == set(plan(one).jobs)
    assert len(plan(twin).rows) == 2 * len(plan(one).rows)


def test_the_knob_is_part_of_the_results() -> None:
    study = declare.scaled(predefined.find_study("paper-ppo"), steps=1000, seeds=2, episodes=3)
    assert study.scale == "1000 steps, 2 seeds, 3 episodes, paper fits"
    graph = plan(study)
    assert {labels["scale"] for labels in graph.rows.values()} == {study.scale}
    assert not set(graph.jobs) & set(plan(predefined.find_study("paper-ppo")).jobs)
    with pytest.raises(UserError, match="--steps 0: at least 1"):
        declare.scaled(study, steps=0)


def test_only_a_part() -> None:
    study = predefined.find_study("paper-ppo")
    part = declare.restricted(study, ["s-ppo", "ppo", "Hopper-v2"])
    assert [e.name for e in part.methods] == ["ppo", "s-ppo"]
    assert part.environments == ("Hopper-v2",)
    assert set(plan(part).jobs) < set(plan(study).jobs)
    games = declare.restricted(predefined.find_study("paper-return-bounds"), ["ALE/Pong-v5"])
    assert {e.family for e in games.methods} == {"dqn"}
    with pytest.raises(UserError, match="did you mean 's-ppo'"):
        declare.restricted(study, ["s-pppo"])


@pytest.mark.parametrize("name", predefined.STUDIES)
def test_predefined_studies_are_sound_data(name: str) -> None:
    study = predefined.find_study(name)
    assert study.name == name
    assert study.title
    graph = plan(study)
    kinds = {job.kind for job in graph.jobs.values()}
    assert kinds <= {"train", "import", "select", "fit", "evaluate", "certify", "film"}
    tables = {row.table for row in results.paper_rows()}
    assert set(study.tables) <= tables


@pytest.mark.parametrize(
    "name", [n for n in predefined.STUDIES if n.startswith("paper-") or n == "released-hopper"]
)
def test_every_number_of_a_papers_table_is_asked_for(name: str) -> None:
    """Each row of the tables a study answers has a planned measurement that joins on it."""
    study = predefined.find_study(name)
    asked = set()
    graph = plan(study)
    for (key, _), labels in graph.rows.items():
        params = graph.jobs[key].params
        if graph.jobs[key].kind == "film":
            continue
        for epsilon in params["epsilon"] or [None]:
            row = results.ResultRow(
                labels["environment"],
                labels["agent"],
                params["metric"],
                0.0,
                epsilon=epsilon,
                sigma=params["sigma"],
                samples=params["samples"],
            )
            for table in study.tables:
                found = results.paper_value(row, table)
                if found is not None:
                    asked.add(found)
    wanted = {
        p
        for p in results.paper_rows()
        if p.table in study.tables
        and p.environment != "average"
        and not (name == "released-hopper" and (p.environment != "Hopper" or p.metric in UNMEASURED))
    }
    missing = {
        (p.table, p.environment, p.agent, p.metric, p.epsilon, p.sigma, p.samples) for p in wanted - asked
    }
    assert not missing, sorted(map(str, missing))[:8]


UNMEASURED = ("min-rs", "optimal", "pa-ad", "worst")


def test_median_agent_by_hand() -> None:
    """Distances to the medians: clean 3 1 0 1 5, mad 0 1 2 3 4; rank sums 4+1, 2.5+2, 1+3, 2.5+4, 5+5."""
    assert median_agent({"clean": [7, 9, 10, 11, 15], "mad": [50, 49, 52, 47, 54]}) == 2
    assert median_agent({"clean": [1, 2, 3]}) == 1
    assert median_agent({"clean": [1.0, 1.0]}) == 0
    assert median_agent({"clean": [4, 1, 2, 3], "mad": [0, 0, 0, 0]}) == 2
    with pytest.raises(UserError, match="finite score"):
        median_agent({"clean": [1.0, float("nan")]})
    with pytest.raises(UserError, match="no metric"):
        median_agent({})


def test_how_an_agent_decides_under_noise(tmp_path: Path) -> None:
    """The paper's CROP agents average values, its own vote; both smoothings are the entry's to say."""
    crop = declare.Entry("dqn+rs", smoothing="mean")
    assert (crop.decides, declare.Entry("dqn+rs").decides) == ("mean", "vote")
    assert (declare.Entry("s-ppo").decides, declare.Entry("ppo").decides) == ("median", "none")
    radii = plan(predefined.find_study("paper-certified-radius"))
    smoothings = {
        labels["agent"]: radii.jobs[key].params["smoothing"]
        for (key, _), labels in radii.rows.items()
        if radii.jobs[key].kind == "certify"
    }
    assert smoothings["dqn+sa+rs"] == "mean"
    assert smoothings["s-dqn"] == "vote"
    for method, smoothing, words in (
        ("s-ppo", "mean", "did you mean|unknown smoothing of s-ppo"),
        ("ppo", "median", "acts without noise"),
    ):
        text = MINE.replace('methods = ["ppo", "ppo+rs", ', "methods = [").replace(
            '{method = "s-ppo", ', f'{{method = "{method}", smoothing = "{smoothing}", '
        )
        with pytest.raises(UserError, match=words):
            declare.read_study(written(tmp_path, text))


def test_every_table_and_figure_of_the_paper_has_a_study() -> None:
    """All tables of numbers; the two figures are drawn from the same rows (tests/report)."""
    answered = {table for make in predefined.STUDIES.values() for table in make().tables}
    assert answered == {row.table for row in results.paper_rows()}


def test_labels_do_not_hide_the_method_from_the_papers_numbers() -> None:
    row = results.ResultRow("Hopper-v2", "s-ppo @0.3", "clean", 1.0, sigma=0.3, samples=100)
    found = results.paper_value(row)
    assert found is not None
    assert (found.table, found.sigma) == ("sppo_sigma", 0.3)
