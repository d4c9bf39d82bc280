"""API keys: made once, shown once, stored as hashes, revoked while the gateway runs.

A key is `es-<id>-<secret>`: the id (8 characters) finds its record and may be shown and logged, the secret (43
characters of base 62, 256 bits from the operating system) is never stored. Only SHA-256(salt + secret) is: a slow hash
such as scrypt protects secrets that can be guessed, and 256 random bits cannot, so it would only slow every request.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
import string
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from edgespec.core.errors import ClientError, KeyStoreError

ALPHABET = string.digits + string.ascii_letters
ID_LENGTH, SECRET_LENGTH = 8, 43
FILE_NAME = "api-keys.json"


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored of one API key; times are Unix seconds, `salt` and `hash` hexadecimal."""

    id: Annotated[str, msgspec.Meta(min_length=ID_LENGTH, max_length=ID_LENGTH)]
    name: Annotated[str, msgspec.Meta(max_length=200)]
    created: int
    salt: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})+$")]
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    offload: bool = False
    """Whether prompts sent with this key may be drafted on a worker, which sees them (design section 9)."""
    revoked: int | None = None

    def opens(self, secret: str) -> bool:
        """Whether `secret` belongs to this key and the key is not revoked; takes the same time either way."""
        return hmac.compare_digest(self.hash, _digest(self.salt, secret)) and self.revoked is None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    keys: list[Key] = []


NOBODY = Key(id="0" * ID_LENGTH, name="", created=0, salt="00", hash="0" * 64, revoked=0)
"""Compared against where an id is unknown, so that unknown ids take as long as wrong secrets."""


class KeyRing:
    """The API keys in one 0600 file, read again whenever the file changes.

    Several processes may use it at once: changes hold a lock file and replace the file in one step.
    All methods raise KeyStoreError where the file cannot be read or written, is damaged, or is open to other users.
    """

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE_NAME
        self._stamp: tuple[int, int, int] | None = None
        self._keys: dict[str, Key] = {}

    def check(self, authorization: str | None) -> Key:
        """The key that an `Authorization` header presents. Raises ClientError 401."""
        scheme, _, presented = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not presented.strip():
            raise _denied("No API key was given: send the header 'Authorization: Bearer es-...'.")
        prefix, _, rest = presented.strip().partition("-")
        key_id, _, secret = rest.partition("-")
        self._refresh()
        key = self._keys.get(key_id, NOBODY)
        if not key.opens(secret) or prefix != "es":
            raise _denied("The API key is wrong or was revoked; ask the operator of this gateway for another one.")
        return key

    def keys(self) -> list[Key]:
        """All keys, revoked ones included, oldest first."""
        self._refresh()
        return list(self._keys.values())

    def create(self, name: str, *, offload: bool = False, now: float | None = None) -> tuple[Key, str]:
        """Makes and stores a key; returns its record and the key itself, which is not kept anywhere."""
        secret, salt = _random(SECRET_LENGTH), secrets.token_hex(16)
        created = int(time.time() if now is None else now)
        with self._locked():
            key_id = _random(ID_LENGTH)
            while key_id in self._keys:
                key_id = _random(ID_LENGTH)
            key = Key(key_id, name, created, salt, _digest(salt, secret), offload)
            self._write([*self._keys.values(), key])
        return key, f"es-{key.id}-{secret}"

    def revoke(self, key_id: str, *, now: float | None = None) -> Key:
        """Revokes for good; a running gateway refuses the key from then on. Raises KeyStoreError: no such key."""
        with self._locked():
            key = self._keys.get(key_id)
            if key is None:
                raise KeyStoreError(f"there is no API key '{key_id}'; 'cloud-gateway keys list' shows the ids")
            if key.revoked is None:
                key = msgspec.structs.replace(key, revoked=int(time.time() if now is None else now))
                self._write([key if other.id == key_id else other for other in self._keys.values()])
        return key

    def _refresh(self) -> None:
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                if stamp == self._stamp:
                    return
                if stat.st_mode & 0o077:
                    raise KeyStoreError(f"{self.path} is open to other users; run 'chmod 600 {self.path}'")
                self._keys = {key.id: key for key in msgspec.json.decode(file.read(), type=_File).keys}
                self._stamp = stamp
        except FileNotFoundError:
            self._keys, self._stamp = {}, None
        except OSError as error:
            raise KeyStoreError(f"the API keys in {self.path} cannot be read: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise KeyStoreError(f"{self.path} is damaged ({error}); restore or remove it") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self.path.with_suffix(".lock"), "w", opener=_private) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._refresh()
                yield
        except OSError as error:
            raise KeyStoreError(f"the API keys in {self.path} cannot be changed: {error.strerror}") from error

    def _write(self, keys: list[Key]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_File(keys=keys)), indent=1) + b"\n"
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".api-keys-")  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self.path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._stamp = None


def _denied(message: str) -> ClientError:
    return ClientError(message, status=401, code="invalid_api_key")


def _digest(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode("utf-8", "surrogateescape")).hexdigest()


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
