"""Random causal models of some tens of kilobytes as safetensors folders, for tests that need a fast torch target."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

from tests.support.tiny_tokenizer import BOS_ID, EOS_ID, PAD_ID, tiny_tokenizer

transformers.logging.disable_progress_bar()
Architecture = Literal["llama", "llama-tied", "qwen2", "gpt2", "gemma3", "bloom", "mamba"]


def make_tiny_target(
    path: Path,
    seed: int = 0,
    vocab: int = 64,
    layers: int = 2,
    *,
    hidden: int = 32,
    context: int = 512,
    architecture: Architecture = "llama",
) -> Path:
    """Writes a float32 model with the tiny tokenizer and its chat template; returns `path`.

    Its entropies are about 1 to 3 nats at a vocabulary of 64.
    """
    torch.manual_seed(seed)
    model = _model(architecture, vocab, layers, hidden, context)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:  # scaled by fan-in, so that the context and not the last token alone decides
                weight.normal_(0, (4.0 if "embed" in name or "wte" in name else 2.0) / weight.shape[-1] ** 0.5)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tiny_tokenizer(vocab).save(path)
    return path


def load_tiny(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The folder's model as transformers has it."""
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True).eval()


def plain_logits(model: Any, tokens: list[int]) -> Tensor:
    """The slow twin of everything: logits after each token, [n, vocab], in one causal pass without any cache."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0].float()
    return logits


def _model(architecture: Architecture, vocab: int, layers: int, hidden: int, context: int) -> Any:
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    common = {"vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4, **ids}
    wide = {**common, "intermediate_size": 2 * hidden, "num_key_value_heads": 2, "max_position_embeddings": context}
    match architecture:
        case "llama" | "llama-tied":
            tied = architecture == "llama-tied"
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**wide, tie_word_embeddings=tied))
        case "qwen2":
            return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**wide))
        case "gemma3":
            config = transformers.Gemma3TextConfig(
                **wide, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"][:layers]
            )
            return transformers.Gemma3ForCausalLM(config)
        case "gpt2":
            config = transformers.GPT2Config(
                vocab_size=vocab, n_embd=hidden, n_layer=layers, n_head=4, n_positions=context, **ids
            )
            return transformers.GPT2LMHeadModel(config)
        case "bloom":
            return transformers.BloomForCausalLM(transformers.BloomConfig(**common, n_layer=layers, n_head=4))
        case "mamba":
            return transformers.MambaForCausalLM(transformers.MambaConfig(**common, state_size=4))
