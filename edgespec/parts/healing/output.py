"""The file of a healed draft: the draft's own, with other bytes in what was trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgespec.core.errors import ModelError
from edgespec.llamacpp.convert import count_loaded_layers
from edgespec.models.drafts import block_count
from edgespec.parts.healing.formats import file_bytes
from edgespec.parts.healing.student import Student, trained_bytes
from edgespec.shared.vocabfiles import gguf_vocabulary


def write(
    source: Path,
    out: Path,
    student: Student,
) -> None:
    """Writes `source` to `out` with the student's projections: metadata, order and all other tensors are the same.

    Raises ModelError if there is no room, or llama.cpp does not load the file.
    """
    trained = {
        name: (
            file_bytes(
                weights,
                kind,
            ),
            kind,
        )
        for name, weights, kind in trained_bytes(student)
    }
    try:
        _copy(source, out, trained)
    except OSError as error:
        out.unlink(missing_ok=True)
        raise ModelError(f"{out} cannot be written ({error.strerror or error}); make room there.") from error

    same_layers = count_loaded_layers(out) == block_count(source)
    same_tokenizer = gguf_vocabulary(out).digest == gguf_vocabulary(source).digest
    if not same_layers or not same_tokenizer:
        raise ModelError(f"{out} has other layers or another tokenizer than {source.name}; report it.")


def _copy(
    source: Path,
    out: Path,
    trained: Mapping[str, tuple[object, str]],
) -> None:
    """Copies a GGUF file with other data in some tensors: name -> bytes and format."""
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = str(reader.get_field(gguf.Keys.General.ARCHITECTURE).contents())
    writer = gguf.GGUFWriter(
        out,
        architecture,
        endianess=reader.endianess,
    )
    writer.data_alignment = reader.alignment

    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
            continue  # the writer writes these itself
        kind = field.types[0]
        item = None
        if kind == gguf.GGUFValueType.ARRAY:
            item = field.types[-1]
        writer.add_key_value(
            field.name,
            field.contents(),
            kind,
            sub_type=item,
        )

    data = []
    for tensor in reader.tensors:
        values = tensor.data
        format_of_tensor = tensor.tensor_type
        if tensor.name in trained:
            values, name = trained[tensor.name]
            format_of_tensor = gguf.GGMLQuantizationType[name.upper()]
        writer.add_tensor_info(
            tensor.name,
            values.shape,
            values.dtype,
            values.nbytes,
            format_of_tensor,
        )
        data.append(values)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for values in data:
        writer.write_tensor_data(values)
    writer.close()
