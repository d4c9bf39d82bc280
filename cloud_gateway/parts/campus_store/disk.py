"""Stored texts on disk: a file for each API key, so that the texts of a key are deleted with one file.

A file begins with the name of the model whose tokens it has, in a line. Each text is a header and its tokens
(`index.backwards`). The header has the time, the number of tokens, and a checksum of the time and the tokens. Files
have mode 0600, in a folder of mode 0700. They are not encrypted: the key would lie beside them.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from cloud_gateway.parts.campus_store.index import TOKEN_BYTES, StoredText
from edgespec.core.errors import KeyStoreError
from edgespec.shared.files import locked, private_folder, read_private, write_private

log = logging.getLogger("cloud_gateway.parts.campus_store")

SUFFIX = ".texts"
HEADER = struct.Struct(">III")
MAGIC = b"edgespec texts 1, tokens of "
CLOSED = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Disk:
    """The files of one gateway. All methods but `stored` and `bytes_of` raise KeyStoreError."""

    def __init__(self, folder: Path, model: str, vocab_size: int) -> None:
        """`model`: name of the model. Makes the folder."""
        private_folder(folder)
        self._folder = folder
        self._vocab_size = vocab_size
        self._first_line = MAGIC + ascii(f"{model}, {vocab_size}").encode() + b"\n"

    def stored(self) -> list[str]:
        """Ids of the API keys that have a file."""
        return keys_in(self._folder)

    def bytes_of(self, key: str) -> int:
        return bytes_of(self._folder, key)

    def read(self, key: str) -> list[StoredText]:
        """The texts of a key, oldest first. What follows a damaged one is left out, with a line in the log, and so is a
        file of another model.
        """
        data = read_private(path_of(self._folder, key)) or b""
        if not data.startswith(self._first_line):
            log.warning("the stored texts of API key %s are of another model or damaged, and are not used", key)
            return []

        records: list[StoredText] = []
        start = len(self._first_line)
        while start < len(data):
            record = self._record(key, data, start)
            if record is None:
                log.warning("the stored texts of API key %s are damaged behind text %d", key, len(records))
                break
            records.append(record)
            start += HEADER.size + len(record.data)
        return records

    def append(self, record: StoredText) -> None:
        """Stores one more text of its key."""
        path = path_of(self._folder, record.key)
        try:
            descriptor = os.open(path, CLOSED, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                os.fchmod(descriptor, 0o600)
                if not file.tell():
                    file.write(self._first_line)
                file.write(_encoded(record))
        except OSError as error:
            raise KeyStoreError(f"{path} cannot be written ({error.strerror or error}).") from None

    def replace(self, key: str, records: Iterable[StoredText]) -> None:
        """Makes these, oldest first, the texts of a key."""
        with locked(self._folder):
            write_private(path_of(self._folder, key), self._first_line + b"".join(map(_encoded, records)))

    def delete(self, key: str) -> bool:
        """Deletes the texts of a key; whether it had any."""
        return delete_texts(self._folder, key)

    def _record(self, key: str, data: bytes, start: int) -> StoredText | None:
        """The text that begins there; None if it is damaged."""
        body = start + HEADER.size
        if body > len(data):
            return None

        time, count, checksum = HEADER.unpack_from(data, start)
        tokens = data[body : body + TOKEN_BYTES * count]
        record = StoredText(key, time, tokens)
        if not count or len(tokens) != TOKEN_BYTES * count or _checksum(record) != checksum:
            return None
        if max(np.frombuffer(tokens, dtype=">u4")[:-1], default=0) >= self._vocab_size:
            return None
        return record


def keys_in(folder: Path) -> list[str]:
    """Ids of the API keys that have a file in this folder."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}"))


def bytes_of(folder: Path, key: str) -> int:
    """The size of a key's file; 0 if it has none."""
    try:
        return path_of(folder, key).stat().st_size
    except OSError:
        return 0


def delete_texts(folder: Path, key: str) -> bool:
    """Deletes the file of a key; whether there was one. Raises KeyStoreError."""
    try:
        path_of(folder, key).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise KeyStoreError(f"{path_of(folder, key)} cannot be deleted ({error.strerror or error}).") from None
    return True


def path_of(folder: Path, key: str) -> Path:
    """The file of a key."""
    return folder / f"{key}{SUFFIX}"


def _encoded(record: StoredText) -> bytes:
    return HEADER.pack(record.time, len(record.data) // TOKEN_BYTES, _checksum(record)) + record.data


def _checksum(record: StoredText) -> int:
    return zlib.crc32(record.data, record.time)
