"""A worker whose draft model has the target's tokenizer carries none of the translation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edgespec.shared.vocabfiles import gguf_vocabulary
from tests.support.tiny_gguf import make_tiny_gguf

SCRIPT = """
import sys
from pathlib import Path
from edgespec.llamacpp.drafter import Drafter
from edgespec.parts import text_translation
from edgespec.worker import config, service
from edgespec.worker.models import target_tokens
parts = [text_translation.PART]
drafter = Drafter(Path(sys.argv[1]), context=256)
tokens = target_tokens(parts, config.schema(parts)(), drafter).at_start()
inside = "edgespec.parts.text_translation."
print(tokens.tokenizer_digest.hex(), *sorted(name for name in sys.modules if name.startswith(inside)))
"""


def test_translation_is_imported_when_a_gateway_needs_it(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    command = [sys.executable, "-c", SCRIPT, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [gguf_vocabulary(model).digest.hex(), "edgespec.parts.text_translation.tokens"]
