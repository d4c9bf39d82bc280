"""`python -m tools.check.claims [--write]` holds tests/claims.toml, the tests' markers and docs/claims.md together.

A claim is a sentence of tests/claims.toml, and a test that upholds it carries `@pytest.mark.claim("NAME")`. A claim
without a test, a marker or a name in docs/threats.md without a claim, and a page that differs from both are faults;
`--write` makes the page.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Claims = Mapping[str, Mapping[str, str]]
"""Sentences by name, by section."""
Marks = Mapping[str, Counter[Path]]
"""How many markers each claim has in each test file."""

PAGE = Path("docs/claims.md")
HEAD = """# Claims, and the tests that hold them

Made of `tests/claims.toml` and of the markers at the tests by `python -m tools.check.claims --write`; `make check`
compares. [threats.md](threats.md) states what follows for people. A test that upholds a claim carries its name:
`git grep 'claim("NAME")'`.
"""


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


def page(claims: Claims, marked: Marks) -> str:
    """The page: a table for each section, with the files of each claim's tests and how many are in each."""
    parts = [HEAD]
    for section, sentences in claims.items():
        rows = [f"| {text} | `{name}` | {_files(marked[name])} |" for name, text in sentences.items()]
        parts.append("\n".join([f"## {section}", "", "| claim | name | tests |", "| --- | --- | --- |", *rows, ""]))
    return "\n".join(parts)


def _files(counts: Counter[Path]) -> str:
    return ", ".join(f"[{path.stem[5:]}](../{path})" + (f" {n}" if n > 1 else "") for path, n in counts.items())


def main(argv: Sequence[str]) -> int:
    """Prints each fault; returns 1 when there is one."""
    root = Path()
    claims = tomllib.loads((root / "tests/claims.toml").read_text())
    marked = marks(root)
    found = [*faults(claims, marked), *unknown(claims, (root / "docs/threats.md").read_text())]
    if not found and "--write" in argv:
        (root / PAGE).write_text(page(claims, marked))
    if not found and (root / PAGE).read_text() != page(claims, marked):
        found = [f"{PAGE} is not what the tests say: run python -m tools.check.claims --write"]
    print(f"claims: {sum(map(len, claims.values()))} claims, {sum(n.total() for n in marked.values())} markers")
    for fault in found:
        print(fault, file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
