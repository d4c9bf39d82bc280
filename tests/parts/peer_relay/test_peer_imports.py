"""What `edgespec run` imports of this part: nearly nothing if there are no peers."""

from __future__ import annotations

import subprocess
import sys

NOT_WITHOUT_PEERS = (
    "edgespec.core.pairing.exchange",
    "edgespec.parts.peer_relay.handshake",
    "edgespec.parts.peer_relay.port",
    "edgespec.parts.peer_relay.service",
    "edgespec.parts.peer_relay.tunnel",
    "edgespec.shared.acceptor",
    "edgespec.shared.pairing_listener",
    "edgespec.worker.pair",
)


def test_a_worker_without_peers_imports_nothing_for_them() -> None:
    imported = "import sys, edgespec.parts, edgespec.worker.service, edgespec.parts.peer_relay.running"
    script = f"{imported}; print(sorted({set(NOT_WITHOUT_PEERS)} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
