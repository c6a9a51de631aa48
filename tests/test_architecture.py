"""One direction of imports: a module never imports from one to its right."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "smoothrl"

LAYERS = [
    {"errors", "protocols", "storage"},
    {"networks", "bounds", "envs", "smoothing", "noise", "statistics", "results"},
    {"agents"},
    {"attacks", "certificates"},
    {"rollout"},
    {"learners"},
    {"evaluation", "certification", "interop"},
    {"studies"},
    {"report", "cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FREE = {"__init__", "__main__"}


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The parts of smoothrl that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            pieces = name.split(".")
            if pieces[0] == "smoothrl" and len(pieces) > 1 and pieces[1] in RANK:
                found.add(pieces[1])
    return found


FILES = sorted(p for p in ROOT.rglob("*.py") if part(p) not in FREE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_flow_one_way(path: Path) -> None:
    mine = part(path)
    assert mine in RANK, f"{mine} has no place in the house; add it to LAYERS"
    wrong = {name for name in imported(path) if RANK[name] > RANK[mine]}
    assert not wrong, f"{path.relative_to(ROOT)} imports from its right: {wrong}"


def test_the_check_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from smoothrl.cli import main\nimport smoothrl.learners.ppo\n")
    assert imported(bad) == {"cli", "learners"}


def test_no_prints_in_the_library() -> None:
    calls = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                calls.append(f"{path.relative_to(ROOT)}:{node.lineno}")
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                calls.append(f"bare except {path.relative_to(ROOT)}:{node.lineno}")
    assert not calls
