"""The documentation: links that lead somewhere, and a page for everything that has a name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from smoothrl.cli.main import COMMANDS
from smoothrl.studies.declare import METRICS
from smoothrl.studies.predefined import BASES_DQN, INGREDIENTS, STUDIES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def text(folder: str) -> str:
    return "\n".join(page.read_text() for page in sorted((DOCS / folder).glob("*.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_a_page_for_everything() -> None:
    methods, attacks, certificates = text("methods"), text("attacks"), text("certificates")
    for method in (*BASES_DQN, "s-dqn", *(f"{base}{x}" for base in ("ppo", "s-ppo") for x in INGREDIENTS)):
        ingredient = method.partition("+")[2] or method
        assert re.search(rf"(?i)(?<![\w-]){re.escape(ingredient)}(?![\w])", methods), method
    for metric in METRICS.values():
        if metric.kind in ("attack", "suite"):
            assert f"`{metric.name}`" in attacks, metric.name
    for what in ("certify radius", "certify actions", "certify return", "certify verify", "anytime", "CROP"):
        assert what in certificates, what


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_name_what_exists(page: Path) -> None:
    """Every `smoothrl ...` line: a known command, and for studies a known name."""
    joined = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"^(?: {4})?(smoothrl [a-z].*)$", joined, re.MULTILINE):
        words = shlex.split(line, comments=True)
        assert words[1] in COMMANDS, line
        if words[1:3] in (["study", "run"], ["study", "show"]):
            assert words[3] in STUDIES or words[3].isupper() or words[3].endswith(".toml"), line
