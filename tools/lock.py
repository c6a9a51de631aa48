"""Print constraints.txt: the exact versions of this virtual environment, no hashes (torch's builds share one
version). Pins that a later Python needs carry a marker, so that Python 3.10 resolves its own."""

from __future__ import annotations

import sys
from importlib.metadata import distributions

NEEDS_311 = {"numpy", "scipy", "contourpy", "matplotlib", "networkx", "ipython"}


def main() -> None:
    pins = {}
    for dist in distributions():
        name = dist.metadata["Name"].lower().replace("_", "-")
        if name not in {"smoothrl", "pip", "setuptools"}:
            pins[name] = dist.version.split("+")[0]
    sys.stdout.write("# Made by `make lock`; `make setup` installs exactly these.\n")
    for name in sorted(pins):
        marker = '; python_version >= "3.11"' if name in NEEDS_311 else ""
        sys.stdout.write(f"{name}=={pins[name]}{marker}\n")


if __name__ == "__main__":
    main()
