"""Writes a tiny model of transformers as a GGUF file, with the gguf package's own names of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from torch import Tensor

from tests.support.tiny_gguf import add_tiny_tokenizer, describe, gguf_file

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
}
SENTENCEPIECE = {"mistral", "gemma2", "gemma3_text", "phi3"}


def pieces(vocab: int) -> list[str]:
    """A SentencePiece vocabulary of this size; too small for every byte."""
    made = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(64)), "▁", "t", "▁t", "▁the"]
    return [*made, *(f"x{i}" for i in range(vocab - len(made)))]


def write_gguf(path: Path, model: Any) -> Path:
    """Writes `model` in float32; its rotary embedding must be a plain one."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    with gguf_file(path, gguf.MODEL_ARCH_NAMES[architecture]) as writer:
        describe(writer, config)
        if getattr(config, "sliding_window", None):
            writer.add_sliding_window(config.sliding_window)
        if config.model_type == "gemma2":
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        if config.model_type in SENTENCEPIECE:
            _sentencepiece(writer, pieces(config.vocab_size))
        else:
            add_tiny_tokenizer(writer, config.vocab_size)
        names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
        for name, weight in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
            writer.add_tensor(found, _array(name, weight, config))
    return path


def _array(name: str, weight: Tensor, config: Any) -> np.ndarray[Any, Any]:
    if config.model_type in ("llama", "mistral") and any(part in name for part in ("q_proj.weight", "k_proj.weight")):
        # llama.cpp's rotary embedding takes the two halves of a head in turns
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        weight = weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
        weight = weight + 1
    return weight.contiguous().numpy().astype(np.float32)


def _sentencepiece(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    kinds = [gguf.TokenType.BYTE if text.startswith("<0x") else gguf.TokenType.NORMAL for text in tokens]
    writer.add_token_types([gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *kinds[3:]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
