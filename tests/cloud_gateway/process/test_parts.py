"""The gateway starts each part of its list, and gives the engine what they listen to requests with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from cloud_gateway.part import Foundation, GatewayPart, Running, Serving
from cloud_gateway.process.config import DaemonSection, GatewaySettings
from cloud_gateway.process.serve import Gateway
from edgespec.shared.starting import Starting
from tests.support.echo import MODEL, ByteText


class Listening(Running):
    """A part that listens to requests with itself."""

    def __init__(self, foundation: Foundation) -> None:
        self.foundation = foundation
        self.serving: list[Serving] = []

    def recording(self, serving: Serving) -> Any:
        self.serving.append(serving)
        return self


async def test_each_part_is_started_and_asked_for_a_listener(tmp_path: Path) -> None:
    settings = GatewaySettings(daemon=DaemonSection(state_dir=str(tmp_path)))
    parts = [GatewayPart("listening", start=Listening), GatewayPart("idle")]
    gateway = Gateway(settings, Starting("test"), parts=parts)
    models = cast(Any, SimpleNamespace(served=MODEL, text=ByteText()))

    recordings = gateway._recordings(models)

    (listening,) = recordings
    assert isinstance(listening, Listening)
    assert listening.foundation.settings is settings
    assert listening.foundation.keys is gateway.keys
    assert [serving.model for serving in listening.serving] == [MODEL]
