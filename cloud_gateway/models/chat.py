"""Chats as prompts in which only the chat template's own control tokens are control tokens.

What a client sends stays text, also where it is split over messages and fields. Ordinary chats become the same tokens
as in transformers' `apply_chat_template`, which turns all text that equals a control token into one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from cloud_gateway.models.chat_template import (
    ROLES,
    ChatTemplate,
    ControlTokens,
    Span,
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
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}
_TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
PROBES: Sequence[tuple[Messages, Tools]] = (
    (_ASK, None),
    ([{"role": "system", "content": "Be kind."}, *_ASK, {"role": "assistant", "content": "c"}, *_ASK], None),
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
    """Renders and encodes chats for one model. Raises ModelError where its template's own text cannot be traced."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        try:
            self._source: str = tokenizer.get_chat_template()
            self._control = ControlTokens(tokenizer, self._source)
            self._template = ChatTemplate(self._source, self._control.ids)
        except (jinja2.TemplateError, ValueError) as error:
            raise ModelError(f"The model's chat template cannot be read ({type(error).__name__}).") from error
        looked_for = [text for text in self._template.constants if len(text) > 1 or text == "\n"]
        looked_for.sort(key=len, reverse=True)
        self._looked_for = re.compile("|".join(map(re.escape, looked_for)) or "(?!)")
        tried = [self._same_as_before(messages, tools) for messages, tools in PROBES]
        if False in tried or True not in tried:
            raise ModelError("The control tokens of the model's chat template cannot be distinguished from text.")

    def encode(self, messages: Messages, tools: Tools) -> list[int]:
        """The tokens of a chat, as a prompt for the assistant's next message. Raises ClientError 400.

        Two renderings prove each time that no control token comes from the client: the one with marks is the
        template's ordinary result, and the one of the same chat with neutral contents has the same control tokens.
        """
        try:
            refuse_reserved([messages, tools])
            text, marked = self._rendered(messages, tools), self._marked(messages, tools)
            if plain(marked) != text:  # again, for a template that writes the time, which may have changed
                text, marked = self._rendered(messages, tools), self._marked(messages, tools)
            neutral = Neutral(self._template.constants, self._looked_for)
            without = self._marked(neutral.of(messages), neutral.of(tools))
        except _REFUSALS as error:
            deep = isinstance(error, RecursionError)
            why = "they are nested too deeply." if deep else next(iter(str(error).splitlines()), "")[:200]
            raise ClientError(f"The model's chat template refuses these messages: {why}", param="messages") from error
        written = self._template.written(marked)
        tokens = self._control.encode(text, written)
        expected = self._control.of(self._template.written(without))
        if plain(marked) != text or self._control.among(tokens) != expected:
            raise ClientError(
                "The model's chat template writes other control tokens because of what these messages say, which is "
                "not allowed; leave out what looks like the model's own markup, or use /v1/completions.",
                param="messages",
                code="invalid_value",
            )
        return tokens

    def _rendered(self, messages: Messages, tools: Tools) -> str:
        rendered: str = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=list(tools) if tools else None,
            chat_template=self._source,
            add_generation_prompt=True,
            tokenize=False,
        )
        return rendered

    def _marked(self, messages: Messages, tools: Tools) -> str:
        return self._template.render(
            self._tokenizer.special_tokens_map,
            messages=own_roles(messages),
            tools=list(tools) if tools else None,
            documents=None,
            add_generation_prompt=True,
        )

    def _same_as_before(self, messages: Messages, tools: Tools) -> bool | None:
        """Whether a harmless chat gets the same tokens as in transformers; None where the template refuses it."""
        try:
            text = self._rendered(messages, tools)
        except _REFUSALS:
            return None
        before = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        marked = self._marked(messages, tools)
        written: Sequence[Span] = self._template.written(marked)
        return plain(marked) == text and bool(self._control.encode(text, written) == before)


class Neutral:
    """Replaces the contents of one chat by meaningless letters.

    Lengths, white space at the ends, equality of short strings, and strings that the template may search for are kept.
    """

    def __init__(self, constants: frozenset[str], looked_for: re.Pattern[str]) -> None:
        self._constants, self._looked_for = constants, looked_for
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
        core = text.strip()
        start, at, pieces = text.index(core), 0, []
        for found in self._looked_for.finditer(core):
            pieces += ["x" * (found.start() - at), found[0]]
            at = found.end()
        neutral = "".join([*pieces, _numbered(len(core) - at, number)])
        for place in (0, len(core) - 1):
            if core[place] in self._constants:
                neutral = neutral[:place] + core[place] + neutral[place + 1 :]
        return text[:start] + neutral + text[start + len(core) :]


def _numbered(length: int, number: int) -> str:
    """`length` letters, which differ for different numbers as far as `length` allows."""
    digits = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits[-length:].rjust(length, "x") if length else ""


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


def in_words(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The same chat without tools: they stand in the system message, calls and their results in the texts."""
    plain = list[dict[str, Any]]()
    for message in messages:
        if message["role"] != "tool":
            calls = [_tagged("tool_call", json.dumps(call["function"])) for call in message.get("tool_calls", ())]
            text = "\n".join([message["content"], *calls] if message["content"] else calls)
            plain.append({"role": message["role"], "content": text})
            continue
        result = _tagged("tool_response", message["content"])
        if plain and plain[-1].get("results"):
            plain[-1]["content"] += "\n" + result
        else:
            plain.append({"role": "user", "content": result, "results": True})
    if tools:
        words = INTRODUCTION.format(tools="\n".join(json.dumps(tool) for tool in tools))
        if plain and plain[0]["role"] == "system":
            words = plain.pop(0)["content"] + "\n\n" + words
        plain.insert(0, {"role": "system", "content": words})
    return [{"role": one["role"], "content": one["content"]} for one in plain]


def _tagged(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"
