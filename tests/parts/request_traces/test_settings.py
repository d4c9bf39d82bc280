"""The recorder's settings: no folder is no recorder, and a folder is refused before models are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_gateway.auth import KeyRing
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.part import Foundation, LinkIdentity, Running
from cloud_gateway.parts.request_traces import PART, RecordingTraces
from cloud_gateway.process.config import schema
from edgespec.core.errors import ConfigError
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.settings import assigned


def start(tmp_path: Path, *assignments: str) -> Running:
    settings = assigned(schema([PART])(), assignments)
    link = LinkIdentity("gateway", bytes(32), PairedWorkers(tmp_path))
    return PART.start(Foundation(settings, KeyRing(tmp_path / "keys"), SigningKey(bytes(32)), tmp_path, link))


def test_without_a_folder_nothing_is_recorded(tmp_path: Path) -> None:
    assert type(start(tmp_path)) is Running


async def test_with_a_folder_requests_are_recorded(tmp_path: Path) -> None:
    running = start(tmp_path, f"traces.folder={tmp_path / 'traces'}")

    assert isinstance(running, RecordingTraces)
    assert (tmp_path / "traces").is_dir()
    await running.close()


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match=r"`traces\.folder`"):
        start(tmp_path, f"traces.folder={folder}")
