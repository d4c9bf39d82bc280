"""What may be logged, and how often: exceptions without values or foreign texts, each kind of line once a minute."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path

from edgespec.core.errors import ClientError, EdgespecError

EVERY_S = 60.0
MAX_KINDS = 512
"""Kinds with a limit of their own; further ones share one, so that many kinds cannot cause a flood of lines."""
MAX_LINE = 2000
"""Characters of one line: our longest sentences contain several paths."""
MAX_FRAMES = 12
"""Innermost places of a traceback that are printed; our own exceptions have fewer."""
MAX_CAUSES = 4


def described(error: BaseException) -> str:
    """The text of an EdgespecError, otherwise the type. A ClientError's text may quote the client, so it is reduced."""
    if isinstance(error, EdgespecError) and not isinstance(error, ClientError):
        return str(error)
    return kind_of_error(error)


def kind_of_error(error: BaseException) -> str:
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
    return kind_of_error(error)


def places(error: BaseException) -> str:
    """The places of an exception's traceback, outermost call first, and those of its causes."""
    parts: list[str] = []
    one: BaseException | None = error
    while one is not None and len(parts) < MAX_CAUSES:
        frames = traceback.extract_tb(one.__traceback__)[-MAX_FRAMES:]
        where = " > ".join(f"{place(frame.filename, frame.lineno)}:{frame.name}" for frame in frames)
        parts.append(f"{kind_of_error(one)} at {where or 'an unknown place'}")
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)

    return "; caused by ".join(parts)


def origin(error: BaseException) -> str:
    """The innermost place of an exception; empty if it was never raised."""
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
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    if len(text) <= MAX_LINE:
        return text
    return text[:MAX_LINE] + "..."


class Throttle:
    """Decides for each event whether its line may be printed. Thread-safe."""

    def __init__(self, every_s: float = EVERY_S, kinds: int = MAX_KINDS) -> None:
        self._every_s = every_s
        self._kinds = kinds
        self._last: dict[Hashable, float] = {}
        self._held: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def admit(self, kind: Hashable, now: float) -> int | None:
        """Number of this kind suppressed since the last line, or None: suppress this one too. `now` in seconds."""
        with self._lock:
            if kind not in self._last and len(self._last) >= self._kinds:
                self._forget(now)
                if len(self._last) >= self._kinds:
                    kind = None
            last = self._last.get(kind)
            if last is not None and now - last < self._every_s:
                self._held[kind] = self._held.get(kind, 0) + 1
                return None
            self._last[kind] = now
            return self._held.pop(kind, 0)

    def _forget(self, now: float) -> None:
        """Removes kinds without a line for an interval, with their counts."""
        for kind in [kind for kind, last in self._last.items() if now - last >= self._every_s]:
            del self._last[kind]
            self._held.pop(kind, None)


class LimitedLog:
    """A logger for lines that a client or worker can cause: each kind at most once a minute, with a count."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, monotonic."""
        self._log = log
        self._clock = clock
        self._throttle = Throttle()

    def warning(self, kind: Hashable, text: str) -> None:
        """`line` with level WARNING."""
        self.line(logging.WARNING, kind, text)

    def line(
        self,
        level: int,
        kind: Hashable,
        text: str,
        error: BaseException | None = None,
        figures: Mapping[str, object] | None = None,
    ) -> None:
        """Logs `text`, unless a line of this kind was logged within the last minute; then it is counted.

        `error`: what caused it, of which the log shows kind and place. `figures`: for a log in JSON.
        """
        left_out = self._throttle.admit(kind, self._clock())
        if left_out is not None:
            more = f" (and {left_out} more like it)" if left_out else ""
            self._log.log(
                level,
                "%s%s",
                text,
                more,
                exc_info=error,
                extra={"figures": figures or {}},
            )
