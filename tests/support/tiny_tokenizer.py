"""One tiny byte-level BPE for all tiny test models, usable for a Hugging Face `tokenizer.json` and for GGUF metadata.

Layout of the ids: three special tokens, single bytes (common ASCII first), a few merges, then unreachable fillers.
Below 264 tokens not every byte has an id; both tokenizer families silently drop the bytes that have none.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID = UNK_ID = 0
EOS_ID = PAD_ID = 2
PADDED_VOCAB = 300
"""More than a tokenizer of 280 tokens, as models have it whose embedding is padded."""
PRE = "gpt-2"
"""`tokenizer.ggml.pre` in GGUF; Hugging Face's `ByteLevel(use_regex=True)` splits by the same pattern."""
MERGES = ("t h", "th e", "i n", "Ġ a", "Ġ the")
"""Best first, in the byte alphabet's letters (Ġ is a space)."""
NORMAL = 1
CONTROL = 3
"""`tokenizer.ggml.token_type` values."""
_COMMON = " \nabcdefghijklmnopqrstuvwxyz0123456789.,:;!?'\"()-_/<>|"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@functools.cache
def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each of the 256 bytes."""
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in keep}
    hidden = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


@dataclass(frozen=True)
class TinyTokenizer:
    """The vocabulary in the order of the ids, its merges and GGUF token types."""

    tokens: list[str]
    merges: list[str]
    types: list[int]

    def tokenizer_json(self) -> dict[str, object]:
        """Content of Hugging Face's `tokenizer.json`."""
        added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0",
            "added_tokens": [{"id": i, "content": token, **added} for i, token in enumerate(SPECIALS)],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {
                "type": "BPE",
                "vocab": {token: i for i, token in enumerate(self.tokens)},
                "merges": self.merges,
                "ignore_merges": False,
            },
        }

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`, chat template included."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[BOS_ID],
            "eos_token": SPECIALS[EOS_ID],
            "pad_token": SPECIALS[PAD_ID],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        }
        (folder / "tokenizer.json").write_text(json.dumps(self.tokenizer_json(), ensure_ascii=False), "utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


def tiny_tokenizer(vocab: int = 64) -> TinyTokenizer:
    """A tokenizer of exactly `vocab` tokens (at least 64); from 264 on it has every byte."""
    if vocab < 64:
        raise ValueError("the tiny tokenizer has at least 64 tokens")
    alphabet = byte_alphabet()
    common = list(_COMMON.encode())
    order = common + [byte for byte in range(256) if byte not in common]
    bytes_ = [alphabet[byte] for byte in order[: vocab - len(SPECIALS) - len(MERGES)]]
    tokens = [*SPECIALS, *bytes_, *(merge.replace(" ", "") for merge in MERGES)]
    tokens += [f"<extra_{i}>" for i in range(vocab - len(tokens))]
    types = [CONTROL] * len(SPECIALS) + [NORMAL] * (vocab - len(SPECIALS))
    return TinyTokenizer(tokens, list(MERGES), types)
