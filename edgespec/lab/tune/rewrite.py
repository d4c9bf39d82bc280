"""Puts settings into the text of a TOML file, whose comments and other keys stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_TABLE = re.compile(r"^\s*\[([A-Za-z_]+)\]\s*(#.*)?$")


def rewritten(text: str, values: Mapping[str, object]) -> str:
    """`values`: dotted key -> text, number or list of texts; a key that is not there goes to the end of its table."""
    lines, table, ends, left = list[str](), "", dict[str, int](), dict(values)
    for line in text.splitlines():
        if found := _TABLE.match(line):
            table = found[1]
        elif "=" in line and not line.lstrip().startswith("#"):
            key = f"{table}.{line.split('=')[0].strip()}"
            if key in left:
                line = f"{key.rpartition('.')[2]} = {json.dumps(left.pop(key), ensure_ascii=False)}"
        lines.append(line)
        if line.strip():
            ends[table] = len(lines)
    for key, value in left.items():
        name, _, last = key.rpartition(".")
        if name not in ends:
            lines += ["", f"[{name}]"]
            ends[name] = len(lines)
        lines.insert(ends[name], f"{last} = {json.dumps(value, ensure_ascii=False)}")
        ends = {other: end + (end >= ends[name]) for other, end in ends.items()}
    return "\n".join(lines) + "\n"
