"""The logging policy of daemons and commands: full texts of this repository, kind and place of everything else.

    with logs.policy("info"):       # for the whole command
        logs.serving()              # from here on the process handles requests

A library's message may quote what a client sent: a header with an API key, a prompt, a token of a completion. So a
message is printed with its text only if the logging call is in a file of our packages. Of any other one the level, the
logger, the type of the exception and the place are printed, each place at most once a minute. Exceptions of other
packages are never printed with their text, and tracebacks are lists of places: at every level, `debug` included.
"""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import sys
import threading
import time
import warnings
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

import msgspec

from edgespec.shared.log_text import (
    LimitedLog,
    Throttle,
    clean,
    described,
    identifier,
    kind_of_error,
    origin,
    place,
    places,
)

log = logging.getLogger("edgespec.logs")

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
JSON = "EDGESPEC_JSON_LOGS"
"""The environment variable that makes each line an object of JSON."""
KEPT = 20
"""Latest warnings and errors, for `status`."""
JOIN_S = 1.0
"""Time for the reader thread to end; a child process may keep the pipe open for longer."""
PACKAGES = ("edgespec", "cloud_gateway", "edgespec_vllm")
"""Wherever they were imported from: in a checkout, `edgespec_vllm` has another parent folder than the others."""
_LENT = ".websockets"
"""Suffix of our loggers that are passed to the library `websockets`."""
_KNOWN = frozenset({
    "Task was destroyed but it is pending!", "Task exception was never retrieved",
    "Future exception was never retrieved", "socket.accept() out of system resource",
})  # fmt: skip
"""Messages to asyncio's exception handler that are constants of its source and quote nothing."""


@contextmanager
def policy(level: str = "warning", stream: TextIO | None = None) -> Iterator[None]:
    """Logs to `stream` (standard error) under this module's policy until the end of the block.

    `level` is in lower case. Inside another such block it only sets the level, and reverses `serving`.
    """
    root = logging.getLogger()
    outer = next(_handlers(), None)
    if outer is not None:
        root.setLevel(level.upper())
        try:
            yield
        finally:
            outer.end()  # the command may print to standard error why it ends
        return

    handler = PolicyHandler(stream or sys.stderr)
    before = root.level
    hooks = (
        sys.excepthook,
        sys.unraisablehook,
        threading.excepthook,
        warnings.showwarning,
    )
    root.addHandler(handler)
    root.setLevel(level.upper())
    _set_hooks()
    try:
        yield
    finally:
        atexit.unregister(_set_hooks)
        atexit.register(_set_hooks)  # failures while the process ends are reduced too
        (
            sys.excepthook,
            sys.unraisablehook,
            threading.excepthook,
            warnings.showwarning,
        ) = hooks
        root.setLevel(before)
        root.removeHandler(handler)
        handler.end()


def serving() -> None:
    """To be called before the first request: from then on, direct output of libraries to standard error is withheld.

    Does nothing outside a `policy`.
    """
    for handler in _handlers():
        handler.withhold()


def latest_warnings() -> list[dict[str, object]]:
    """The latest warnings and errors as they were printed, oldest first; JSON types. None outside a `policy`."""
    latest: list[dict[str, object]] = []
    for handler in _handlers():
        latest += [{"at": at, "text": text} for at, text in handler.warnings]

    return latest


def _handlers() -> Iterator[PolicyHandler]:
    """The one of a `policy`, if the program is within one."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PolicyHandler):
            yield handler


def failure(error: BaseException) -> str:
    """The sentence for a command that ended with an unexpected exception."""
    return f"A fault of this program ended it; please report this line: {places(error)}."


def loop_failed(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """The event loop's exception handler: a type and places, each at most once a minute."""
    error = context.get("exception")
    message = context.get("message")
    if message not in _KNOWN:
        message = "a callback failed"
    text = f"asyncio: {message}"
    if error is not None:
        text += f" ({described(error)}; {places(error)})"
    _emit(logging.ERROR, text)


def is_ours(record: logging.LogRecord) -> bool:
    """Whether the logging call is in a file of our packages."""
    return record.pathname.startswith(_our_folders()) and not record.name.endswith(_LENT)


def _our_folders() -> tuple[str, ...]:
    """The folders of those of our packages that are imported, each with a separator at its end."""
    # Read for each record, since a package may be imported after the policy began.
    imported = [sys.modules.get(package) for package in PACKAGES]
    return tuple(f"{folder}{os.sep}" for module in imported for folder in getattr(module, "__path__", ()))


class JsonLines(logging.Formatter):
    """Time, level, logger and text, and the figures of lines that have some (`extra={"figures": ...}`)."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        return msgspec.json.encode(line | getattr(record, "figures", {})).decode()


class PolicyHandler(logging.StreamHandler[TextIO]):
    """Prints records of our packages as they are, and others without their text."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(JsonLines() if os.environ.get(JSON) else logging.Formatter(FORMAT))
        self._throttle = Throttle()
        self._withheld: Withheld | None = None
        self.warnings: deque[tuple[float, str]] = deque(maxlen=KEPT)
        """The latest, each with its time in seconds since 1970."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one record, unless its place was printed within the last minute."""
        text: str | None
        figures: dict[str, object] = {}
        try:
            if is_ours(record):
                text = self._ours(record)
                figures = getattr(record, "figures", figures)
            else:
                text = self._foreign(record)
            if text is None:
                return

            name = identifier(record.name)
            shown = logging.LogRecord(name, record.levelno, "", 0, clean(text), None, None)  # no arguments, no exc_info
            shown.created = record.created
            shown.msecs = record.msecs
            shown.__dict__["figures"] = figures
            if record.levelno >= logging.WARNING:
                self.warnings.append((record.created, f"{name}: {shown.getMessage()}"))
            super().emit(shown)
        except Exception:  # noqa: BLE001  no log line may raise, and its error may quote the arguments
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Replaces logging's own report, which prints the arguments."""
        if self._throttle.admit("unprintable", time.monotonic()) is not None:
            with suppress(OSError, ValueError, AttributeError):  # no reader, or no standard error
                self.stream.write(f"a log line of {place(record.pathname, record.lineno)} cannot be printed\n")
                self.flush()

    def flush(self) -> None:
        """Flushes; errors of the stream are ignored."""
        with suppress(OSError, ValueError, AttributeError):
            super().flush()

    def withhold(self) -> None:
        """Reserves the present standard error for this handler."""
        if self._withheld is None and self.stream is sys.stderr:
            self._withheld = Withheld.begin(_library_wrote)
            if self._withheld is not None:
                self.setStream(self._withheld.stream)

    def end(self) -> None:
        if self._withheld is not None:
            self.setStream(sys.stderr)
            self._withheld.end()
            self._withheld = None

    def _ours(self, record: logging.LogRecord) -> str:
        text = _text(record)
        error = _error_of(record)
        if error is None:
            return text
        more = self._throttle.admit((record.pathname, record.lineno, type(error)), time.monotonic())
        return f"{text} [{described(error)}; {'places as before' if more is None else places(error)}]"

    def _foreign(self, record: logging.LogRecord) -> str | None:
        """The line for another package's record; None for details below WARNING (unless at debug) and repetitions."""
        if record.levelno < logging.WARNING and logging.getLogger().level > logging.DEBUG:
            return None

        error = _error_of(record)
        kind = (record.name, record.pathname, record.lineno, type(error))
        more = self._throttle.admit(kind, time.monotonic())
        if more is None:
            return None

        text = f"reported by {place(record.pathname, record.lineno)}; text withheld"
        if error is not None:
            text = f"{kind_of_error(error)}{origin(error)}, {text}"
        if more:
            text += f" (and {more} more like it)"
        return text


def _text(record: logging.LogRecord) -> str:
    """The message of a record of our packages, with the exceptions among its arguments reduced."""
    template = described(record.msg) if isinstance(record.msg, BaseException) else str(record.msg)
    if isinstance(record.args, dict):
        return template % {name: _shown(value) for name, value in record.args.items()}
    if record.args:
        return template % tuple(map(_shown, record.args))
    return template


def _shown(value: object) -> object:
    if isinstance(value, BaseException):
        return described(value)
    return value


def _error_of(record: logging.LogRecord) -> BaseException | None:
    if isinstance(record.exc_info, tuple):
        return record.exc_info[1]
    return None


# --- what would otherwise be printed past the log -------------------------------------------------------------------

_lines = LimitedLog(log)


def _emit(level: int, text: str) -> None:
    _lines.line(level, text, text)


def _set_hooks() -> None:
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable
    threading.excepthook = _thread_failed
    warnings.showwarning = _warned


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        _emit(logging.CRITICAL, failure(error.with_traceback(trace)))


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        _emit(
            logging.ERROR,
            f"a thread ended by a fault ({described(args.exc_value)}; {places(args.exc_value)})",
        )


def _unraisable(args: Any) -> None:
    if args.exc_value is not None:
        _emit(
            logging.ERROR,
            f"an exception had nowhere to go ({described(args.exc_value)}; {places(args.exc_value)})",
        )


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _emit(
        logging.DEBUG,
        f"{identifier(category.__name__)} at {place(filename, lineno)}; text withheld",
    )


def _library_wrote(count: int) -> None:
    _lines.warning(
        _library_wrote,
        f"a library wrote {count} bytes to standard error; they are withheld",
    )


class Withheld:
    """File descriptor 2 redirected to a pipe whose bytes are counted and dropped; `stream` is what it was.

    llama.cpp, torch and llguidance (a Rust panic) write to it without any Python hook, and may quote tokens or texts.
    After a crash in native code `faulthandler` still prints the Python places, without values.
    """

    def __init__(self, stream: TextIO, reader: threading.Thread, crashes: bool) -> None:
        """`crashes`: whether crashes were printed before, to descriptor 2."""
        self.stream = stream
        self._reader = reader
        self._crashes = crashes

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
        reader = threading.Thread(target=_read_pipe, args=(out, wrote), name="stderr", daemon=True)
        reader.start()
        stream = os.fdopen(real, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        crashes = faulthandler.is_enabled()
        faulthandler.enable(stream)
        return cls(stream, reader, crashes)

    def end(self) -> None:
        with suppress(OSError, ValueError):  # its reader has gone
            sys.stderr.flush()
            self.stream.flush()
        os.dup2(self.stream.fileno(), 2)
        if self._crashes:
            faulthandler.enable(2)
        else:
            faulthandler.disable()
        self._reader.join(JOIN_S)
        with suppress(OSError):
            self.stream.close()


def _read_pipe(descriptor: int, wrote: Callable[[int], None]) -> None:
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while data := pipe.read(65536):
            wrote(len(data))
