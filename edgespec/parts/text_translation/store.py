"""The target's tokenizer as the gateway of one pairing sent it: one file, and the times at which it was fetched.

A gateway chooses what it sends, so this bounds what it can cost: the disk by one file of a pairing, and the network and
the processor by four fetches an hour, of which each may end in a trial (`edgespec.llamacpp.trial`). A file
that was refused is remembered by its SHA-256 for an hour, in which it is not fetched again.
"""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from edgespec.shared.folders import cache_dir

MAX_FETCHES = 4
"""Begun in PERIOD_S: an operator may change the target and change it back, and a connection may be lost."""
PERIOD_S = 3600.0
MAX_FILES = 8
"""Tokenizers in the folder, of all pairings of all workers of this user; the oldest are deleted."""


class TokenizerHistory(Struct, frozen=True):
    """Written beside the file, so that a worker that is started again has the same bounds."""

    fetched_at: tuple[float, ...] = ()
    """Unix times (s) of the latest fetches, at most MAX_FETCHES."""
    refused: str = ""
    """SHA-256 (hex) of the tokenizer that was refused last; empty: none was."""
    refused_at: float = 0.0
    because: str = ""
    """Why, as the end of a sentence."""


class TokenizerStore:
    """For one worker and one pairing. Files that cannot be written cost another fetch."""

    def __init__(self, worker: str, paired_at: int) -> None:
        """`worker`: its key id; `paired_at`: of its pairing, which stays the same when the gateway rotates its key."""
        self._folder = cache_dir() / "tokenizers"
        self._file = self._folder / f"{worker}-{paired_at}"
        self._record = self._file.with_suffix(".json")
        self._history = self._read()

    def next_at(self, now: float) -> float | None:
        """Unix time from which another tokenizer may be fetched; None if one may be now."""
        # A time in the future was written before the clock was set back.
        recent = [min(at, now) for at in self._history.fetched_at if at > now - PERIOD_S]
        if len(recent) >= MAX_FETCHES:
            return recent[0] + PERIOD_S
        return None

    def begin(self, now: float) -> None:
        """A tokenizer that is not kept is fetched from now on."""
        fetched_at = (*self._history.fetched_at, now)[-MAX_FETCHES:]
        self._write(msgspec.structs.replace(self._history, fetched_at=fetched_at))

    def kept(self, digest: bytes) -> bytes | None:
        """The file of this SHA-256 as it was fetched before; None if it is not there, or no longer the same."""
        try:
            data = self._file.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).digest() == digest:
            return data
        return None

    def keep(self, data: bytes) -> None:
        """Stores it in the place of the former one, and deletes the oldest of other pairings."""
        with suppress(OSError):
            _replace(self._file, data)
            files = [path for path in self._folder.iterdir() if path.suffix != ".json"]
            files.sort(key=lambda path: path.stat().st_mtime, reverse=True)
            for path in files[MAX_FILES:]:
                path.unlink(missing_ok=True)
                path.with_suffix(".json").unlink(missing_ok=True)

    def refuse(self, digest: bytes, because: str, now: float) -> None:
        """The tokenizer of this SHA-256 is not fetched again for PERIOD_S."""
        changes = {"refused": digest.hex(), "refused_at": now, "because": because}
        self._write(msgspec.structs.replace(self._history, **changes))

    def refusal(self, digest: bytes, now: float) -> str:
        """Why the tokenizer of this SHA-256 was refused lately; empty if it was not."""
        history = self._history
        lately = abs(now - history.refused_at) < PERIOD_S
        if lately and history.refused == digest.hex():
            return history.because
        return ""

    def _read(self) -> TokenizerHistory:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=TokenizerHistory)
        except (OSError, msgspec.DecodeError):
            return TokenizerHistory()

    def _write(self, history: TokenizerHistory) -> None:
        self._history = history
        with suppress(OSError):
            _replace(self._record, msgspec.json.encode(history))


def _replace(place: Path, data: bytes) -> None:
    """Writes a file as a whole. Raises OSError."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".part-", delete=False) as part:
        part.write(data)
    Path(part.name).replace(place)
