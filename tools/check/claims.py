"""`python -m tools.check.claims` holds tests/claims.toml and the tests' markers together.

A claim is a sentence of tests/claims.toml, and a test that upholds it carries `@pytest.mark.claim("NAME")`. A claim
without a test, and a marker or a name in docs/threats.md without a claim are faults.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

Claims = Mapping[str, Mapping[str, str]]
"""Sentences by name, by section."""
Marks = Mapping[str, Counter[Path]]
"""How many markers each claim has in each test file."""


def marks(root: Path) -> Marks:
    """The markers `pytest.mark.claim("NAME")` in all tests below `root`/tests, and in those of the integrations."""
    found: defaultdict[str, Counter[Path]] = defaultdict(Counter)
    integrations = (root / "integrations").glob("*/tests/test_*.py")
    for path in sorted([*(root / "tests").rglob("test_*.py"), *integrations]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.claim":
                for argument in node.args:
                    found[ast.literal_eval(argument)][path.relative_to(root)] += 1

    return found


def faults(claims: Claims, marked: Marks) -> Iterator[str]:
    """Claims that no test upholds, and markers that name no claim."""
    known = [name for section in claims.values() for name in section]
    yield from (f"tests/claims.toml has {name} {n} times" for name, n in Counter(known).items() if n > 1)
    yield from (f"no test upholds the claim {name} of tests/claims.toml" for name in known if name not in marked)
    for name in sorted(set(marked) - set(known)):
        yield f"{', '.join(map(str, marked[name]))}: tests/claims.toml has no claim {name}"


def unknown(claims: Claims, text: str) -> Iterator[str]:
    """Names of claims in a page, which are code of four words or more, that no claim has."""
    known = {name for section in claims.values() for name in section}
    for name in re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+){3,})`", text):
        if name not in known:
            yield f"docs/threats.md names {name}, which is no claim of tests/claims.toml"


def main() -> int:
    """Prints each fault; returns 1 when there is one."""
    root = Path()
    claims = tomllib.loads((root / "tests/claims.toml").read_text())
    marked = marks(root)
    found = [*faults(claims, marked), *unknown(claims, (root / "docs/threats.md").read_text())]
    print(f"claims: {sum(map(len, claims.values()))} claims, {sum(n.total() for n in marked.values())} markers")
    for fault in found:
        print(fault, file=sys.stderr)

    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
