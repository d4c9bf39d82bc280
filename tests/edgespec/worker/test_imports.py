"""What `edgespec run` imports: a worker that pairs nobody carries none of the code for it."""

from __future__ import annotations

import subprocess
import sys

LIBRARIES = ("aiohttp", "huggingface_hub", "matplotlib", "rich", "spake2", "torch", "transformers")
OURS = (
    "cloud_gateway",
    "edgespec.core.admission",
    "edgespec.core.pairing.exchange",
    "edgespec.core.pairing.window",
    "edgespec_lab",
    "edgespec.shared.acceptor",
    "edgespec.shared.advertise",
    "edgespec.shared.hf_vocabulary",
    "edgespec.shared.pairing_listener",
    "edgespec.worker.pair",
)


def test_a_worker_imports_nothing_for_what_it_does_not_do() -> None:
    script = f"import sys, edgespec.worker.service; print(sorted({set(LIBRARIES + OURS)} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
