"""Random models of two layers of every family that the torch engine takes, from transformers' own configurations, and
such a model as a GGUF file, with the gguf package's own names of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor

from tests.support.tiny_gguf import add_tiny_tokenizer, describe, gguf_file

VOCAB = 320
WINDOW = 8
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
BOTH = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
HEAD = {"head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
MADE: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=WINDOW),
    "qwen2": lambda: transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, **HEAD),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**SIZES, **HEAD, **EXPERTS),
    "gemma": lambda: transformers.GemmaConfig(**SIZES, **HEAD),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, **HEAD, **BOTH),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(**SIZES, **HEAD, **BOTH),
    "phi3": lambda: transformers.Phi3Config(
        **(SIZES | {"max_position_embeddings": 1024}), original_max_position_embeddings=256, rope_scaling=LONG
    ),
    "olmo2": lambda: transformers.Olmo2Config(**SIZES),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, **HEAD, **BOTH, num_local_experts=4, num_experts_per_tok=2
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "granite": lambda: transformers.GraniteConfig(**SIZES),
    "smollm3": lambda: transformers.SmolLM3Config(**SIZES, no_rope_layers=[1, 0]),
    "starcoder2": lambda: transformers.Starcoder2Config(**SIZES, sliding_window=WINDOW),
    "stablelm": lambda: transformers.StableLmConfig(**SIZES),
    "phi": lambda: transformers.PhiConfig(**SIZES),
    "cohere": lambda: transformers.CohereConfig(**SIZES),
    "olmo3": lambda: transformers.Olmo3Config(**SIZES, **BOTH),
    "gemma3": lambda: transformers.Gemma3Config(
        text_config={**SIZES, **HEAD, **BOTH},
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14,
        },
    ),
}  # fmt: skip
"""`model_type` of config.json -> a configuration, with sliding windows and experts if the family has them."""


PLAIN: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    "qwen3": {"head_dim": 128},
    "gemma2": {"head_dim": 256},
    "gemma3_text": {"head_dim": 256, "layer_types": ["sliding_attention"] * 2},
    "phi3": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
}
"""What differs in the models that are written as GGUF files too: those do not say which layers have windows, and
transformers takes the head size of its defaults."""


def make(model_type: str, seed: int = 0, *, plain: bool = False) -> Any:
    """The model in float32, with weights of a size at which the context decides."""
    torch.manual_seed(seed)
    config = MADE[model_type]()
    if plain:
        for key, value in PLAIN.get(model_type, {}).items():
            setattr(config, key, value)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                embeds = "embed" in name or "wte" in name
                weight.normal_(0, (4.0 if embeds else 2.0) / weight.shape[-1] ** 0.5)
            elif "norm" not in name and "ln_" not in name:  # biases and sinks, which are zero otherwise
                weight.normal_(0, 0.5)
    return model


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
    """A SentencePiece vocabulary of this size, with a token for each byte."""
    made = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "▁t", "▁the"]
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
