"""Files that only their owner may read, and that are written atomically; and records in one such file.

A file is written under a temporary name that is created exclusively, fsynced, and renamed; then the folder is fsynced.
A lock on the folder keeps two processes from doing so at once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from edgespec.core.errors import UNDECODABLE, AddressError, KeyStoreError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def private_folder(folder: Path) -> None:
    """Creates a folder with mode 0700, or checks the existing one. Raises KeyStoreError."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise _cannot("make", folder, error) from None
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Checks that a folder, if there is one, is this user's alone; creates nothing. Raises KeyStoreError."""
    try:
        info = folder.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot("open", folder, error) from None
    if not stat.S_ISDIR(info.st_mode):
        raise KeyStoreError(f"{folder} is not a folder; move it out of the way.")

    _require_private(folder, info, 0o700)


def read_private(path: Path) -> bytes | None:
    """The content of a file that only its owner may read; None if there is no such file. Raises KeyStoreError."""
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise KeyStoreError(f"{path} is a symbolic link; keys are read from plain files only.") from None
        raise _cannot("read", path, error) from None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise KeyStoreError(f"{path} is not a plain file; move it out of the way.")
        _require_private(path, info, 0o600)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise _cannot("read", path, error) from None
    finally:
        os.close(descriptor)


def write_private(path: Path, data: bytes) -> None:
    """Writes a file (0600) atomically; to be called under `locked`. Raises KeyStoreError."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)  # left by a process that died; the lock excludes others
        descriptor = os.open(temporary, _CREATE, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o600)  # independent of the umask
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot("write", path, error) from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes and threads from changing the folder's files. Raises KeyStoreError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise _cannot("lock", folder, error) from None
    try:
        yield
    finally:
        os.close(descriptor)  # ends the lock


@contextlib.contextmanager
def held(folder: Path, what: str) -> Iterator[None]:
    """Keeps a second program of the same kind off this state folder, until the context is left.

    The lock is on the folder itself (flock(2)), so it does not end if files in it are deleted, as that of a lock file
    does; and it ends with the process. `what`: the program, for the text. Raises AddressError if another one has it.
    A user who can open the folder can lock it, so the folder is closed to other users first.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot("lock", folder, error) from None
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o700)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AddressError(
                f"A {what} is running already on the state folder {folder}: stop it, or change `daemon.state_dir`. If "
                f"`status` does not find it, its control socket was deleted: end it by its process id."
            ) from None
        except OSError as error:
            raise _cannot("lock", folder, error) from None
        yield
    finally:
        os.close(descriptor)


def _require_private(path: Path, info: os.stat_result, mode: int) -> None:
    if info.st_uid != os.geteuid():
        raise KeyStoreError(f"{path} belongs to the user with id {info.st_uid}; run this command as that user.")
    if stat.S_IMODE(info.st_mode) & 0o077:
        raise KeyStoreError(
            f"{path} is open to other users (mode {stat.S_IMODE(info.st_mode):04o}); "
            f"run `chmod {mode:o} {shlex.quote(str(path))}`."
        )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot(what: str, path: Path, error: OSError) -> KeyStoreError:
    if error.errno in _FULL:
        return KeyStoreError(f"{path} cannot be written: the disk is full; nothing was changed, make room.")
    if isinstance(error, PermissionError):
        owner = "; run this command as the user who owns it"
    else:
        owner = ""
    return KeyStoreError(f"{path}: cannot {what} it ({error.strerror or error}){owner}.")


Key = TypeVar("Key")
Record = TypeVar("Record")
Changed = TypeVar("Changed")


UNKNOWN_FIELD = "contains unknown field"
"""msgspec's words for a field that a struct does not have."""


class _Number(msgspec.Struct):
    """The number of a file's format, by either of the names that files give it."""

    version: int = 0
    format: int = 0

    @property
    def number(self) -> int:
        return max(self.version, self.format)


FORMAT = 1
"""Of the files of records; it is raised whenever a field is added, removed or changed."""


class RecordFile(Generic[Key, Record]):
    """The records of one JSON file that several processes read and change, by key. It is replaced under the lock, and
    read again when another process has replaced it.

    A file that this object has read once and that is gone later counts as damaged, not as empty: its folder may be
    unmounted, or moved away while a backup is restored, and an empty list would unpair every machine. A file that was
    never there is an empty list. Nothing is written while the file is gone: a new folder in its place would be in the
    way of the returning one.

    Every method raises KeyStoreError if the file is gone, damaged, unreadable or not private.
    """

    def __init__(
        self,
        path: Path,
        decode: Callable[[bytes], Sequence[Record]],
        encode: Callable[[list[Record]], bytes],
        key: Callable[[Record], Key],
        remedy: str,
    ) -> None:
        """`decode` and `encode`: the whole file, as JSON; `remedy`: what follows if it is begun again, as a clause."""
        self.path = path
        self._decode = decode
        self._encode = encode
        self._key = key
        self._remedy = remedy
        self._records: dict[Key, Record] = {}
        self._stamp: tuple[int, ...] | None = ()
        self._was_there = False

    def by_key(self) -> dict[Key, Record]:
        """Every record by its key, in the order in which they were added."""
        stamp = self._stamp_on_disk()
        if stamp != self._stamp:
            self._records = self._read()
            self._stamp = stamp
        return self._records

    def change(self, change: Callable[[dict[Key, Record]], Changed]) -> Changed:
        """Reads, changes and writes the records under the lock; returns what `change` does."""
        if self._was_there:
            self._read()  # raises before anything is made, if the file is gone
        private_folder(self.path.parent)
        with locked(self.path.parent):
            records = self._read()
            changed = change(records)
            write_private(
                self.path,
                msgspec.json.format(self._encode(list(records.values())), indent=2) + b"\n",
            )
            self._records = records
            self._stamp = ()  # read again: another process may write before a look at it
            self._was_there = True

        return changed

    def _read(self) -> dict[Key, Record]:
        data = read_private(self.path)
        if data is None and self._was_there:
            raise KeyStoreError(
                f"{self.path} is gone, and was there before: mount or restore its folder. A restart without it begins "
                f"with an empty list; then {self._remedy}."
            )

        try:
            records = [] if data is None else self._decode(data)
        except UNDECODABLE as error:
            if data is not None and (newer := self._newer(data, error)):
                raise KeyStoreError(
                    f"{self.path} was written by a newer version of edgespec ({newer}): install that version again, or "
                    "put back the copy of the folder from before the upgrade (CHANGELOG.md). Nothing was changed."
                ) from None
            raise KeyStoreError(
                f"{self.path} is damaged ({error}); restore it from a backup, or remove it, restart and {self._remedy}."
            ) from None
        self._was_there = data is not None
        return {self._key(record): record for record in records}

    def _newer(self, data: bytes, error: Exception) -> str:
        """Why a file that cannot be decoded is one of a later version; empty if it is damaged."""
        try:
            number = msgspec.json.decode(data, type=_Number).number
        except UNDECODABLE:
            return ""

        if number > FORMAT:
            return f"its format is {number}, this version reads up to {FORMAT}"
        if UNKNOWN_FIELD in str(error):
            return str(error)
        return ""

    def _stamp_on_disk(self) -> tuple[int, ...] | None:
        try:
            info = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KeyStoreError(f"{self.path} cannot be read ({error.strerror or error}).") from None

        return info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode
