"""One measurement, and the file of measurements: JSON lines, appended one by one, robust to interruptions."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, Self

import msgspec
from msgspec import Meta

from edgespec.core.errors import UNDECODABLE, EdgespecError
from edgespec.core.protocol.messages import Text

VERSION = 1
_BEGINNING = b'{"v":1,'
"""A partial line with another beginning was not left by an interruption, and is not removed."""
_LONGEST_LINE = 1 << 16
Outcome = Literal[
    "ok",
    "dns",
    "refused",
    "unreachable",
    "tls",
    "timeout",
    "unauthorised",
    "rate-limited",
    "http-error",
    "server-error",
    "not-a-stream",
    "stream-error",
    "broken",
    "empty",
]
"""Results of a request (docs/survey.md)."""
Milliseconds = Annotated[float, Meta(ge=0, le=1e8)]


class SurveyFileError(EdgespecError):
    """A file of samples cannot be read or written, or holds something else; the text names it and the line."""

    exit_code = 65
    fault = "operator"


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One request. Durations in ms, None where a step was not reached; no prompt, completion, key or address."""

    v: int
    at: Annotated[float, Meta(ge=0, le=32_503_680_000)]
    """When it began, seconds since 1970-01-01 UTC."""
    source: Text
    """The machine that asked."""
    endpoint: Text
    region: Text = ""
    model: Text
    outcome: Outcome
    status: int | None = None
    """The HTTP status, where there was an answer."""
    dns_ms: Milliseconds | None = None
    """The name's resolution; None also for an address."""
    connect_ms: Milliseconds | None = None
    """The TCP handshake: about one round trip."""
    tls_ms: Milliseconds | None = None
    """The TLS handshake, with https."""
    ttft_ms: Milliseconds | None = None
    """From the connection being ready, when the request is sent, to the first token: one round trip and the wait."""
    total_ms: Milliseconds | None = None
    """From the connection being ready to the end of the answer."""
    chunks: int = 0
    tokens: int | None = None
    tokens_per_s: Annotated[float, Meta(ge=0)] | None = None
    """After the first token."""
    retry_after_s: Annotated[float, Meta(ge=0)] | None = None
    stalled_ms: Milliseconds = 0.0
    """Wait for a processor until the first token, where the system reports it: a bound of the error."""
    skipped: int = 0
    """Slots of the schedule left out before this one."""


class SampleFile:
    """A file opened for appending, by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file and removes a partial line left by an interruption. Raises SurveyFileError."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("a+b", buffering=0)
        except OSError as error:
            raise _cannot("write", path, error) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.earlier = read([path])
            """The samples that were there, in the order of the file."""
            self._cut()
        except BlockingIOError:
            self.close()
            raise SurveyFileError(f"{path}: another survey writes to this file; name another one with --out.") from None
        except OSError as error:
            self.close()
            raise _cannot("write", path, error) from None
        except EdgespecError:
            self.close()
            raise

    def append(self, sample: Sample) -> None:
        """Writes one line to the disk, completely or not at all. Raises SurveyFileError."""
        line = msgspec.json.encode(sample) + b"\n"
        try:
            size = os.fstat(self._file.fileno()).st_size
            try:
                if self._file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._file.fileno(), size)
                raise
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _cannot("write", self.path, error) from None

    def close(self) -> None:
        """Closes and unlocks the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        tail_at = self._file.seek(max(0, size - _LONGEST_LINE))
        tail = self._file.read()
        os.ftruncate(self._file.fileno(), tail_at + tail.rfind(b"\n") + 1)


def read(paths: Iterable[Path]) -> list[Sample]:
    """The samples of several files. A partial line at a file's end, left by an interruption, is ignored.

    Raises SurveyFileError naming the line that is no sample.
    """
    return [sample for path in paths for sample in _samples(path)]


def _samples(path: Path) -> Iterator[Sample]:
    decoder = msgspec.json.Decoder(Sample)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and line.startswith(_BEGINNING[: len(line)]):
                    return
                try:
                    yield _checked(decoder.decode(line))
                except (*UNDECODABLE, ValueError):
                    raise SurveyFileError(
                        f"{path}, line {number}: this is no sample of this program, version {VERSION}; "
                        "remove the line, or name another file."
                    ) from None
    except OSError as error:
        raise _cannot("read", path, error) from None


def _checked(sample: Sample) -> Sample:
    if sample.v != VERSION:
        raise ValueError("another version")
    return sample


def _cannot(what: str, path: Path, error: OSError) -> SurveyFileError:
    hint = ""
    if isinstance(error, FileNotFoundError) and what == "read":
        hint = "; run `python -m edgespec_lab.survey` first"
    return SurveyFileError(f"{path}: cannot {what} it ({error.strerror or error}){hint}.")
