"""API keys: made once, shown once, stored as hashes, revoked while the gateway runs.

A key is `es-<id>-<secret>`: the id (8 characters) finds its record and may be shown and logged, the secret (43
characters of base 62, 256 bits from the operating system) is never stored. Only SHA-256(salt + secret) is: a slow hash
such as scrypt protects secrets of little entropy; with 256 random bits it would only delay every request.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import string
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from edgespec.core.errors import ClientError, KeyStoreError
from edgespec.core.pairing.groups import DEFAULT_GROUPS, Groups, parse_groups
from edgespec.shared.files import RecordFile

ALPHABET = string.digits + string.ascii_letters
ID_LENGTH = 8
SECRET_LENGTH = 43
NAME_LENGTH = 100
FILE_NAME = "api-keys.json"
SCOPE_BYTES = 16
"""Two keys of one gateway get the same cache scope with a probability of 2^-128."""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The stored record of one API key; times are Unix seconds, `salt` and `hash` hexadecimal.

    A field with its default is not written, so that an older version can read keys that do not use what it lacks.
    """

    id: Annotated[str, msgspec.Meta(min_length=ID_LENGTH, max_length=ID_LENGTH)]
    name: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH)]
    created: int
    salt: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2})+\Z")]
    hash: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    offload: bool = False
    """Whether requests with this key may be drafted on a worker, which then sees their prompts."""
    revoked: int | None = None
    cache_group: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH)] = ""
    """Keys of one group share the prefix caches; empty: this key shares them with no other."""
    groups: Groups = DEFAULT_GROUPS
    """Where `offload` is on: the groups of workers that may see its prompts."""
    operator: bool = False
    """Whether the live picture shows it all workers with their names."""
    learn: bool = False
    """Where `offload` is on: whether those workers may also keep its texts to learn from them."""

    def opens(self, secret: str) -> bool:
        """Whether `secret` belongs to this key and the key is not revoked; takes the same time either way."""
        return hmac.compare_digest(self.hash, _digest(self.salt, secret)) and self.revoked is None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    keys: list[Key] = []


NOBODY = Key(id="0" * ID_LENGTH, name="", created=0, salt="00", hash="0" * 64, revoked=0)
"""Compared where an id is unknown, so that unknown ids take as long as wrong secrets."""


class KeyRing:
    """The API keys in one file of the key folder, read again whenever the file changes.

    Several processes may use it at once. All methods raise KeyStoreError if the file cannot be read or written, is
    damaged, is gone after it was there, or is open to other users.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: that of edgespec/shared/keystore.py; the first `create` makes it."""
        self.file: RecordFile[str, Key] = RecordFile(
            folder / FILE_NAME,
            lambda data: msgspec.json.decode(data, type=_File).keys,
            lambda keys: msgspec.json.encode(_File(keys=keys)),
            lambda key: key.id,
            "make new keys",
        )
        self.used: dict[str, int] = {}
        """When this process last accepted each key, by id; not stored."""

    def check(self, authorization: str | None, *, booked: bool = True) -> Key:
        """The key that an `Authorization` header presents; `booked`: this is a use of it. Raises ClientError 401."""
        scheme, _, presented = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not presented.strip():
            raise _denied("Incorrect API key provided: none; send the header 'Authorization: Bearer es-...'.")

        prefix, _, rest = presented.strip().partition("-")
        key_id, _, secret = rest.partition("-")
        key = self.file.by_key().get(key_id, NOBODY)
        if not key.opens(secret) or prefix != "es":
            raise _denied(
                "Incorrect API key provided: it is wrong or was revoked; ask the operator of this gateway for one."
            )

        if booked:
            self.used[key.id] = int(time.time())

        return key

    def all(self) -> list[Key]:
        """All keys, revoked ones included, oldest first."""
        return list(self.file.by_key().values())

    def several(self) -> bool:
        """Whether more than one key is valid."""
        return sum(key.revoked is None for key in self.all()) > 1

    def create(
        self,
        name: str,
        *,
        offload: bool = False,
        groups: Sequence[str] = DEFAULT_GROUPS,
        cache_group: str = "",
        operator: bool = False,
        learn: bool = False,
        now: float | None = None,
    ) -> tuple[Key, str]:
        """Makes and stores a key; returns its record and the key itself, which is not stored.

        `groups`: of workers, where `offload` is on.
        """
        for what, text in (("name", name), ("cache group", cache_group)):
            if len(text) > NAME_LENGTH or not text.isprintable():
                raise KeyStoreError(f"the {what} of an API key is at most {NAME_LENGTH} printable characters.")
        try:
            allowed = parse_groups(groups)
        except ValueError as error:
            raise KeyStoreError(str(error)) from None

        secret = _random(SECRET_LENGTH)
        salt = secrets.token_hex(16)
        if now is None:
            now = time.time()
        created = int(now)

        def add(keys: dict[str, Key]) -> Key:
            key_id = _random(ID_LENGTH)
            while key_id in keys:
                key_id = _random(ID_LENGTH)
            keys[key_id] = Key(
                key_id,
                name,
                created,
                salt,
                _digest(salt, secret),
                offload,
                None,
                cache_group,
                allowed,
                operator,
                offload and learn,
            )
            return keys[key_id]

        key = self.file.change(add)
        return key, f"es-{key.id}-{secret}"

    def revoke(self, text: str, *, now: float | None = None) -> Key:
        """Revokes for good the key of this id, or the only valid one of this name; a running gateway refuses it from
        then on. Raises KeyStoreError: no such key, or several of this name."""

        def change(keys: dict[str, Key]) -> Key:
            named = [key.id for key in keys.values() if key.name == text and key.revoked is None]
            if text not in keys and len(named) > 1:
                raise KeyStoreError(f"{len(named)} API keys are named '{text}': {', '.join(named)}; give one's id.")

            key_id = text
            if text not in keys:
                key_id = next(iter(named), "")
            if not key_id:
                raise KeyStoreError(f"there is no API key '{text}'; 'cloud-gateway keys list' shows ids and names.")

            if keys[key_id].revoked is None:
                at = int(time.time() if now is None else now)
                keys[key_id] = msgspec.structs.replace(keys[key_id], revoked=at)
            return keys[key_id]

        return self.file.change(change)


class CacheScopes:
    """Requests reuse cached prefixes of their own scope only, which differs between gateways and between workers.

    The secret is never stored: the caches of the target and the local draft end with the process, and prefixes that
    workers still hold are not reused after a restart. So no worker can link a key's requests over restarts.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, key: Key) -> bytes:
        """The scope of a key: its own, or that of its cache group."""
        if key.cache_group:
            name = f"group {key.cache_group}"
        else:
            name = f"key {key.id}"
        return hmac.digest(self._secret, name.encode(), "sha256")[:SCOPE_BYTES]


def _denied(message: str) -> ClientError:
    return ClientError(message, status=401, code="invalid_api_key")


def _digest(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode("utf-8", "surrogateescape")).hexdigest()


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
