"""The worker of `python -m tools.bench path`: drafts over a socket, and computes like a draft model between frames.

Each message is `length (4 bytes), time of sending in ns (8), sealed frame`. The clock is the machine's monotonic one,
which both processes read.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from tools.bench.rounds import BenchLink, InstantTarget

HEAD = struct.Struct("<IQ")
WEIGHTS = 2048
"""Rows and columns of the matrix that a step reads: 16 MB, more than caches hold, as a model's weights are."""


def pack(data: bytes) -> bytes:
    """One message, stamped with the time now."""
    return HEAD.pack(len(data), time.perf_counter_ns()) + data


def unpack(buffer: bytearray) -> list[tuple[bytes, int]]:
    """Takes all complete messages out of the buffer: (frame, time of sending in ns)."""
    found = []
    while len(buffer) >= HEAD.size:
        length, sent = HEAD.unpack_from(buffer)
        if len(buffer) < HEAD.size + length:
            break
        found.append((bytes(buffer[HEAD.size : HEAD.size + length]), sent))
        del buffer[: HEAD.size + length]
    return found


def compute(weights: NDArray[np.float32], seconds: float) -> None:
    """Reads the matrix over and over, as a draft step reads its weights."""
    vector, until = np.ones(len(weights), np.float32), time.perf_counter() + seconds
    while time.perf_counter() < until:
        weights @ vector


def main(descriptor: int, step_s: float) -> None:
    """Drafts until the gateway closes the socket."""
    link, buffer = BenchLink(InstantTarget(), 0.8, 0), bytearray()
    weights = np.ones((WEIGHTS, WEIGHTS), np.float32)
    with socket.socket(fileno=descriptor) as stream:
        while True:
            stream.settimeout(None if link.drafting is None else 0.0001)
            try:
                data = stream.recv(1 << 16)
                if not data:
                    return
                buffer += data
            except TimeoutError:
                pass
            link.wire += [frame for frame, _ in unpack(buffer)]
            frames = link.draft(0) if link.drafting is None else link.draft(1)
            compute(weights, step_s)
            stream.settimeout(None)
            for frame in frames:
                stream.sendall(pack(frame))


if __name__ == "__main__":
    with suppress(BrokenPipeError, ConnectionResetError):
        main(int(sys.argv[1]), float(sys.argv[2]))
