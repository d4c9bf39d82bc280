"""A model as the headers of its files show it: its family, why llama.cpp cannot take it, and the memory it needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.core.errors import ConfigError, ModelError
from edgespec.shared.hf_vocabulary import json_object
from edgespec.shared.vocabfiles import gguf_metadata

MAX_SEQUENCES = 256
"""Compiled into llama.cpp."""
NOT_TREES = ("ssm.", "wkv.", "time_mix", "decoder_start_token_id")
"""Parts of metadata keys of recurrent, hybrid and encoder-decoder models, whose state cannot be rolled back."""


def check_llamacpp(path: Path, gpu_layers: int) -> None:
    """Raises ModelError for a GGUF file that cannot be the target here, as far as it shows without its weights."""
    from edgespec.llamacpp.context import require_gpu  # loads llama.cpp

    metadata = gguf_metadata(path)
    family = metadata.get("general.architecture", "unknown")
    keys = " ".join(key for key in metadata if key.startswith(f"{family}."))
    if any(part in keys for part in NOT_TREES):
        raise ModelError(
            f"{path} is of the family {family}, which cannot verify trees: choose a plain decoder-only transformer."
        )

    require_gpu(gpu_layers)


def spare_sequences(slots: int, tree_nodes: int, *, exact: bool) -> int:
    """Sequences besides those of slots and candidates; raises ConfigError if llama.cpp has not so many."""
    spare = 0
    if exact:
        spare = 2

    if slots + tree_nodes + spare > MAX_SEQUENCES:
        raise ConfigError(
            f"llama.cpp has {MAX_SEQUENCES} sequences, for slots and candidates of a tree: lower `target.slots` "
            f"({slots}) or `policy.verify_nodes` ({tree_nodes}), or choose another `target.engine`."
        )

    return spare


def family_of(path: Path) -> str:
    """What a folder or a GGUF file calls its family. Raises ModelError."""
    if path.is_dir():
        name = read_config(path).get("model_type")
    else:
        name = gguf_metadata(path).get("general.architecture")
    return str(name or "unknown")


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a model folder. Raises ModelError."""
    return json_object(folder / "config.json", "a model's folder has config.json and *.safetensors")


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of a loaded target."""

    weights: int
    token: int
    """Keys and values of one token."""

    def __add__(self, other: Need) -> Need:
        return Need(self.weights + other.weights, self.token + other.token)


def llamacpp_need(path: Path) -> Need:
    """Of a GGUF file in llama.cpp, which keeps keys and values in 16 bits. Raises ModelError."""
    metadata = gguf_metadata(path)
    return Need(path.stat().st_size, gguf_numbers(metadata) * 2)


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Shapes of the tensors in a safetensors file, by name. Raises ModelError."""
    from safetensors import SafetensorError, safe_open  # of the extra `torch`

    try:
        with safe_open(file, "np") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118  no mapping
    except OSError as error:
        raise ModelError(f"{file} cannot be read ({error.strerror or error}): check its path.") from error
    except SafetensorError as error:
        raise ModelError(f"{file} is corrupt or cannot be used (it has no header of safetensors).") from error


def gguf_numbers(metadata: dict[str, Any]) -> int:
    """Keys and values of one token, as numbers."""
    name = metadata.get("general.architecture")

    def of(key: str, default: int = 0) -> int:
        value = metadata.get(f"{name}.{key}", default)
        if isinstance(value, list):
            return max(value, default=0)
        return int(value)

    heads = of("attention.head_count")
    size = of("attention.key_length", of("embedding_length") // max(heads, 1))
    return 2 * of("block_count") * of("attention.head_count_kv", heads) * size
