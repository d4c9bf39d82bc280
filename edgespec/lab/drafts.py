"""Makes a draft model from a GGUF file: some layers dropped, or the weights in another format, or both.

Dropping copies every other tensor byte for byte and all metadata (`edgespec/lab/gguf_layers.py`). Another format is
written by llama.cpp. Quantising twice hurts: after the Q4_1 file's own tokens, a Q4_0 copy of it is right 0.78 of the
time, a Q8_0 copy 0.96, so give it the least quantised source there is (dev/decisions/021-drafts.md compares formats).
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path

from edgespec.core.errors import ConfigError, ModelError
from edgespec.lab.gguf_layers import Layer, block_count, copy_layers

FORMATS = ("bf16", "f16", "q8_0", "q4_0", "iq4_nl")


def make_draft(source: Path, out: Path, layers: Collection[int] = (), fmt: str | None = None) -> int:
    """Writes `source` without `layers`, in `fmt` (None: as it is), to `out`; returns the number of layers left.

    `out` appears only when llama.cpp loads it. Raises ModelError when `source` is no usable GGUF, ConfigError when
    nothing is to be changed, or a layer to be dropped is not there.
    """
    if not layers and fmt is None:
        raise ConfigError("There is nothing to change: give --drop, --format, or both.")
    from edgespec.llamacpp.convert import count_loaded_layers, requantise

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=out.parent) as scratch:
            made, expected = source, block_count(source)
            if layers:
                made = Path(scratch) / out.name
                expected = drop_layers(source, made, layers)
            if fmt is not None:
                whole, made = made, Path(scratch) / f"{out.name}.{fmt}"
                requantise(whole, made, fmt)
            loaded = count_loaded_layers(made)
            if loaded != expected:
                raise ModelError(f"llama.cpp sees {loaded} layers in the draft made from {source}, not {expected}.")
            made.replace(out)
    except OSError as error:
        raise ModelError(f"The draft {out} cannot be written: {error.strerror or error}.") from error
    return loaded


def drop_layers(source: Path, out: Path, layers: Collection[int]) -> int:
    """Copies `source` to `out` without `layers` (counted from 0) and renumbers the rest; returns how many are left."""
    count = block_count(source)
    kept = [Layer(layer) for layer in range(count) if layer not in layers]
    if not set(layers) <= set(range(count)) or not kept:
        raise ConfigError(f"--drop takes layers from 0 to {count - 1} of {source.name}, and must leave at least one.")
    copy_layers(source, out, kept)
    return len(kept)
