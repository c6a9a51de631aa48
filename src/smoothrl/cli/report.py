"""`smoothrl report RUNS... --out report.html`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from smoothrl.cli.common import parse, say
from smoothrl.errors import UserError


@dataclass(frozen=True)
class Options:
    """One self-contained page (and tables) from study folders, run folders and results files."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUNS...")]
    """Study folders, training run folders, results files (.csv, .json)."""
    out: Path = Path("report.html")
    """The page."""
    title: str = ""
    """Heading of the page."""
    films: int = 24
    """At most so many films of agents (a tenth of a megabyte each)."""
    markdown: Path | None = None
    """Also the table of all numbers in Markdown."""
    latex: Path | None = None
    """Also LaTeX tables, one an environment."""
    svg: Path | None = None
    """Also the first chart as a picture of its own."""


def main(argv: Sequence[str]) -> int:
    options = parse(Options, argv, "smoothrl report", Options.__doc__)
    command = "smoothrl report " + shlex.join(argv)
    from smoothrl.report import html
    from smoothrl.report.data import gather, headline
    from smoothrl.storage import write_atomically

    if options.out.suffix not in (".html", ".htm"):
        raise UserError(f"--out {options.out}: the page is HTML; --markdown and --latex write tables")
    data = gather(options.runs, max(0, options.films))
    title = options.title or headline(data)
    texts = {options.out: html.render(data, title, command)}
    wanted = {"markdown": options.markdown, "latex": options.latex, "svg": options.svg}
    made = html.write_options(data, [kind for kind, path in wanted.items() if path is not None])
    for kind, path in wanted.items():
        if path is None:
            continue
        if made[kind] is None:
            raise UserError("--svg: these results make no chart (fewer than two methods or budgets)")
        texts[path] = made[kind]
    for path, text in texts.items():
        try:
            write_atomically(path, text.encode())
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
        say(f"{'page' if path == options.out else 'table'}: {path}")
    return 0
