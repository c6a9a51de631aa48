"""`smoothrl list methods|attacks|environments|studies`: what there is, with one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smoothrl.cli.common import say, write_json
from smoothrl.errors import UserError, unknown

Entries = list[tuple[str, str]]


def _methods() -> Entries:
    from smoothrl.learners import methods

    return methods.catalogue()


def _attacks() -> Entries:
    from smoothrl import attacks

    return attacks.catalogue()


def _environments() -> Entries:
    from smoothrl import envs

    return [
        (e.id, f"{e.family}, served by {e.backend}" + (f" ({e.note})" if e.note else ""))
        for e in envs.catalogue()
    ]


def _studies() -> Entries:
    from smoothrl import studies

    return studies.catalogue()


LISTS: dict[str, Callable[[], Entries]] = {
    "methods": _methods,
    "attacks": _attacks,
    "environments": _environments,
    "studies": _studies,
}
USAGE = f"usage: smoothrl list {'|'.join(LISTS)} [--json FILE]\n"


def main(argv: Sequence[str]) -> int:
    args = [word for arg in argv for word in (arg.split("=", 1) if arg.startswith("--json=") else [arg])]
    if not args or args[0] in ("-h", "--help"):
        say(USAGE.rstrip())
        return 0
    json = None
    if "--json" in args:
        at = args.index("--json")
        if at + 1 >= len(args):
            raise UserError("--json needs a file ('-' for standard output)")
        json = args[at + 1]
        del args[at : at + 2]
    if len(args) != 1:
        raise UserError(USAGE.strip())
    if args[0] not in LISTS:
        raise unknown("list", args[0], LISTS)
    entries = LISTS[args[0]]()
    if json == "-":
        write_json([{"name": n, "summary": s} for n, s in entries], json)
        return 0
    width = max(len(name) for name, _ in entries)
    for name, summary in entries:
        say(f"{name.ljust(width)}  {summary}")
    write_json([{"name": n, "summary": s} for n, s in entries], json)
    return 0
