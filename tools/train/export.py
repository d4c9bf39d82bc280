"""Writes the trained draft as a GGUF file: the target's file with fewer layers and other weights in them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edgespec.core.errors import ModelError
from edgespec.lab.gguf_layers import Layer, copy_layers
from edgespec.llamacpp.convert import count_loaded_layers, requantise
from edgespec.shared.vocabfiles import gguf_metadata, gguf_tokenizer_digest


def export(source: Path, out: Path, weights: Mapping[str, Tensor], kept: Sequence[int], config: Any, fmt: str) -> None:
    """Writes the layers `kept` of `source` with these weights, named as transformers does, in the format `fmt`.

    `out` appears only when llama.cpp loads it and its tokenizer is the source's. Raises ModelError.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=out.parent) as scratch:
            plain, made = Path(scratch) / "plain.gguf", Path(scratch) / out.name
            copy_layers(source, plain, [Layer(old) for old in kept], replaced=named(source, weights, len(kept), config))
            requantise(plain, made, fmt)
            if count_loaded_layers(made) != len(kept) or gguf_tokenizer_digest(made) != gguf_tokenizer_digest(source):
                raise ModelError(f"The draft made from {source.name} has other layers or another tokenizer; report it.")
            made.replace(out)
    except OSError as error:
        raise ModelError(f"The draft {out} cannot be written: {error.strerror or error}.") from error


def named(source: Path, weights: Mapping[str, Tensor], layers: int, config: Any) -> dict[str, NDArray[np.float32]]:
    """The weights as a GGUF file of this architecture names and orders them."""
    import gguf

    architecture = str(gguf_metadata(source)["general.architecture"])
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[architecture], layers)
    found = {}
    for name, weight in weights.items():
        called = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if called is None:
            raise ModelError(f"{source.name} has no tensor for {name}, so this draft cannot be written as a GGUF file.")
        found[called] = _ordered(name, weight, config, turned=architecture == "llama")
    return found


def _ordered(name: str, weight: Tensor, config: Any, *, turned: bool) -> NDArray[np.float32]:
    """Llama's rotary embedding takes the two halves of a head in turns in a GGUF file, one after the other here."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    head_count = heads.get(name.split(".")[-2])
    if turned and head_count:
        weight = weight.reshape(head_count, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
    return np.ascontiguousarray(weight.detach().float().cpu().numpy())
