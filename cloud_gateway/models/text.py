"""Text to tokens and back: chat template, tokenizer, incremental text of a completion.

text = Text(tokenizer)
tokens = text.render_chat([{"role": "user", "content": "Hi"}])
out = text.detokeniser()
for token in completion: send(out.feed(token))

In a chat only the chat template's own control tokens are control tokens: what a client sends stays text, also if it is
split over messages and fields. Ordinary chats become the same tokens as in transformers' `apply_chat_template`, which
turns all text that equals a control token into one.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from cloud_gateway.models.chat_template import (
    ROLES,
    ChatTemplate,
    ControlTokens,
    any_of,
    own_roles,
    plain,
    refuse_reserved,
)
from edgespec.core.errors import ClientError, ModelError

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None
_REFUSALS = (jinja2.TemplateError, TypeError, KeyError, ValueError, RecursionError)
"""What a template raises for messages that it refuses. The last: tools nested too deeply for `tojson`."""
_ASK: Messages = [{"role": "user", "content": "a b"}]
_CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "look", "arguments": {"at": "sky"}},
}
_TOOL = {
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {}},
}
PROBES: Sequence[tuple[Messages, Tools]] = (
    (_ASK, None),
    (
        [
            {"role": "system", "content": "Be kind."},
            *_ASK,
            {"role": "assistant", "content": "c"},
            *_ASK,
        ],
        None,
    ),
    ([*_ASK, {"role": "assistant", "content": "c"}, *_ASK], None),
    (_ASK, [{"type": "function", "function": _TOOL}]),
    (
        [
            *_ASK,
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "content": "blue", "tool_call_id": "abcdefghi"},
        ],
        [{"type": "function", "function": _TOOL}],
    ),
)
"""Chats without control tokens, with which a template is tested when the model is loaded."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class ChatEncoder:
    """Renders and encodes chats for one model. Raises ModelError if its template's own text cannot be traced."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        try:
            self._source: str = tokenizer.get_chat_template()
            self._control = ControlTokens(tokenizer, self._source)
            self._template = ChatTemplate(self._source, self._control.ids)
        except (jinja2.TemplateError, ValueError) as error:
            raise ModelError(f"The model's chat template cannot be read ({type(error).__name__}).") from error

        searched = [text for text in self._template.constants if len(text) > 1 or text == "\n"]
        searched.sort(key=len, reverse=True)
        self._searched = any_of(searched)

        same = [self._same_as_before(messages, tools) for messages, tools in PROBES]
        if False in same or True not in same:
            raise ModelError("The control tokens of the model's chat template cannot be distinguished from text.")

    def encode(self, messages: Messages, tools: Tools) -> list[int]:
        """The tokens of a chat, as a prompt for the assistant's next message. Raises ClientError 400.

        Two renderings prove each time that no control token comes from the client: the one with marks is the
        template's ordinary result, and the one of the same chat with neutral contents has the same control tokens.
        """
        try:
            refuse_reserved([messages, tools])
            text = self._rendered(messages, tools)
            marked = self._marked(messages, tools)
            if plain(marked) != text:  # again, for a template that writes the time, which may have changed
                text = self._rendered(messages, tools)
                marked = self._marked(messages, tools)

            neutral = Neutral(self._template.constants, self._searched)
            marked_neutral = self._marked(neutral.of(messages), neutral.of(tools))
        except _REFUSALS as error:
            if isinstance(error, RecursionError):
                why = "they are nested too deeply."
            else:
                lines = str(error).splitlines() or [""]
                why = lines[0][:200]
            raise ClientError(
                f"The model's chat template refuses these messages: {why}",
                param="messages",
            ) from error

        tokens = self._control.encode(text, self._template.written(marked))
        expected = self._control.of(self._template.written(marked_neutral))
        if plain(marked) != text or self._control.among(tokens) != expected:
            raise ClientError(
                "The model's chat template writes other control tokens because of what these messages say, which is "
                "not allowed; leave out what looks like the model's own markup, or use /v1/completions.",
                param="messages",
                code="invalid_value",
            )

        return tokens

    def _rendered(self, messages: Messages, tools: Tools) -> str:
        """The chat as transformers writes it."""
        rendered: str = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=_listed(tools),
            chat_template=self._source,
            add_generation_prompt=True,
            tokenize=False,
        )
        return rendered

    def _marked(self, messages: Messages, tools: Tools) -> str:
        """The same with marks on the template's own text."""
        return self._template.render(
            self._tokenizer.special_tokens_map,
            messages=own_roles(messages),
            tools=_listed(tools),
            documents=None,
            add_generation_prompt=True,
        )

    def _same_as_before(self, messages: Messages, tools: Tools) -> bool | None:
        """Whether a harmless chat gets the same tokens as in transformers; None if the template refuses it."""
        try:
            text = self._rendered(messages, tools)
        except _REFUSALS:
            return None

        marked = self._marked(messages, tools)
        if plain(marked) != text:
            return False

        tokens = self._control.encode(text, self._template.written(marked))
        backend = self._tokenizer.backend_tokenizer
        return tokens == list(backend.encode(text, add_special_tokens=False).ids)


def _listed(tools: Tools) -> list[Mapping[str, Any]] | None:
    """The tools as templates take them: None instead of an empty list."""
    if tools:
        return list(tools)
    return None


class Neutral:
    """Replaces the contents of one chat by meaningless letters.

    Lengths, white space at the ends, equality of short strings, and strings that the template may search for are kept.
    """

    def __init__(self, constants: frozenset[str], searched: re.Pattern[str]) -> None:
        """`searched`: a pattern of the constants that may stand within a content."""
        self._constants = constants
        self._searched = searched
        self._seen: dict[str, str] = {}

    def of(self, value: Any) -> Any:
        """The same structure with neutral strings."""
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, Mapping):
            return {self._string(key): self.of(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(item) for item in value]

        return value

    def _string(self, text: str) -> str:
        if text in self._constants or text in ROLES or not text.strip():
            return text
        if len(text) > 64:
            return self._covered(text)

        if text not in self._seen:
            self._seen[text] = self._covered(text, len(self._seen) + 1)
        return self._seen[text]

    def _covered(self, text: str, number: int = 0) -> str:
        """The text with `x` instead of all that is not kept; it ends with the number, in letters."""
        core = text.strip()
        before, after = text.split(core, 1)

        pieces: list[str] = []
        covered = 0
        for match in self._searched.finditer(core):
            pieces.append("x" * (match.start() - covered))
            pieces.append(match[0])
            covered = match.end()
        pieces.append(_numbered(len(core) - covered, number))

        neutral = "".join(pieces)
        for place in (0, len(core) - 1):
            if core[place] in self._constants:
                neutral = neutral[:place] + core[place] + neutral[place + 1 :]

        return before + neutral + after


def _numbered(length: int, number: int) -> str:
    """`length` letters, which differ for different numbers as far as `length` allows."""
    digits = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits

    if length:
        return digits[-length:].rjust(length, "x")
    return ""


INTRODUCTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""As the templates of Qwen 2.5 introduce them."""


def in_words(messages: Messages, tools: Tools) -> list[dict[str, Any]]:
    """The same chat without tools: they stand in the system message, calls and their results in the texts."""
    plain: list[dict[str, Any]] = []
    role = ""
    for message in messages:
        follows_result = role == "tool"
        role = message["role"]
        if role != "tool":
            texts = [message["content"]]
            for call in message.get("tool_calls", ()):
                texts.append(_tagged("tool_call", json.dumps(call["function"])))
            plain.append({"role": role, "content": "\n".join(filter(None, texts))})
            continue

        # Results of one message's calls stand in one message of the user.
        result = _tagged("tool_response", message["content"])
        if follows_result:
            plain[-1]["content"] += "\n" + result
        else:
            plain.append({"role": "user", "content": result})

    if tools:
        words = INTRODUCTION.format(tools="\n".join(map(json.dumps, tools)))
        if plain and plain[0]["role"] == "system":
            words = plain.pop(0)["content"] + "\n\n" + words
        plain.insert(0, {"role": "system", "content": words})

    return plain


def _tagged(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"


_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
INCOMPLETE = "\ufffd"


class Text:
    """The text side of a model, on top of its transformers tokenizer. Raises ModelError if it has no vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pieces = _pieces(tokenizer)
        self._strip = self._pieces is not None and _strips_first_space(tokenizer)
        template = tokenizer.chat_template
        if isinstance(template, Mapping):
            template = template.get("default")
        self._template: str = template or ""

    def render_chat(self, messages: Messages, tools: Tools = None) -> list[int]:
        """The messages as a prompt for the assistant's next one.

        Raises ClientError 400 if the model has no chat template, or its template refuses these messages.
        """
        if not self._template:
            raise ClientError(
                "This model has no chat template; use /v1/completions.",
                code="unsupported_model",
            )
        if isinstance(self._chats, ModelError):
            raise ClientError(f"{self._chats} Use /v1/completions.", code="unsupported_model")

        if "tools" not in self._template:
            called = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
            if tools or called:
                return self._chats.encode(in_words(messages, tools), None)

        return self._chats.encode(messages, tools)

    @property
    def chat_fault(self) -> str | None:
        """Why this model's chats are refused though it has a template; None if they are served."""
        if self._template and isinstance(self._chats, ModelError):
            return str(self._chats)
        return None

    @functools.cached_property
    def _chats(self) -> ChatEncoder | ModelError:
        """Takes half a second for 50,000 tokens; made at the first use, which is at the gateway's start."""
        try:
            return ChatEncoder(self._tokenizer)
        except ModelError as error:
            return error

    def encode(self, text: str) -> list[int]:
        """The tokens of a raw prompt, with a leading one if the model was trained with it."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=True)]

    def continuation(self, text: str) -> list[int]:
        """The tokens of a text that continues a prompt, such as a completion."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]

    def spell(self, token: int) -> bytes:
        """The bytes of one token; of a special one its name."""
        if self._pieces is not None and token < len(self._pieces) and self._pieces[token]:
            return self._pieces[token]

        text: str = self._tokenizer.decode([token], skip_special_tokens=False)
        return text.encode()

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of all these tokens at once, without special ones."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def detokeniser(self) -> _Bytes | _Whole:
        """A new one for one completion: `feed` returns text once it can no longer change, `flush` the rest."""
        if self._pieces is None:
            return _Whole(self.decode)
        return _Bytes(self._pieces, strip=self._strip)


class _Bytes:
    """For tokenizers whose tokens are bytes, as in nearly all language models; an unfinished character is held."""

    def __init__(self, pieces: Sequence[bytes], *, strip: bool) -> None:
        self._pieces = pieces
        self._strip = strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        if not 0 <= token < len(self._pieces):
            return ""

        piece = self._pieces[token]
        if self._strip and piece:
            piece = piece.removeprefix(b" ")
            self._strip = False
        return self._decoder.decode(piece)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Whole:
    """For any tokenizer: the text of all tokens, less the text returned before. Takes quadratic time."""

    def __init__(self, decode: Any) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._returned = 0

    def feed(self, token: int) -> str:
        self._tokens.append(token)
        return self._new(self._decode(self._tokens).rstrip(INCOMPLETE))

    def flush(self) -> str:
        return self._new(self._decode(self._tokens))

    def _new(self, text: str) -> str:
        """What of the text was not returned before."""
        new = text[self._returned :]
        self._returned += len(new)
        return new


@functools.cache
def _byte_of_letter() -> dict[str, int]:
    """GPT-2's printable stand-ins: letter -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    byte_of = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    for number, byte in enumerate(hidden):
        byte_of[chr(256 + number)] = byte

    return byte_of


def _pieces(tokenizer: Any) -> list[bytes] | None:
    """The bytes of every token, nothing for special ones; None if tokens are not plain pieces of bytes."""
    steps = [step.get("type") for step in _decoder_steps(tokenizer)]
    if steps == ["ByteLevel"]:
        piece_of = _byte_level_piece
    elif "ByteFallback" in steps and set(steps) <= {
        "Replace",
        "ByteFallback",
        "Fuse",
        "Strip",
    }:
        piece_of = _sentencepiece_piece
    else:
        return None

    vocabulary: dict[str, int] = tokenizer.get_vocab()
    if not vocabulary:
        raise ModelError("The model's tokenizer has no vocabulary; fetch the model again.")

    pieces = [b""] * (max(vocabulary.values()) + 1)
    for text, token in vocabulary.items():
        pieces[token] = piece_of(text)
    for token, added in tokenizer.added_tokens_decoder.items():
        pieces[token] = b""
        if not added.special:
            pieces[token] = added.content.encode()

    return pieces


def _byte_level_piece(token: str) -> bytes:
    letters = _byte_of_letter()
    if all(c in letters for c in token):
        return bytes(letters[c] for c in token)
    return token.encode()


def _sentencepiece_piece(token: str) -> bytes:
    byte = _BYTE_TOKEN.match(token)
    if byte:
        return bytes([int(byte[1], 16)])
    return token.replace("\u2581", " ").encode()


def _decoder_steps(tokenizer: Any) -> list[dict[str, Any]]:
    """How a fast tokenizer makes text of its tokens; nothing of another one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return []

    decoder = json.loads(backend.to_str()).get("decoder") or {}
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return steps


def _strips_first_space(tokenizer: Any) -> bool:
    """Whether decoding removes the space that SentencePiece adds before the first word."""
    return any(step.get("type") == "Strip" and step.get("start") for step in _decoder_steps(tokenizer))
