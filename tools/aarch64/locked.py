"""`python -m tools.aarch64.locked NAME...` prints the entries of requirements/dev.txt for these packages."""

from __future__ import annotations

import sys

from tools.lock import FOLDER, entries


def main(names: list[str]) -> None:
    """Raises KeyError for a package that is not locked."""
    locked = entries((FOLDER / "dev.txt").read_text())
    for name in names:
        print(locked[name])


if __name__ == "__main__":
    main(sys.argv[1:])
