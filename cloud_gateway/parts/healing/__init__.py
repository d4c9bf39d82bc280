"""Shows workers that learn which API keys consented, and which requests are theirs (docs/learning.md).

A key consents by `keys create --learn`, and `cloud-gateway learning` changes that later. The worker's part of this name
keeps the texts and learns from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloud_gateway.part import Foundation, GatewayPart, Operating, Running, Serving
from cloud_gateway.parts.healing.verb import LearningVerb

if TYPE_CHECKING:
    from cloud_gateway.auth import KeyRing
    from cloud_gateway.engine.exchange import Recording
    from cloud_gateway.parts.healing.sender import Sender
    from edgespec.shared.control import Handler


class Consenting(Running):
    """Sends consents while the gateway serves."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys
        self._sender: Sender | None = None

    def recording(self, serving: Serving) -> Recording:
        from cloud_gateway.parts.healing.sender import Announcing

        return Announcing(self._made_sender())

    def operates(self, gateway: Operating) -> None:
        self._made_sender().start(gateway.workers)

    def _made_sender(self) -> Sender:
        """An engine elsewhere, as vLLM, has no recordings: its workers are sent consents, and no request's key."""
        from cloud_gateway.parts.healing.sender import Sender

        if self._sender is None:
            self._sender = Sender(self._keys)
        return self._sender

    def handlers(self) -> Mapping[str, Handler]:
        return {"learning": self._set}

    async def close(self) -> None:
        if self._sender is not None:
            self._sender.stop()

    async def _set(self, key: str, learn: bool) -> dict[str, object]:
        """Changes the consent of a key; every linked worker is sent it within a second. Raises KeyStoreError."""
        import asyncio

        from cloud_gateway.parts.healing.consents import set_consent

        changed = await asyncio.to_thread(set_consent, self._keys, key, learn)
        return {"key": changed.id, "learn": changed.learn}


def _start(gateway: Foundation) -> Running:
    return Consenting(gateway.keys)


PART = GatewayPart("healing", verbs=[LearningVerb()], start=_start)
