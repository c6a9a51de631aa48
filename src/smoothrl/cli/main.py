"""`smoothrl COMMAND ...`: finds the command, shows errors as one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from smoothrl import __version__
from smoothrl.errors import UserError, unknown

COMMANDS = {
    "train": "train agents: smoothrl train METHOD --env ENV",
    "evaluate": "play episodes and report returns: smoothrl evaluate AGENT...",
    "attack": "attack agents and report the worst: smoothrl attack AGENT... --attack NAME --epsilon E",
    "certify": "what no attack can do: smoothrl certify radius|actions|return AGENT, certify verify FILE",
    "import": "bring an agent trained elsewhere: smoothrl import FILE --from released|sb3|cleanrl",
    "study": "whole tables of experiments: smoothrl study run|status|show NAME",
    "report": "one HTML page of results: smoothrl report RUNS... --out report.html",
    "demo": "the whole story in minutes: train, attack, certify, report",
    "list": "what there is: smoothrl list methods|attacks|environments|studies",
}


def usage() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = [
        f"smoothrl {__version__}: train, attack and certify agents whose observations someone tampers with",
        "",
        "usage: smoothrl COMMAND [options]      (smoothrl COMMAND --help shows the options)",
        "",
        *(f"  {name.ljust(width)}  {text}" for name, text in COMMANDS.items()),
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0
    if args[0] in ("-V", "--version"):
        sys.stdout.write(f"smoothrl {__version__}\n")
        return 0
    name, *rest = args
    try:
        if name not in COMMANDS:
            raise unknown("command", name, COMMANDS)
        module = import_module("smoothrl.cli." + ("import_" if name == "import" else name))
        return int(module.main(rest))
    except UserError as error:
        sys.stderr.write(f"smoothrl: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("smoothrl: interrupted\n")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        sys.stderr.write(f"smoothrl: {error.filename or name}: {error.strerror or error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
