"""Which models torch may compute, and the memory that they take there, as the headers of their files show it.

The self-test at loading sees four positions only: a window, or an embedding that turns with the length of a pass,
would change completions without a word. So the engine takes the families of this table, each of which the tests
compare with transformers' own steps (docs/models.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud_gateway.models.headers import Need, gguf_numbers, read_config, tensor_shapes
from edgespec.core.errors import ModelError
from edgespec.shared.vocabfiles import gguf_metadata, gguf_tensors


@dataclass(frozen=True, slots=True)
class Family:
    """Of one `model_type` in config.json: what a GGUF file calls it, and whether torch may take it from one."""

    gguf: str | None = None
    """`general.architecture`; None where no tiny model of it was written as a GGUF file and compared."""
    torch_reads_gguf: bool = False
    head_size: int | None = None
    """The one that transformers takes for every GGUF file of this family; None: it takes the file's own."""


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", True),
    "mistral": Family("llama", True),
    "qwen2": Family("qwen2", True),
    "qwen3": Family("qwen3", True, head_size=128),
    "gemma2": Family("gemma2", True, head_size=256),
    "gemma3": Family("gemma3"),
    "gemma3_text": Family("gemma3", True, head_size=256),
    "phi3": Family("phi3", True),
    "olmo2": Family("olmo2"),
    "gpt_oss": Family(),
    "cohere": Family(),
    "gemma": Family(),
    "gpt2": Family(),
    "granite": Family(),
    "mixtral": Family(),
    "olmo3": Family(),
    "phi": Family(),
    "qwen3_moe": Family(),
    "smollm3": Family(),
    "stablelm": Family(),
    "starcoder2": Family(),
}
"""By `model_type` of config.json."""


def check_torch(path: Path) -> None:
    """Raises ModelError for a folder or GGUF file that the torch engine cannot take, as its headers show."""
    if path.is_dir():
        family = read_config(path).get("model_type")
        if family not in FAMILIES:
            raise ModelError(
                f"{path} is of the family {family}, which the engine torch is not verified for: choose one of those "
                "that docs/models.md lists."
            )
        return

    metadata = gguf_metadata(path)
    reason = _gguf_fault(metadata, [name for name, _ in gguf_tensors(path)])
    if reason is not None:
        raise ModelError(
            f'The engine torch cannot take {path.name}, because {reason}: set `target.engine` to "llamacpp", or name '
            "the model's safetensors folder."
        )


def _gguf_fault(metadata: Mapping[str, Any], tensors: list[str]) -> str | None:
    """Why torch would compute something else than this file describes, as far as transformers' conversion goes."""
    name = metadata.get("general.architecture")
    found = [family for family in FAMILIES.values() if family.gguf == name and family.torch_reads_gguf]
    if not found:
        return f"GGUF files of the family {name} cannot be converted"

    scaling = metadata.get(f"{name}.rope.scaling.type", "none") != "none"
    if scaling or any(tensor.startswith("rope_f") for tensor in tensors):
        return "its scaled rotary embedding (as of Llama 3.1 and later) would be lost in the conversion"

    head = metadata.get(f"{name}.attention.key_length", found[0].head_size)
    if found[0].head_size not in (None, head):
        return f"its attention heads have {head} dimensions and the conversion assumes {found[0].head_size}"

    return None


def torch_need(path: Path, weight_bytes: int, number_bytes: int) -> Need:
    """Of a folder or GGUF file in torch; bytes of one weight, and of one number of keys and values.

    Raises ModelError.
    """
    if not path.is_dir():
        weights = sum(count for _, count in gguf_tensors(path))
        return Need(weights * weight_bytes, gguf_numbers(gguf_metadata(path)) * number_bytes)

    config = read_config(path)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"The folder {path} holds no model: config.json and *.safetensors are needed.")

    weights = sum(math.prod(shape) for file in files for shape in tensor_shapes(file).values())
    return Need(weights * weight_bytes, _config_numbers(config) * number_bytes)


def _config_numbers(config: dict[str, Any]) -> int:
    """Keys and values of one token, as numbers; 0 where the configuration does not say."""
    part = config.get("text_config") or config
    layers, heads = (part.get(key, part.get(older, 0)) for key, older in (
        ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head")
    ))  # fmt: skip
    size = part.get("head_dim") or part.get("hidden_size", part.get("n_embd", 0)) // max(heads, 1)
    return int(2 * layers * (part.get("num_key_value_heads") or heads) * size)
