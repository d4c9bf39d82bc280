"""What a gateway sends to workers that learn: which API keys consented, and which requests are theirs.

Both travel as `Extra` messages of the kind `learn`. `Consents` is always the whole list: a key that is not in it has no
consent, or none any more. It comes before the first `Learn`, again after each change, and after each new link, so that
a worker that was away deletes what it must.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from edgespec.core.protocol.messages import Bytes32, Text, decoded

KIND = "learn"
MAX_KEYS = 256
"""Keys that one worker may learn from."""
KeyId = Annotated[str, Meta(pattern=r"^[0-9A-Za-z]{8}\Z")]
"""It names a folder at the worker, so it has no other character."""


class Consent(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The texts of this API key may be kept and learnt from."""

    key: KeyId
    group: Text = ""
    """Its cache group: what is learnt from one member's texts drafts for the others too; empty: for this key alone."""

    @property
    def scope(self) -> str:
        """What shares a draft."""
        if self.group:
            return f"group {self.group}"
        return f"key {self.key}"


class Consents(Struct, array_like=True, forbid_unknown_fields=True, frozen=True, tag="consents"):
    """All keys that consented and whose requests this worker may draft."""

    tokenizer: Bytes32
    """The digest of the target's tokenizer, as in the handshake."""
    keys: Annotated[list[Consent], Meta(max_length=MAX_KEYS)]


class Learn(Struct, array_like=True, forbid_unknown_fields=True, frozen=True, tag="learn"):
    """The next `open` of this request is of that key."""

    request: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    key: KeyId


encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Consents | Learn).decode


def read_consent(data: bytes) -> Consents | Learn:
    """A message off the wire. Raises RemoteProtocolError (`malformed`), whatever the bytes are."""
    return decoded(_decode, data, "a message about consent to learning")
