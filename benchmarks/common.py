"""What the benchmarks share: timing, and keeping what was measured.

A benchmark measures both sides of a ratio in one run on one machine and calls `record`; the figure goes to
benchmarks/results/NAME.json and `python benchmarks/common.py` writes the table of benchmarks/README.md."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def seconds(work: Callable[[], Any], repeats: int = 1) -> float:
    """Best wall time of `repeats` runs (the least disturbed one)."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def machine() -> dict[str, Any]:
    import numpy
    import torch

    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "threads": torch.get_num_threads(),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def record(
    name: str,
    what: str,
    value: float,
    target: str,
    met: bool,
    detail: dict[str, Any] | None = None,
    unit: str = "x",
) -> None:
    """Keep one figure: what was measured, what it should reach, and everything behind it."""
    RESULTS.mkdir(exist_ok=True)
    row = {
        "name": name,
        "what": what,
        "value": round(value, 4),
        "unit": unit,
        "target": target,
        "met": bool(met),
        "command": f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "detail": detail or {},
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(row, indent=1) + "\n")
    mark = "reached" if met else "NOT REACHED"
    sys.stdout.write(f"{name}: {value:.4g} {unit} (target {target}: {mark})  {json.dumps(row['detail'])}\n")


def show(
    name: str,
    what: str,
    value: float,
    target: str,
    met: bool,
    detail: dict[str, Any] | None = None,
    unit: str = "x",
) -> None:
    """One line on the terminal and nothing kept: the figure of a quick run is no measurement."""
    mark = "reached" if met else "not reached"
    sys.stdout.write(f"quick, {what}: {value:.4g} {unit} (target {target}: {mark})  {json.dumps(detail)}\n")


def table() -> str:
    rows = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    lines = ["| measured | value | target | reached | command |", "|---|---|---|---|---|"]
    for row in rows:
        mark = "yes" if row["met"] else "**no**"
        figure = f"{row['value']:.3g} {row['unit']}"
        lines.append(f"| {row['what']} | {figure} | {row['target']} | {mark} | `{row['command']}` |")
    return "\n".join(lines)


def write_readme() -> None:
    path = HERE / "README.md"
    text = path.read_text()
    start, end = text.index("<!-- table -->"), text.index("<!-- end -->")
    path.write_text(text[:start] + "<!-- table -->\n" + table() + "\n" + text[end:])


if __name__ == "__main__":
    write_readme()
