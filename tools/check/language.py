"""`python -m tools.check.language` holds the language of code and documents to the glossary of docs/architecture.md.

Checked in every tracked Python file, in README.md, docs/ and configs/: the words of WORDS, each with what to
write instead; names of tests of at most MAX_TEST_NAME characters; README.md's tables of at most MAX_COLUMNS columns
and lines of at most MAX_LINE characters outside tables; sentences, that is `where` as a conjunction, and docstrings,
comments, paragraphs, items and cells that begin with a bare word of OPENINGS. A folder of SENTENCES may have so
many faults of sentences, which is what it had when all files were first checked; all others have none.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

MAX_TEST_NAME = 70
MAX_COLUMNS = 8
MAX_LINE = 120
SUFFIXES = (".py", ".md", ".toml", ".service")
FOLDERS = ("cloud_gateway/", "configs/", "docs/", "edgespec/", "integrations/", "lab/", "tests/", "tools/")
EXEMPT = ("tools/check/language.py", "tests/tools/test_language.py")
"""They name the words."""
GLOSSARY = re.compile(r"^\| not \| but \|\n(\|.*\n)*", re.MULTILINE)
"""The table of words in docs/architecture.md."""
SENTENCES: Mapping[str, int] = {"cloud_gateway": 358, "edgespec": 103, "integrations": 28, "lab": 117, "tools": 97}
"""Faults of sentences that each folder of the repository may have. Lower one with each sentence that is rewritten."""
GENERATED = ("docs/upstream/",)
"""Text for other projects."""
OPENINGS = ("As", "For", "Of", "What")
OPENING = re.compile(rf"(?:[-*] |\d+\. )?\**(?:{'|'.join(OPENINGS)}) (?![^.:]*[?:])")
"""At the beginning of a text. A colon or a question mark makes it a label or a question."""
WHERE = re.compile(r"\bwhere\b(?! to\b)", re.IGNORECASE)
FENCE = re.compile(r"^ *(?:```|~~~)")

# A pattern, matched as whole words without regard to case, and what to write instead. An identifier's parts are words.
WORDS = {
    "told|untold": "sent, reported, passed",
    "tells": "shows, sends, returns",
    "hears|heard": "receives, received",
    "believes|believed": "expects, assumes",
    "shunned|shuns": "excluded",
    "wish|wishes|wished": "options, requested, settings",
    "owed|owes|owe|owing": "backlog, pending",
    "debt|debts": "backlog",
    "whoever|whomever": "the one that, any client that",
    "whereabouts": "position",
    "anew": "again",
    "lest": "so that ... not",
    "befell|befall|befalls": "happened to, applied to",
    "the book of": "log, table",
    "hitherto|thereby|thereof|herein|thrice": "plain words",
    "reckon|reckons|reckoned": "compute, estimate, count",
    "fared|fares": "result",
    "guess|guesses|guessed": "draft token, candidate, prediction (of a code: attempt)",
    "LEAST_[A-Z]\\w*|MOST_[A-Z]\\w*": "MIN_, MAX_",
    "at hand": "available",
    "makes good|made good": "recovers",
    "mend|mends|mended": "fix, repair",
    "gives way": "yields, pauses",
    "in vain": "without effect",
}
PATTERNS = [
    (re.compile(rf"(?<![A-Za-z])(?:{words})(?![a-z])", 0 if "[A-Z]" in words else re.IGNORECASE), instead)
    for words, instead in WORDS.items()
]


def word_faults(text: str) -> Iterator[str]:
    """Words that the glossary replaces, one sentence each."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in PATTERNS:
            for found in pattern.finditer(line):
                yield f"line {number}: `{found[0]}`; write instead: {instead}"


def test_name_faults(source: str) -> Iterator[str]:
    """Tests whose names are too long to be read at a glance."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
            if name.startswith("test_") and len(name) > MAX_TEST_NAME:
                yield f"line {node.lineno}: {name} has {len(name)} characters, over {MAX_TEST_NAME}"


def readme_faults(text: str) -> Iterator[str]:
    """Tables that are too wide and lines that are too long."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("|"):
            columns = line.strip().strip("|").count("|") + 1
            if columns > MAX_COLUMNS:
                yield f"line {number}: a table of {columns} columns, over {MAX_COLUMNS}"
        elif len(line) > MAX_LINE:
            yield f"line {number}: {len(line)} characters, over {MAX_LINE}"


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a Markdown text outside of fences and headings: their numbers, and prose with code spans emptied.

    A line that continues a paragraph begins with a space, and each cell of a table's row is a line of its own.
    """
    fenced = False
    within = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
            within = False
        elif not fenced and not line.startswith("#"):
            prose = re.sub(r"`[^`]*`", "`", line).strip()
            if prose.startswith("|"):
                yield from ((number, cell.strip()) for cell in prose.strip("|").split("|"))
                within = False
            else:
                begins = not within or re.match(r"[-*] |\d+\. ", prose)
                yield number, prose if begins else f" {prose}"
                within = bool(prose)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, of attributes too, and comments of a Python source: their first lines' numbers, and code emptied."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, re.sub(r"`[^`]*`", "`", node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"`[^`]*`", "`", token.string.lstrip("# "))


def sentence_faults(passages: Iterator[tuple[int, str]]) -> Iterator[str]:
    """Conjunctions `where`, and texts that begin with a bare word of OPENINGS."""
    for number, text in passages:
        if WHERE.search(text):
            yield f"line {number}: `where`; write instead: if, when, a noun phrase"
        if OPENING.match(text):
            yield f"line {number}: begins with `{text[:20]}`; write instead: a noun phrase or a verb"


def faults(path: str, text: str) -> Iterator[str]:
    """All faults of one file."""
    if path not in EXEMPT:
        yield from word_faults(GLOSSARY.sub("", text) if path == "docs/architecture.md" else text)
    if path.startswith("tests/") and path.endswith(".py"):
        yield from test_name_faults(text)
    if path == "README.md":
        yield from readme_faults(text)


def sentences(path: str, text: str) -> Iterator[str]:
    """The faults of one file's sentences."""
    if path.startswith(GENERATED):
        return
    if path.endswith(".py"):
        yield from sentence_faults(texts(text))
    elif path.endswith(".md"):
        yield from sentence_faults(paragraphs(text))


def above_ceilings(by_folder: Mapping[str, Sequence[str]], ceilings: Mapping[str, int]) -> Iterator[str]:
    """The faults of sentences of each folder that has more than it may."""
    for folder, complaints in by_folder.items():
        ceiling = ceilings.get(folder, 0)
        if len(complaints) > ceiling:
            yield f"{folder} has {len(complaints)} faults of sentences, above its ceiling of {ceiling}:"
            yield from complaints


def checked_files(root: Path) -> list[str]:
    """Tracked and new files that are held."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    names = sorted(filter(None, listed.split("\0")))
    return [n for n in names if (n == "README.md" or (n.startswith(FOLDERS) and n.endswith(SUFFIXES)))]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints each fault; returns 1 when there is one."""
    root = Path((argv or ["."])[0]).resolve()
    names = [name for name in checked_files(root) if (root / name).is_file()]

    complaints: list[str] = []
    by_folder: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        text = (root / name).read_text()
        complaints += [f"{name}: {fault}" for fault in faults(name, text)]
        by_folder[name.partition("/")[0]] += [f"{name}: {fault}" for fault in sentences(name, text)]
    complaints += above_ceilings(by_folder, SENTENCES)

    to_rewrite = ", ".join(f"{len(rest)} in {folder}" for folder, rest in sorted(by_folder.items()) if rest)
    print(f"language: {len(names)} files, {len(complaints)} faults; sentences to rewrite: {to_rewrite or 'none'}")
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if complaints:
        return 1

    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
