"""Traces of requests and their replay (docs/traces.md): what a request's state machine was given and decided.

`recorder` writes a signed file for each request, if a folder is set, of what `input_log` has noted; `format` is what
such a file holds, `play` runs the machine on it again, and `verb` is `cloud-gateway replay`, which checks, plays and
shows it (`look`, `story`). The worker's half has `edgespec replay`.

Public, by module:

- `format`: all
- `play`: `Moment`, `Player`
- `look`: `look`, `read`, `Looked`
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloud_gateway.part import Foundation, GatewayPart, PastRequest, Running, Serving, choices_of
from cloud_gateway.parts.request_traces.verb import ReplayVerb
from edgespec.shared import folders
from edgespec.shared.fields import Folder
from edgespec.shared.settings import Removed, Section

if TYPE_CHECKING:
    from cloud_gateway.engine.exchange import Recording
    from cloud_gateway.parts.request_traces.recorder import Recorder

MAX_TRACE_BYTES = 16 * 2**20
"""Bytes of one request, before compression (to about a fifth): about 16,000 rounds."""
KEPT_TRACES = 1000
REMOVED = {
    "traces.max_kb": Removed("the first 16 MiB of a request are recorded.", (2048,)),
    "traces.keep": Removed("the latest 1000 traces are kept.", (1000,)),
}


class TracesSection(Section, frozen=True):
    """[traces]: the folder of the traces, and whether their token ids are salted."""

    folder: Folder = ""
    salt: bool = True


class RecordingTraces(Running):
    """Records all requests, until the engine has ended."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def recording(self, serving: Serving) -> Recording:
        """The recorder, which makes a log of each request."""
        return self._recorder

    async def close(self) -> None:
        """Writes the traces that wait."""
        await asyncio.to_thread(self._recorder.close)


def start_recorder(gateway: Foundation) -> Running:
    """Raises ConfigError for a folder that cannot be made, or that others can read."""
    traces = gateway.settings.of(TracesSection)
    if not traces.folder:
        return Running()

    from cloud_gateway.parts.request_traces.recorder import Recorder

    folder = folders.expand(traces.folder)
    recorder = Recorder(folder, gateway.signing_key, salt=traces.salt, limit_bytes=MAX_TRACE_BYTES, keep=KEPT_TRACES)
    return RecordingTraces(recorder)


def read_trace(data: bytes, parts: Sequence[GatewayPart]) -> PastRequest:
    """The request of a trace. Raises TraceError."""
    from cloud_gateway.parts.request_traces.format import unseal
    from cloud_gateway.parts.request_traces.play import past

    return past(unseal(data)[0], choices_of(parts).policies)


PART = GatewayPart(
    "request_traces",
    {"traces": TracesSection},
    verbs=[ReplayVerb()],
    removed=REMOVED,
    example=Path(__file__).with_name("gateway.toml"),
    start=start_recorder,
    read_past=read_trace,
    own_engine_only=("traces.folder",),
)
