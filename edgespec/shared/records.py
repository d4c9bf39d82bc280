"""Records by key in one private JSON file that several processes read and change.

The file is replaced atomically under a lock, and read again when another process has replaced it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from edgespec.core.errors import UNDECODABLE, KeyStoreError
from edgespec.shared.files import locked, private_folder, read_private, write_private

Key = TypeVar("Key")
Record = TypeVar("Record")
Changed = TypeVar("Changed")


class RecordFile(Generic[Key, Record]):
    """The records of one file. Every method raises KeyStoreError if it is damaged, unreadable or not private."""

    def __init__(
        self,
        path: Path,
        decode: Callable[[bytes], Sequence[Record]],
        encode: Callable[[list[Record]], bytes],
        key: Callable[[Record], Key],
        remedy: str,
    ) -> None:
        """`decode` and `encode`: the whole file, as JSON; `remedy`: what to do about a damaged one."""
        self.path = path
        self._decode, self._encode, self._key, self._remedy = decode, encode, key, remedy
        self._records: dict[Key, Record] = {}
        self._stamp: tuple[int, ...] | None = ()

    def by_key(self) -> dict[Key, Record]:
        """Every record by its key, in the order in which they were added."""
        stamp = self._stamp_on_disk()
        if stamp != self._stamp:
            self._records, self._stamp = self._read(), stamp
        return self._records

    def change(self, change: Callable[[dict[Key, Record]], Changed]) -> Changed:
        """Reads, changes and writes the records under the lock; returns what `change` does."""
        private_folder(self.path.parent)
        with locked(self.path.parent):
            records = self._read()
            changed = change(records)
            write_private(self.path, msgspec.json.format(self._encode(list(records.values())), indent=2) + b"\n")
            self._records, self._stamp = records, ()  # read again: another process may write before a look at it
        return changed

    def _read(self) -> dict[Key, Record]:
        data = read_private(self.path)
        try:
            return {self._key(one): one for one in self._decode(data)} if data is not None else {}
        except UNDECODABLE as error:
            raise KeyStoreError(
                f"{self.path} is damaged ({error}); restore it from a backup, or remove it{self._remedy}."
            ) from None

    def _stamp_on_disk(self) -> tuple[int, ...] | None:
        try:
            info = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KeyStoreError(f"{self.path} cannot be read ({error.strerror or error}).") from None
        return info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode
