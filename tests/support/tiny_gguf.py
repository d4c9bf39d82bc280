"""Random Llama models of some tens of kilobytes as GGUF files, for tests that need a fast draft or target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    own = np.random.default_rng(seed)
    other = np.random.default_rng(seed + 1_000_003)

    def weights(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        """Gaussian, scaled by fan-in; llama.cpp's shapes are [out, in]."""
        mixed = own.standard_normal(shape) + unlike * other.standard_normal(shape)
        return (mixed * scale / np.sqrt(shape[-1])).astype(np.float32)

    path.parent.mkdir(parents=True, exist_ok=True)
    shape = SimpleNamespace(
        max_position_embeddings=context, hidden_size=hidden, num_hidden_layers=layers, intermediate_size=2 * hidden,
        num_attention_heads=heads, num_key_value_heads=kv_heads, rope_parameters={"rope_theta": 10_000.0},
        rms_norm_eps=1e-5, vocab_size=vocab,
    )  # fmt: skip
    ones = np.ones(hidden, np.float32)
    kv = hidden // heads * kv_heads
    with gguf_file(path) as writer:
        describe(writer, shape)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        add_tiny_tokenizer(writer, vocab, unused)
        writer.add_tensor("token_embd.weight", weights(vocab, hidden, scale=np.sqrt(hidden)))
        for layer in range(layers):
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
    return path


@contextmanager
def gguf_file(path: Path, architecture: str = "llama") -> Iterator[gguf.GGUFWriter]:
    """A GGUF file that is written at the end of the block."""
    writer = gguf.GGUFWriter(path, architecture)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer: gguf.GGUFWriter, config: Any) -> None:
    """The shape of a model, from a configuration with the names of transformers."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    rope = config.rope_parameters
    writer.add_rope_freq_base(float(rope.get("full_attention", rope)["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def add_tiny_tokenizer(writer: gguf.GGUFWriter, vocab: int, unused: int = 0) -> None:
    """The tiny tokenizer with its chat template; the last `unused` of its `vocab` tokens stand for no text."""
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
