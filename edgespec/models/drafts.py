"""Makes a draft model from a GGUF file: some layers dropped, or the weights in another format, or both.

`copy_layers` copies every other tensor byte for byte and all metadata, so the tokenizer too; only the number of layers,
their names and metadata lists with one entry per layer change. Another format is written by llama.cpp. Quantising twice
hurts: after the Q4_1 file's own tokens, a Q4_0 copy of it is right 0.78 of the time, a Q8_0 copy 0.96, so give it the
least quantised source there is (dev/decisions/000-first-thirty.md, 021 compares formats).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgespec.core.errors import ConfigError, ModelError
from edgespec.shared.vocabfiles import gguf_metadata

FORMATS = ("bf16", "f16", "q8_0", "q4_0", "iq4_nl")
"""Formats of weights that llama.cpp writes."""

_BLOCK = re.compile(r"^blk\.(\d+)\.(.+)\Z")


class Layer(NamedTuple):
    """One layer of the copy: its number in the source, and whether the tensors named with the copy are zero in it."""

    old: int
    zeroed: bool = False


def block_count(source: Path) -> int:
    """Layers of a GGUF file, by its metadata. Raises ModelError when it is none or does not state it."""
    metadata = gguf_metadata(source)
    count = metadata.get(f"{metadata.get('general.architecture')}.block_count")
    if not isinstance(count, int):
        raise ModelError(f"{source} does not state its number of layers, so it cannot be used here.")
    return count


def copy_layers(
    source: Path,
    out: Path,
    layers: Sequence[Layer],
    zero: Collection[str] = (),
) -> None:
    """Copies `source` to `out` with these layers, in this order; `zero`: tensors that are zero in zeroed layers.

    Zero bytes are zero weights in every format of ggml, since a block of quantised weights has scale and offset zero.
    """
    import gguf
    import numpy as np

    reader = _open(source)
    architecture = str(reader.get_field(gguf.Keys.General.ARCHITECTURE).contents())
    writer = gguf.GGUFWriter(out, architecture, endianess=reader.endianess)
    writer.data_alignment = reader.alignment
    _copy_metadata(reader, writer, architecture, [layer.old for layer in layers])

    tensors = []
    for name, tensor, zeroed in _plan(reader, layers, zero):
        data = tensor.data
        writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, tensor.tensor_type)
        tensors.append((data, zeroed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()

    for data, zeroed in tensors:
        if zeroed:
            data = np.zeros_like(data)
        writer.write_tensor_data(data)
    writer.close()


def _plan(reader: Any, layers: Sequence[Layer], zero: Collection[str]) -> list[tuple[str, Any, bool]]:
    """Name, source and whether it is zero, for each tensor of the copy."""
    blocks: dict[int, list[tuple[str, Any]]] = {}
    plan = []
    for tensor in reader.tensors:
        block = _BLOCK.match(tensor.name)
        if block is None:
            plan.append((tensor.name, tensor, False))
            continue

        layer_tensors = blocks.setdefault(int(block[1]), [])
        layer_tensors.append((block[2], tensor))

    for new, layer in enumerate(layers):
        for name, tensor in blocks[layer.old]:
            plan.append((f"blk.{new}.{name}", tensor, layer.zeroed and name in zero))

    return plan


def _copy_metadata(reader: Any, writer: Any, architecture: str, kept: Sequence[int]) -> None:
    """Copies all metadata; the layer count, and lists with one entry per layer, follow the layers of the copy."""
    import gguf

    count_key = f"{architecture}.block_count"
    count = int(reader.get_field(count_key).contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
            continue  # the writer writes these itself
        kind = field.types[0]
        item_kind = None
        value = field.contents()
        if field.name == count_key:
            value = len(kept)
        elif kind == gguf.GGUFValueType.ARRAY:
            item_kind = field.types[-1]
            if field.name.startswith(f"{architecture}.") and len(value) == count:
                value = [value[layer] for layer in kept]
        writer.add_key_value(field.name, value, kind, sub_type=item_kind)


def _open(source: Path) -> Any:
    import gguf

    try:
        return gguf.GGUFReader(source)
    except (ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:  # what damaged files make it raise
        raise ModelError(f"{source} is not a whole GGUF file: {error}.") from error


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
            made = source
            expected = block_count(source)
            if layers:
                made = Path(scratch) / out.name
                expected = drop_layers(source, made, layers)
            if fmt is not None:
                whole = made
                made = Path(scratch) / f"{out.name}.{fmt}"
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
    has_all = set(layers) <= set(range(count))
    if not has_all or not kept:
        raise ConfigError(f"--drop takes layers from 0 to {count - 1} of {source.name}, and must leave at least one.")
    copy_layers(source, out, kept)
    return len(kept)
