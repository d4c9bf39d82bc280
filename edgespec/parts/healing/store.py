"""Texts to learn from, on disk: a file for each, so that the oldest, or those of a key, are deleted by deleting files.

    learning/                       in the worker's state folder, mode 0700
        gateway                     the key of the gateway that they come from; those of another one are deleted
        SCOPE/                      an API key, or a cache group: a hash of its name
            scope                   the name, and the digest of the tokenizer
            keys/KEY/TIME-NUMBER    a text of an API key, mode 0600
            draft.gguf, .state      what was learnt from these texts; it is deleted with any key of the scope
            learnt                  when, and how often it was right on the texts that were held back

Files are not encrypted: the key would lie beside them. The gateway's consents decide what may be here; a text that is
too old, or the oldest one if they take more than their room, is deleted with the next one that comes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import struct
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgespec.core.errors import UNDECODABLE, KeyStoreError
from edgespec.parts.healing.collector import Collected
from edgespec.shared.files import private_folder, read_private, write_private

log = logging.getLogger("edgespec.parts.healing")

FOLDER = "learning"
KEYS = "keys"
GATEWAY = "gateway"
SCOPE = "scope"
DRAFT = "draft.gguf"
LEARNT = "learnt"
MIN_TEXTS = 32
"""Of a scope, before anything is learnt from them; an eighth of them is held back."""
MIN_NEW = 16
"""Texts after which a scope is learnt from again."""
DAY_S = 86400
BLOCK_BYTES = 4096
"""What a file takes at least: many small texts must not take more of the disk than is counted."""
HEADER = struct.Struct("<8sIII")
"""Mark, tokens, tokens of the prompt, checksum."""
MARK = b"edgetxt1"
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class KeptLimits:
    """What the owner allows."""

    bytes: int
    days: int


class ScopeFile(msgspec.Struct, frozen=True):
    """The content of `scope`."""

    name: str
    tokenizer: str
    """Its digest, in hexadecimal."""


class Learnt(msgspec.Struct, frozen=True):
    """The content of `learnt`: the result of the latest trial."""

    time: int
    """Unix seconds."""
    draft: str
    """Digest of the draft model of the worker that was trained, in hexadecimal."""
    step: int
    """Steps of training until then."""
    texts: int
    before: float
    """How often the draft in use was right on the texts that are held back, and the new one."""
    after: float
    kept: bool
    """Whether a draft is kept, of this trial or an earlier one."""


@dataclass(frozen=True, slots=True)
class LearntDraft:
    """What was learnt from the texts of one scope, for people."""

    scope: str
    trial: Learnt
    path: Path | None
    """Of the draft; None if none is kept."""


@dataclass(frozen=True, slots=True)
class KeptText:
    """A text that is read again."""

    tokens: array[int]
    prompt: int
    """How many of them are the prompt."""


@dataclass(frozen=True, slots=True)
class KeptRow:
    """What is stored of one key, for people."""

    key: str
    scope: str
    texts: int
    bytes: int
    oldest: int
    """Unix seconds."""


class LearningStore:
    """The texts of one worker. For one thread at a time. All methods raise KeyStoreError."""

    def __init__(
        self,
        folder: Path,
        gateway: bytes,
        limits: KeptLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Makes the folder; deletes the texts of another gateway, which cannot say any more that consent has ended."""
        private_folder(folder)
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._number = 0
        self._follow(gateway)
        kept = sorted(kept_files(folder), key=lambda path: path.name)
        self._texts = deque((path, _charged(path)) for path in kept)
        self._bytes = sum(size for _, size in self._texts)
        self.trim()

    def _follow(self, gateway: bytes) -> None:
        named = read_private(self._folder / GATEWAY)
        if named is not None and named != gateway.hex().encode():
            log.warning("texts to learn from of another gateway are deleted")
            delete_all(self._folder)
            private_folder(self._folder)
        self.name_gateway(gateway)

    def name_gateway(self, gateway: bytes) -> None:
        """The gateway has this key now; it may have rotated it."""
        write_private(self._folder / GATEWAY, gateway.hex().encode())

    def keep_only(self, scopes: Mapping[str, str], tokenizer: bytes) -> int:
        """Deletes the texts of all keys but these, each with its scope, and what was learnt from them; how many keys.

        Also those in tokens of another tokenizer.
        """
        withdrawn = 0
        for folder in scope_folders(self._folder):
            about = read_scope(folder)
            if about is None or about.tokenizer != tokenizer.hex():
                withdrawn += len(kept_keys(folder))
                _delete(folder)
                continue
            for key in kept_keys(folder):
                if scopes.get(key) != about.name:
                    withdrawn += 1
                    delete_key(folder, key)
        self._forget_missing()
        return withdrawn

    def add(self, text: Collected, tokenizer: bytes) -> None:
        """Stores one more text, and deletes the oldest ones if there is no room for it."""
        folder = self._folder / scope_name(text.scope)
        place = folder / KEYS / text.key
        private_folder(place)
        if not (folder / SCOPE).exists():
            write_private(
                folder / SCOPE,
                msgspec.json.encode(
                    ScopeFile(
                        text.scope,
                        tokenizer.hex(),
                    )
                ),
            )

        self._number += 1
        path = place / f"{int(self._clock()):010}-{self._number:08}"
        data = _encoded(text)
        try:
            with os.fdopen(os.open(path, CREATE, 0o600), "wb") as file:
                file.write(data)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise KeyStoreError(f"{path} cannot be written ({error.strerror or error}).") from None
        self._texts.append((path, _charged(path)))
        self._bytes += self._texts[-1][1]
        self.trim()

    def trim(self) -> None:
        """Deletes texts that are too old, or too many."""
        oldest = self._clock() - self._limits.days * DAY_S
        while self._texts and (self._bytes > self._limits.bytes or _time(self._texts[0][0]) < oldest):
            path, size = self._texts.popleft()
            self._bytes -= size
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                path.parent.rmdir()  # if it was the last one of the key
        for folder in scope_folders(self._folder):
            if not kept_keys(folder):
                _delete(folder)

    def forget(self, who: str) -> int:
        """As `forget_texts`."""
        count = forget_texts(self._folder, who)
        self._forget_missing()
        return count

    def _forget_missing(self) -> None:
        self._texts = deque((path, size) for path, size in self._texts if path.exists())
        self._bytes = sum(size for _, size in self._texts)


def kept_rows(folder: Path) -> list[KeptRow]:
    """What is stored of each key."""
    found: list[KeptRow] = []
    for scope in scope_folders(folder):
        about = read_scope(scope)
        for key in kept_keys(scope):
            files = sorted((scope / KEYS / key).iterdir(), key=lambda path: path.name)
            if files:
                found.append(
                    KeptRow(
                        key,
                        about.name if about is not None else "?",
                        len(files),
                        sum(map(_charged, files)),
                        _time(files[0]),
                    )
                )
    return found


def learnt_drafts(folder: Path) -> list[LearntDraft]:
    """The latest trial of each scope."""
    found: list[LearntDraft] = []
    for scope in scope_folders(folder):
        about = read_scope(scope)
        trial = read_learnt(scope)
        if about is None or trial is None:
            continue
        path = None
        if trial.kept:
            path = scope / DRAFT
        found.append(
            LearntDraft(
                about.name,
                trial,
                path,
            )
        )
    return found


def forget_texts(folder: Path, who: str) -> int:
    """Deletes the texts of a key or a cache group, or all if `who` is empty, and what was learnt from them.

    Returns how many texts there were. Raises KeyStoreError.
    """
    count = 0
    for scope in scope_folders(folder):
        about = read_scope(scope)
        whole = not who or about is None or about.name in (who, f"group {who}")
        for key in kept_keys(scope):
            if whole or key == who:
                count += len(list((scope / KEYS / key).iterdir()))
                delete_key(scope, key)
        if whole:
            _delete(scope)
    return count


def delete_all(folder: Path) -> None:
    """Deletes all that is stored and learnt. Raises KeyStoreError."""
    if folder.exists():
        _delete(folder)


def delete_key(scope: Path, key: str) -> None:
    """Deletes the texts of a key, and all that was learnt from texts of its scope."""
    for path in scope.iterdir():
        if path.name not in (KEYS, SCOPE):
            _delete(path)
    _delete(scope / KEYS / key)
    if not kept_keys(scope):
        _delete(scope)


def scope_name(scope: str) -> str:
    """The folder of a scope: its name may hold any character."""
    return hashlib.sha256(scope.encode()).hexdigest()[:32]


def scope_folders(folder: Path) -> list[Path]:
    """One for each scope."""
    if not folder.exists():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def kept_keys(scope: Path) -> list[str]:
    """Ids of the API keys that have texts in a scope."""
    try:
        return sorted(path.name for path in (scope / KEYS).iterdir())
    except FileNotFoundError:
        return []


def kept_files(folder: Path) -> Iterator[Path]:
    """The files of all texts."""
    for scope in scope_folders(folder):
        yield from texts_of(scope)


def texts_of(scope: Path) -> Iterator[Path]:
    """The files of the texts of one scope, by its folder."""
    for key in kept_keys(scope):
        with contextlib.suppress(FileNotFoundError):  # the key's consent has just ended
            yield from (scope / KEYS / key).iterdir()


def read_scope(scope: Path) -> ScopeFile | None:
    """What the texts of a scope have in common; None if it cannot be read, so that nothing is learnt from them."""
    try:
        return msgspec.json.decode(
            read_private(scope / SCOPE) or b"",
            type=ScopeFile,
        )
    except (KeyStoreError, *UNDECODABLE):
        return None


def read_learnt(scope: Path) -> Learnt | None:
    """The latest trial of a scope; None if nothing was learnt from it yet."""
    try:
        return msgspec.json.decode(
            read_private(scope / LEARNT) or b"",
            type=Learnt,
        )
    except (KeyStoreError, *UNDECODABLE):
        return None


def read_text(path: Path) -> KeptText | None:
    """A stored text; None if its file is damaged."""
    try:
        data = path.read_bytes()
        mark, count, prompt, checksum = HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None

    body = data[HEADER.size :]
    tokens = array("I")
    if mark != MARK or len(body) != count * tokens.itemsize or zlib.crc32(body) != checksum or prompt >= count:
        return None
    tokens.frombytes(body)
    return KeptText(tokens, prompt)


def _encoded(text: Collected) -> bytes:
    body = array("I", text.tokens).tobytes()
    return HEADER.pack(MARK, len(text.tokens), text.prompt, zlib.crc32(body)) + body


def _time(path: Path) -> int:
    """When a text was stored, from its name."""
    try:
        return int(path.name.partition("-")[0])
    except ValueError:
        return 0


def _charged(path: Path) -> int:
    """The bytes of the disk that a text counts for."""
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return -(-max(size, 1) // BLOCK_BYTES) * BLOCK_BYTES


def _delete(path: Path) -> None:
    """Deletes a file, or a folder with all that is in it. Raises KeyStoreError."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise KeyStoreError(f"{path} cannot be deleted ({error.strerror or error}).") from None
