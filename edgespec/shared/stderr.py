"""Reserves standard error for the log: direct output of native libraries is read, counted and dropped.

llama.cpp, torch and llguidance (a Rust panic) write to file descriptor 2 without any Python hook, and may quote tokens
or texts. From `begin` on that descriptor is a pipe whose bytes are counted; the log keeps the original. After a crash
in native code `faulthandler` still prints the Python places, without values.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

JOIN_S = 1.0
"""Time for the reader thread to end; a child process may keep the pipe open for longer."""


class Withheld:
    """File descriptor 2 redirected, from `begin` to `end`. `stream` is what it was."""

    def __init__(self, stream: TextIO, reader: threading.Thread, crashes: bool) -> None:
        """`crashes`: whether crashes were printed before, to descriptor 2."""
        self.stream, self._reader, self._crashes = stream, reader, crashes

    @classmethod
    def begin(cls, wrote: Callable[[int], None]) -> Withheld | None:
        """Redirects; a thread calls `wrote` with the number of bytes of each read. None without a descriptor 2."""
        try:
            sys.stderr.flush()
            real = os.dup(2)
        except (OSError, ValueError, AttributeError):
            return None
        out, into = os.pipe()
        os.dup2(into, 2)
        os.close(into)
        reader = threading.Thread(target=_read, args=(out, wrote), name="stderr", daemon=True)
        reader.start()
        stream = os.fdopen(real, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        crashes = faulthandler.is_enabled()
        faulthandler.enable(stream)
        return cls(stream, reader, crashes)

    def end(self) -> None:
        """Restores descriptor 2."""
        with contextlib.suppress(OSError, ValueError):  # its reader has gone
            sys.stderr.flush()
            self.stream.flush()
        os.dup2(self.stream.fileno(), 2)
        if self._crashes:
            faulthandler.enable(2)
        else:
            faulthandler.disable()
        self._reader.join(JOIN_S)
        with contextlib.suppress(OSError):
            self.stream.close()


def _read(descriptor: int, wrote: Callable[[int], None]) -> None:
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while data := pipe.read(65536):
            wrote(len(data))
