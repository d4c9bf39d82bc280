"""Resolves a model key of a configuration: a path, or one of the models of `edgespec.shared.models`.

The file names are those of `models`, whose functions also check sizes; a test compares them.
"""

from __future__ import annotations

import os
from pathlib import Path

from edgespec.core.errors import ModelError
from edgespec.shared.folders import expand

_AUTO = {
    "auto:quantised": ("SmolLM2-135M-Instruct.Q4_1.gguf", "python -m tools.models fetch"),
    "auto:requantised": ("SmolLM2-135M-Instruct.Q4_1.q4_0.gguf", "python -m tools.make_draft --format q4_0"),
    "auto:dropped": ("SmolLM2-135M-Instruct.Q4_1.drop10.gguf", "python -m tools.make_draft --drop 10"),
}


def resolve_model(reference: str) -> Path:
    """The file or folder of a checked `ModelPath`; the existence of a path is not checked.

    Raises ModelError where an `auto:` model was not fetched or made, with the command that does it.
    """
    if reference not in _AUTO:
        return expand(reference)
    file, command = _AUTO[reference]
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    path = (cache if cache.is_absolute() else expand("~/.cache")) / "edgespec" / "models" / file
    if not path.is_file():
        raise ModelError(f"The model {path} is missing; run `{command}` in the checkout.")
    return path
