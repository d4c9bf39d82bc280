"""Text to tokens and back: chat template, tokenizer, incremental text of a completion, stop strings.

text = Text(tokenizer)
tokens = text.render_chat([{"role": "user", "content": "Hi"}])
out, stops = text.detokeniser(), text.stops(["\\n\\n"])
for token in completion: send(stops.feed(out.feed(token)))
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cloud_gateway.models.chat import ChatEncoder, in_words
from edgespec.core.errors import ClientError, ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
INCOMPLETE = "\ufffd"


class Text:
    """The text side of a model, on top of its transformers tokenizer. Raises ModelError where it has no vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pieces = _pieces(tokenizer)
        self._strip = self._pieces is not None and _strips_first_space(tokenizer)
        template = tokenizer.chat_template
        self._template: str = template if isinstance(template, str) else (template or {}).get("default", "")

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """The messages as a prompt for the assistant's next one.

        Raises ClientError 400 where the model has no chat template, or its template refuses these messages.
        """
        if not self._template:
            raise ClientError("This model has no chat template; use /v1/completions.", code="unsupported_model")
        if isinstance(self._chats, ModelError):
            raise ClientError(f"{self._chats} Use /v1/completions.", code="unsupported_model")
        called = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
        if "tools" not in self._template and (tools or called):
            messages, tools = in_words(messages, tools), None
        return self._chats.encode(messages, tools)

    @property
    def chat_fault(self) -> str | None:
        """Why this model's chats are refused though it has a template; None where they are served."""
        return str(self._chats) if self._template and isinstance(self._chats, ModelError) else None

    @functools.cached_property
    def _chats(self) -> ChatEncoder | ModelError:
        """Takes half a second for 50,000 tokens; made at the first use, which is at the gateway's start."""
        try:
            return ChatEncoder(self._tokenizer)
        except ModelError as error:
            return error

    def encode(self, text: str) -> list[int]:
        """The tokens of a raw prompt, with a leading one where the model was trained with it."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=True)]

    def spell(self, token: int) -> bytes:
        """The bytes of one token; of a special one its name."""
        piece = self._pieces[token] if self._pieces is not None and token < len(self._pieces) else b""
        return piece or str(self._tokenizer.decode([token], skip_special_tokens=False)).encode()

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of all these tokens at once, without special ones."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def detokeniser(self) -> _Bytes | _Whole:
        """A new one for one completion: `feed` returns text once it can no longer change, `flush` the rest."""
        return _Whole(self.decode) if self._pieces is None else _Bytes(self._pieces, strip=self._strip)

    def stops(self, strings: Sequence[str]) -> StopStrings:
        """A new search for one completion."""
        return StopStrings(strings)


class _Bytes:
    """For tokenizers whose tokens are bytes, as in nearly all language models; an unfinished character is held."""

    def __init__(self, pieces: Sequence[bytes], *, strip: bool) -> None:
        self._pieces, self._strip = pieces, strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        piece = self._pieces[token] if 0 <= token < len(self._pieces) else b""
        if self._strip and piece:
            piece, self._strip = piece.removeprefix(b" "), False
        return self._decoder.decode(piece)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Whole:
    """For any tokenizer: the text of all tokens, less the text returned before. Takes quadratic time."""

    def __init__(self, decode: Any) -> None:
        self._decode, self._tokens, self._given = decode, [0][:0], 0

    def feed(self, token: int) -> str:
        self._tokens.append(token)
        return self._new(self._decode(self._tokens).rstrip(INCOMPLETE))

    def flush(self) -> str:
        return self._new(self._decode(self._tokens))

    def _new(self, text: str) -> str:
        new = text[self._given :]
        self._given += len(new)
        return new


class StopStrings:
    """Cuts a text at the first stop string, which may span pieces, and holds text that may become one.

    The string that is complete first is used, and of several complete at the same character the longest. So the result
    does not depend on how the text is cut into pieces, and `stopped` is set by the piece that completes the string.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [string for string in strings if string]
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """The text that can be sent; after a stop string always empty."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at + len(string), at) for string in self._strings if (at := text.find(string)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = self._possible_beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The held text, at the end of a completion without a stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        if not text:
            return 0
        last, longest = text[-1], 0
        for string in self._strings:
            for n in range(min(len(string) - 1, len(text)), longest, -1):
                if string[n - 1] == last and text.endswith(string[:n]):
                    longest = n
                    break
        return longest


@functools.cache
def _byte_of_letter() -> dict[str, int]:
    """GPT-2's printable stand-ins: letter -> byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


def _pieces(tokenizer: Any) -> list[bytes] | None:
    """The bytes of every token, nothing for special ones; None where tokens are not plain pieces of bytes."""
    steps = _decoder_steps(tokenizer)
    if steps == ["ByteLevel"]:
        piece = _byte_level_piece
    elif "ByteFallback" in steps and set(steps) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        piece = _sentencepiece_piece
    else:
        return None
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    if not vocabulary:
        raise ModelError("The model's tokenizer has no vocabulary; fetch the model again.")
    pieces = [b""] * (max(vocabulary.values()) + 1)
    for token, i in vocabulary.items():
        pieces[i] = piece(token)
    for i, added in tokenizer.added_tokens_decoder.items():
        pieces[i] = b"" if added.special else added.content.encode()
    return pieces


def _byte_level_piece(token: str) -> bytes:
    letters = _byte_of_letter()
    return bytes(letters[c] for c in token) if all(c in letters for c in token) else token.encode()


def _sentencepiece_piece(token: str) -> bytes:
    byte = _BYTE_TOKEN.match(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()


def _decoder(tokenizer: Any) -> list[dict[str, Any]]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return []
    decoder = json.loads(backend.to_str()).get("decoder") or {}
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return steps


def _decoder_steps(tokenizer: Any) -> list[str]:
    return [str(step.get("type")) for step in _decoder(tokenizer)]


def _strips_first_space(tokenizer: Any) -> bool:
    """Whether decoding removes the space that SentencePiece adds before the first word."""
    return any(step.get("type") == "Strip" and step.get("start") for step in _decoder(tokenizer))
