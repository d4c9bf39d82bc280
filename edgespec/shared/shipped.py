"""The configuration file that a program ships, with the keys of its parts, for the verb `config`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgespec.shared.part import Part

_HEADER = re.compile(r"^\[[\w.]+\]$", re.MULTILINE)
"""The line that begins a table."""


def example(core: str, parts: Sequence[Part]) -> str:
    """The text of the program's shipped configuration, `core`, with the keys of the parts.

    The keys of a part are put at the end of their table, or as a table of their own at the end of the text.
    """
    text = core
    for part in parts:
        if part.example is not None:
            for header, keys in _tables_of(part.example.read_text()):
                text = _with_keys(text, header, keys)
    return text


def commented(text: str) -> str:
    """The same configuration with each key behind a `#`, so that a copy of it pins no default.

    Explanations have a space behind their `#`, keys have none; a line that continues a value is commented too.
    """
    lines: list[str] = []
    for line in text.splitlines():
        if line and not line.startswith(("#", "[")):
            lines.append(f"#{line}")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _tables_of(text: str) -> list[tuple[str, str]]:
    """The tables of a TOML text: header and keys. What stands before the first one is left out."""
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    return [(header[0], text[header.end() : end].strip("\n") + "\n") for header, end in zip(headers, ends, strict=True)]


def _with_keys(text: str, header: str, keys: str) -> str:
    """A TOML text with more keys in one of its tables."""
    for table in _HEADER.finditer(text):
        if table[0] == header:
            following = _HEADER.search(text, table.end())
            if following is None:
                return f"{text.rstrip()}\n{keys}"
            return f"{text[: following.start()].rstrip()}\n{keys}\n{text[following.start() :]}"

    return f"{text.rstrip()}\n\n{header}\n{keys}"
