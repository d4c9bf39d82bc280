"""Exceptions and places in a form that may be logged: types, files, lines, functions; no values, no foreign texts."""

from __future__ import annotations

import errno
import os
import re
import traceback
from pathlib import Path

from edgespec.core.errors import ClientError, EdgespecError

MAX_LINE = 2000
"""Characters of one line: our longest sentences contain several paths."""
MAX_FRAMES = 12
"""Innermost places of a traceback that are printed; our own exceptions have fewer."""
MAX_CAUSES = 4


def described(error: BaseException) -> str:
    """The text of an EdgespecError, otherwise the type. A ClientError's text may quote the client, so it is reduced."""
    if isinstance(error, EdgespecError) and not isinstance(error, ClientError):
        return str(error)
    return kind_of(error)


def kind_of(error: BaseException) -> str:
    """The type, with the closed label that some types have."""
    name = identifier(type(error).__name__)
    if isinstance(error, ClientError):
        return f"{name} {error.status} {error.code or ''}".rstrip()
    if isinstance(error, OSError) and error.errno is not None:
        return f"{name} {errno.errorcode.get(error.errno, error.errno)}"
    return name


def cause(error: BaseException) -> str:
    """The system's message of an OSError, without its arguments; otherwise the type."""
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return kind_of(error)


def places(error: BaseException) -> str:
    """The places of an exception's traceback, outermost call first, and those of its causes."""
    parts: list[str] = []
    one: BaseException | None = error
    while one is not None and len(parts) < MAX_CAUSES:
        frames = traceback.extract_tb(one.__traceback__)[-MAX_FRAMES:]
        where = " > ".join(f"{place(frame.filename, frame.lineno)}:{frame.name}" for frame in frames)
        parts.append(f"{kind_of(one)} at {where or 'an unknown place'}")
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return "; caused by ".join(parts)


def origin(error: BaseException) -> str:
    """The innermost place of an exception; empty where it was never raised."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return "".join(f" at {place(frame.filename, frame.lineno)}" for frame in frames)


def place(file: str, line: int | None) -> str:
    """FOLDER/FILE:LINE, without the rest of the path on this machine."""
    return f"{clean('/'.join(Path(file).parts[-2:]))[-80:]}:{line}"


def identifier(name: str) -> str:
    """The name of a type or a logger."""
    return re.sub(r"[^\w.\-]", "?", name, flags=re.ASCII)[:80]


def clean(text: str) -> str:
    """One line without control characters, which a terminal would interpret."""
    text = text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= MAX_LINE else text[:MAX_LINE] + "..."
