"""What `edgespec run` imports: a worker without peers that pairs nobody carries none of the code for them."""

from __future__ import annotations

import subprocess
import sys

LIBRARIES = ("aiohttp", "huggingface_hub", "matplotlib", "rich", "spake2", "torch", "transformers")
OURS = (
    "cloud_gateway",
    "edgespec.core.admission",
    "edgespec.core.drafting.translation",
    "edgespec.core.pairing.exchange",
    "edgespec.core.pairing.window",
    "edgespec.core.protocol.peer_handshake",
    "edgespec_lab",
    "edgespec.shared.acceptor",
    "edgespec.shared.advertise",
    "edgespec.shared.hf_vocabulary",
    "edgespec.shared.pairing_listener",
    "edgespec.worker.pair",
    "edgespec.worker.peers.tunnel",
    "edgespec.worker.peers.port",
    "edgespec.worker.peers.service",
)


def test_a_worker_imports_nothing_for_what_it_does_not_do() -> None:
    script = f"import sys, edgespec.worker.service; print(sorted({set(LIBRARIES + OURS)} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
