"""How much memory a target needs, from the headers of its files: no weights are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from cloud_gateway.models.families import read_config
from edgespec.core.errors import ModelError
from edgespec.shared.vocabfiles import gguf_metadata, gguf_tensors


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of a loaded target."""

    weights: int
    token: int
    """Keys and values of one token."""

    def __add__(self, other: Need) -> Need:
        return Need(self.weights + other.weights, self.token + other.token)


def torch_need(path: Path, weight_bytes: int, number_bytes: int) -> Need:
    """Of a folder or GGUF file in torch; bytes of one weight, and of one number of keys and values.

    Raises ModelError.
    """
    if not path.is_dir():
        weights = sum(count for _, count in gguf_tensors(path))
        return Need(weights * weight_bytes, _gguf_numbers(gguf_metadata(path)) * number_bytes)
    config = read_config(path)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"The folder {path} holds no model: config.json and *.safetensors are needed.")
    weights = sum(math.prod(shape) for file in files for shape in _shapes(file).values())
    return Need(weights * weight_bytes, _config_numbers(config) * number_bytes)


def llamacpp_need(path: Path) -> Need:
    """Of a GGUF file in llama.cpp, which keeps keys and values in 16 bits. Raises ModelError."""
    return Need(path.stat().st_size, _gguf_numbers(gguf_metadata(path)) * 2)


def heads_need(path: Path) -> Need:
    """Of heads beside a target; those with a `qkv` keep keys, values and the target's state of each token in float32.

    Raises ModelError.
    """
    shapes = _shapes(path)
    match shapes.get("qkv"):
        case [_, heads, size, width]:
            numbers = 2 * heads * size + width
        case _:
            numbers = 0
    return Need(4 * sum(map(math.prod, shapes.values())), 4 * numbers)


def _shapes(file: Path) -> dict[str, list[int]]:
    """Of the tensors in a safetensors file. Raises ModelError."""
    try:
        with safe_open(file, "np") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118  no mapping
    except OSError as error:
        raise ModelError(f"{file} cannot be read ({error.strerror or error}): check its path.") from error
    except SafetensorError as error:
        raise ModelError(f"{file} is corrupt or cannot be used (it has no header of safetensors).") from error


def _config_numbers(config: dict[str, Any]) -> int:
    """Keys and values of one token, as numbers; 0 where the configuration does not say."""
    part = config.get("text_config") or config
    layers, heads = (part.get(key, part.get(older, 0)) for key, older in (
        ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head")
    ))  # fmt: skip
    size = part.get("head_dim") or part.get("hidden_size", part.get("n_embd", 0)) // max(heads, 1)
    return int(2 * layers * (part.get("num_key_value_heads") or heads) * size)


def _gguf_numbers(metadata: dict[str, Any]) -> int:
    name = metadata.get("general.architecture")

    def of(key: str, default: int = 0) -> int:
        value = metadata.get(f"{name}.{key}", default)
        return max(value, default=0) if isinstance(value, list) else int(value)

    heads = of("attention.head_count")
    size = of("attention.key_length", of("embedding_length") // max(heads, 1))
    return 2 * of("block_count") * of("attention.head_count_kv", heads) * size
