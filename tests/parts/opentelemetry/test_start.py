"""The part's start: requests become spans if the environment names a collector, and otherwise nothing listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_gateway.auth import KeyRing
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.part import Foundation, LinkIdentity, Running, Serving
from cloud_gateway.parts.opentelemetry import PART, spans
from cloud_gateway.process.config import GatewaySettings
from edgespec.core.protocol.signing import SigningKey
from tests.support.echo import MODEL, ByteText

pytest.importorskip("opentelemetry.sdk.trace", reason="`make setup` installs the library")
SERVING = Serving(MODEL, ByteText(), list)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    for name in spans.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    link = LinkIdentity("gateway", bytes(32), PairedWorkers(tmp_path))
    return PART.start(Foundation(GatewaySettings(), KeyRing(tmp_path), SigningKey(bytes(32)), tmp_path, link))


def test_without_a_collector_nothing_listens(running: Running) -> None:
    assert running.recording(SERVING) is None


def test_with_a_collector_requests_become_spans(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(spans.ENDPOINTS[0], "http://127.0.0.1:9")
    assert isinstance(running.recording(SERVING), spans.Spans)
