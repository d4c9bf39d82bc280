"""A worker whose memory is too small for its open prompts: which one it declines. Stepped by hand, real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.core.drafting.algorithm2 import DraftRule
from edgespec.core.protocol.messages import Commit, Decline, Open, Sampling, Tree
from edgespec.core.protocol.prefix import prefix_hash
from edgespec.llamacpp.drafter import Drafter
from edgespec.worker.daemon import Daemon, Outlet
from tests.support.tiny_gguf import make_tiny_gguf


def drafts(daemon: Daemon) -> None:
    """Until there is nothing to do."""
    for _ in range(500):
        daemon._take_in()
        work = daemon._next()
        daemon.writable()
        daemon._send_due(float("inf"))
        if work is not None:
            daemon._draft(*work)


@pytest.mark.claim("no-key-takes-the-drafts-memory-from-one-that-holds-less")
def test_a_small_request_is_drafted_for_beside_prompts_that_fill_memory(tmp_path: Path) -> None:
    sent: list[object] = []
    drafter = Drafter(make_tiny_gguf(tmp_path / "tiny.gguf"), context=768, sequences=4, prefill_batch=64)
    daemon = Daemon(drafter, DraftRule(sequences=4, max_depth=8), Outlet(sent.extend, sent.append))  # type: ignore[arg-type]
    daemon.take(Open(1, 1, 40, [7] * 40, Sampling(), b"small before"))
    for number in range(2, 6):
        prompt = [number] + [i % 50 for i in range(248)]
        daemon.take(Open(number, 1, len(prompt), prompt, Sampling(), b"large"))
    drafts(daemon)
    daemon.take(Open(6, 1, 40, [9] * 40, Sampling(), b"small after"))
    daemon.take(Commit(1, 1, 40, [11], prefix_hash([7] * 40 + [11])))
    before = len(sent)
    drafts(daemon)
    assert {1, 6} <= {message.request for message in sent[before:] if isinstance(message, Tree)}
    declined = {message.request for message in sent if isinstance(message, Decline)}
    assert declined and declined <= {3, 4, 5}, "the oldest of the large ones keeps its memory"
    drafter.shutdown()
