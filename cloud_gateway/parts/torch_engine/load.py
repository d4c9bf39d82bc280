"""Converts and loads a target model for torch. Nothing is fetched from a network.

transformers takes some ten seconds to unpack a GGUF file, so that is done once: the result is kept as a safetensors
folder, `$XDG_CACHE_HOME/edgespec/targets/<sha256>-<dtype>`, which loads in about a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cloud_gateway.models.target_model.load import (
    LoadedVocabulary,
    end_tokens,
    first_line,
    folder_digest,
    gguf_tokenizer,
    load_tokenizer,
    made_once,
    naming_model,
    quiet_transformers,
)
from edgespec.core.errors import ModelError
from edgespec.shared.hf_vocabulary import hf_vocabulary
from edgespec.shared.models import model_digest
from edgespec.shared.vocabfiles import gguf_metadata, gguf_vocabulary

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Loaded(LoadedVocabulary):
    """With the model itself, transformers' object, and the folder that it was read from."""

    model: Any
    folder: Path


def load(path: Path, dtype: Dtype, device: str = "auto") -> Loaded:
    """Loads a GGUF file or a folder with safetensors; `device` is `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises ModelError: missing, corrupt, not a causal language model, or no such device.
    """
    if path.is_dir():
        folder = path
        digest = folder_digest(path)
        vocabulary = hf_vocabulary(path).digest
    else:
        digest = model_digest(path)
        vocabulary = gguf_vocabulary(path).digest
        folder = made_once(digest, dtype, lambda part: _convert(path, part, dtype))

    tokenizer = load_tokenizer(folder)
    with naming_model(path):
        model = quiet_transformers().AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True
        )

    chosen = device_for(device)
    try:
        return Loaded(tokenizer, digest, vocabulary, model.eval().to(chosen), folder)
    except RuntimeError as error:
        raise ModelError(f"{path} does not fit on {chosen} ({first_line(error)}).") from error


def fast_dtype() -> Dtype:
    """The type of number that this processor multiplies fast: bfloat16 if oneDNN has packed products of it.

    On other processors a product of n rows takes n times as long in bfloat16, so verifying drafts would save nothing.
    """
    import torch

    from cloud_gateway.parts.torch_engine.linear import can_pack

    if can_pack(torch.device("cpu"), torch.bfloat16):
        return "bfloat16"
    return "float32"


def device_for(name: str) -> str:
    """The device of this name; `auto` is a GPU if torch has one. Raises ModelError for a GPU that is not there."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        if count:
            return "cuda"
        return "cpu"
    if name.startswith("cuda") and count <= int(name.partition(":")[2] or 0):
        if count:
            there = f"only {count} CUDA device{'s' * (count != 1)}"
        else:
            there = "no CUDA device"
        raise ModelError(f'`target.device` is "{name}" and there is {there} here; set it to "cpu" or "auto".')

    return name


def _convert(path: Path, part: Path, dtype: Dtype) -> None:
    """Unpacks a GGUF file into a safetensors folder with tokenizer and chat template."""
    import torch

    transformers = quiet_transformers()
    metadata = gguf_metadata(path)
    source = {"gguf_file": path.name, "local_files_only": True}
    with naming_model(path):
        unpack = transformers.GgufConfig(dequantize=True)
        packed = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, **source, dtype=dtype, quantization_config=unpack
        )

    # The loaded model's configuration names its file and quantisation; a new model of its class takes the weights.
    config = packed.config
    config.__dict__.pop("quantization_config", None)
    config.dtype = dtype
    with torch.device("meta"):
        plain = type(packed)(config)
    wanted = getattr(torch, dtype)
    plain.load_state_dict({name: weight.to(wanted) for name, weight in packed.state_dict().items()}, assign=True)
    plain.tie_weights()
    plain.generation_config = transformers.GenerationConfig(eos_token_id=end_tokens(metadata) or config.eos_token_id)
    plain.save_pretrained(part)
    gguf_tokenizer(path, metadata).save_pretrained(part)
