"""What `edgespec run` imports: a worker carries none of the code of other verbs, and of parts that it has not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.check.budget import density

LIBRARIES = ("aiohttp", "huggingface_hub", "matplotlib", "rich", "spake2", "torch", "transformers", "zeroconf")
OURS = (
    "cloud_gateway",
    "edgespec.core.pairing.exchange",
    "edgespec.core.pairing.window",
    "edgespec.models.drafts",
    "edgespec.models.space",
    "edgespec_lab",
    "edgespec.shared.acceptor",
    "edgespec.shared.hf_vocabulary",
    "edgespec.shared.pairing_listener",
    "edgespec.shared.shipped",
    "edgespec.worker.commands",
    "edgespec.worker.pair",
    "edgespec.worker.report",
)
MAX_TOKENS = 58_560
"""Names, operators and numbers of the files that a worker without parts imports. It only falls."""
RUN = """
import json, sys, types
no_parts = types.ModuleType("edgespec.parts")
no_parts.all_parts = lambda: ()
sys.modules["edgespec.parts"] = no_parts

import edgespec.__main__
edgespec.__main__.build_parser()
import edgespec.worker.service
print(json.dumps({name: getattr(module, "__file__", None) for name, module in sys.modules.items()}))
"""
"""The imports of `edgespec run` in an edgespec without parts, until it would read its keys."""


def test_a_worker_imports_nothing_for_what_it_does_not_do() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True)
    files: dict[str, str | None] = json.loads(done.stdout)
    assert not {*LIBRARIES, *OURS} & files.keys()

    own = [Path(file) for name, file in files.items() if name.partition(".")[0] == "edgespec" and file is not None]
    assert len(own) > 50
    assert sum(density(file.read_text()).tokens for file in own) <= MAX_TOKENS
