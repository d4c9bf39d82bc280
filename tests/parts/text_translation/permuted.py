"""Writes a model with other token numbers, as another tokenizer has them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def permute_tokens(source: Path, out: Path, fixed: int = 512) -> None:
    """Copies a byte-level BPE model; all tokens from `fixed` on get other numbers, in a fixed random order."""
    reader = gguf.GGUFReader(source)
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    order = np.arange(len(tokens))
    np.random.default_rng(1).shuffle(order[fixed:])
    architecture = str(reader.get_field("general.architecture").contents())
    writer = gguf.GGUFWriter(out, architecture, endianess=reader.endianess)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = field.contents()
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            if len(value) == len(tokens) and field.name != "tokenizer.ggml.merges":
                value = [value[old] for old in order]
            writer.add_key_value(field.name, value, kind, sub_type=field.types[-1])
        else:
            writer.add_key_value(field.name, value, kind)
    data = []
    for tensor in reader.tensors:
        rows = tensor.data[order] if tensor.name in ("token_embd.weight", "output.weight") else tensor.data
        writer.add_tensor_info(tensor.name, rows.shape, rows.dtype, rows.nbytes, tensor.tensor_type)
        data.append(np.ascontiguousarray(rows))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for rows in data:
        writer.write_tensor_data(rows)
    writer.close()
