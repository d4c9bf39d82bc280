"""Random Llama models of some tens of kilobytes as GGUF files, for tests that need a fast draft or target."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.support import tiny_tokenizer as tiny


def make_tiny_gguf(
    path: Path,
    seed: int = 0,
    layers: int = 2,
    vocab: int = 64,
    *,
    hidden: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 8192,
    sharpness: float = 8.0,
    unlike: float = 0.0,
    unused: int = 0,
) -> Path:
    """Writes a float32 model with the tiny tokenizer and its chat template; returns `path`.

    `sharpness` scales the logits: 8 gives entropies of 0 to 2.4 nats, 1.2 on average (vocabulary of 64). `unlike` > 0
    mixes other random weights in: with 0.05 a model proposes 0.78 of the greedy tokens of its twin with 0. The last
    `unused` entries of the vocabulary stand for no text.
    """
    own, other = np.random.default_rng(seed), np.random.default_rng(seed + 1_000_003)

    def weights(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        """Gaussian, scaled by fan-in; llama.cpp's shapes are [out, in]."""
        mixed = own.standard_normal(shape) + unlike * other.standard_normal(shape)
        return (mixed * scale / np.sqrt(shape[-1])).astype(np.float32)

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, layers, vocab, hidden, heads, kv_heads, context, unused)
    ones = np.ones(hidden, np.float32)
    writer.add_tensor("token_embd.weight", weights(vocab, hidden, scale=np.sqrt(hidden)))
    for layer in range(layers):
        kv = hidden // heads * kv_heads
        tensors = {
            "attn_norm": ones,
            "attn_q": weights(hidden, hidden, scale=2.0),
            "attn_k": weights(kv, hidden, scale=2.0),
            "attn_v": weights(kv, hidden),
            "attn_output": weights(hidden, hidden),
            "ffn_norm": ones,
            "ffn_gate": weights(2 * hidden, hidden),
            "ffn_up": weights(2 * hidden, hidden),
            "ffn_down": weights(hidden, 2 * hidden),
        }
        for name, tensor in tensors.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", tensor)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", weights(vocab, hidden, scale=sharpness / 2))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(
    writer: gguf.GGUFWriter, layers: int, vocab: int, hidden: int, heads: int, kv_heads: int, context: int, unused: int
) -> None:
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(vocab)
    tokenizer = tiny.tiny_tokenizer(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tiny.PRE)
    used = tokenizer.tokens[: vocab - unused]
    writer.add_token_list([*used, *(f"[PAD{i}]" for i in range(len(used), vocab))])
    writer.add_token_types(tokenizer.types)
    writer.add_token_merges(tokenizer.merges)
    writer.add_bos_token_id(tiny.BOS_ID)
    writer.add_eos_token_id(tiny.EOS_ID)
    writer.add_unk_token_id(tiny.UNK_ID)
    writer.add_pad_token_id(tiny.PAD_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tiny.CHAT_TEMPLATE)
