"""Traces, for `python -m tools.fuzz`; `scenes` records those that are shipped."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces.play import check
from edgespec.core.protocol.signing import SIGNATURE_BYTES, SigningKey
from tools.fuzz.decoder import MSGPACK, Decoder
from tools.fuzz.model import CHOICES

KEY = SigningKey(b"k" * 32)
SHIPPED = Path(__file__).parents[3] / "tests/parts/request_traces/traces"
ENTRIES = 60
"""Of a recorded trace: its first ones, so that an input is decoded in a millisecond."""


def shortened() -> list[trace.Trace]:
    """The beginnings of the shipped traces, after one without any event, which is valid whatever policies decide."""
    traces: list[trace.Trace] = []
    for path in sorted(SHIPPED.glob("*.trace")):
        whole, _ = trace.unseal(path.read_bytes())
        traces.append(msgspec.structs.replace(whole, entries=whole.entries[:ENTRIES]))

    return [msgspec.structs.replace(traces[0], entries=[]), *traces]


def played(data: bytes) -> object:
    """A trace's file, checked and played. Raises TraceError."""
    return check(trace.unseal(data)[0], CHOICES.policies)


def signed(content: bytes) -> object:
    """The content of a trace by somebody who has a key. Raises TraceError."""
    body = zlib.compress(content, 1)
    head = trace.MAGIC + KEY.public + KEY.sign(trace.KIND, KEY.public + body)
    assert len(head) == len(trace.MAGIC) + 32 + SIGNATURE_BYTES
    return played(head + body)


TRACES = shortened()
DECODERS = {
    "trace": Decoder(played, [trace.seal(recorded, KEY) for recorded in TRACES], trace.TraceError, cost=20),
    "signed trace": Decoder(
        signed, [trace.encode(recorded) for recorded in TRACES], trace.TraceError, MSGPACK, cost=80
    ),
}
