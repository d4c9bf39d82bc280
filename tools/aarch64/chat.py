"""`python -m tools.aarch64.chat FOLDER`: a worker for aarch64 drafts for a gateway of this machine's processor.

The worker pairs with a one-time code, links and drafts through qemu's user mode. That is some eighty times slower than
the gateway, so its model is a tiny one, and the gateway's target the same one with 250 blocks for each of its two, of
which all but two add zero. The times say nothing; what is checked is that frames are understood, that some of what the
worker drafts is accepted, and that the text is the one without it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from edgespec_lab.deep_target import deepen_gguf
from edgespec_lab.rig import Rig
from tests.support.tiny_gguf import make_tiny_gguf

PROMPT = "a b c d"
TOKENS = 400
BLOCKS = 250


def main(folder: Path) -> int:
    """Returns the exit status."""
    with tempfile.TemporaryDirectory() as scratch:
        draft = make_tiny_gguf(Path(scratch) / "tiny.gguf")
        target = Path(scratch) / "deep.gguf"
        deepen_gguf(draft, target, BLOCKS)
        within = {"worker": [str(folder / "instead")]}
        rig = Rig(Path(scratch) / "rig", str(target), str(draft), None, rtt_ms=2.0, exact=True, within=within)
        with rig.linked():
            alone = rig.chat(PROMPT, TOKENS, policy="plain", ignore_eos=True)
            drafted = rig.chat(PROMPT, TOKENS, policy="wanspec", ignore_eos=True)
            status = rig.worker_command("status", "--json")

    usage = drafted["usage"]["edgespec"]
    accepted = usage["accepted"].get("worker", 0)
    is_equal = text_of(alone) == text_of(drafted)
    print(f"the worker's step: {status.get('timed_step_ms')} ms")
    print(f"texts equal: {is_equal}; of {TOKENS} tokens {accepted} are the worker's, in {usage['rounds']} passes")
    return 0 if is_equal and accepted else 1


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
