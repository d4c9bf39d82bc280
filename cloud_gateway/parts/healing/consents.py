"""Which API keys consented to learning, in the list of keys and for one worker."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from msgspec.structs import replace

from cloud_gateway.auth import Key, KeyRing
from edgespec.core.errors import KeyStoreError
from edgespec.parts.healing.consent import MAX_KEYS, Consent, Consents, encode

log = logging.getLogger("cloud_gateway.parts.healing")

MAX_BYTES = 60_000
"""Of a list of consents; a message has room for 65,300."""


def set_consent(ring: KeyRing, named: str, learn: bool) -> Key:
    """Sets whether workers may learn from the texts of a key, by its id or name; returns it.

    Raises KeyStoreError: no such key, several of this name, or a key whose prompts no worker may see.
    """

    def changed(keys: dict[str, Key]) -> Key:
        ids = [key.id for key in keys.values() if named in (key.id, key.name) and key.revoked is None]
        if named in ids:
            ids = [named]
        if len(ids) > 1:
            raise KeyStoreError(f"{len(ids)} API keys are named '{named}': {', '.join(ids)}; give one's id.")
        if not ids:
            raise KeyStoreError(f"there is no valid API key '{named}'; 'cloud-gateway keys list' shows them.")

        key = keys[ids[0]]
        if learn and not key.offload:
            raise KeyStoreError(
                f"no worker may see the prompts of API key {key.id}, so none can learn from them; make a key with "
                "`--offload GROUP --learn`."
            )
        keys[key.id] = replace(key, learn=learn)
        return keys[key.id]

    key = ring.file.change(changed)
    log.info("workers may %s from texts of API key %s (%s)", "learn" if learn else "not learn", key.name, key.id)
    return key


def consenting(keys: Iterable[Key], groups: frozenset[str]) -> list[Key]:
    """The keys of which a worker of these groups may learn."""
    return [
        key for key in keys if key.learn and key.offload and key.revoked is None and not groups.isdisjoint(key.groups)
    ]


def message(tokenizer: bytes, keys: Iterable[Key]) -> Consents:
    """The consents of these keys, of the latest ones if they are too many for a message."""
    consents: list[Consent] = []
    room = MAX_BYTES
    for key in reversed(list(keys)):
        consent = Consent(key.id, key.cache_group)
        room -= len(encode(consent))
        if room < 0 or len(consents) == MAX_KEYS:
            log.warning("more API keys consented to learning than a worker is sent; the oldest ones are left out")
            break
        consents.append(consent)
    return Consents(tokenizer, consents)
