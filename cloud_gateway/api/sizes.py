"""Checks of sizes before anything is tokenised: prompts, completions, bytes. Each takes linear time at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from cloud_gateway.api.limits import Limits, ServedModel
from cloud_gateway.api.schema import ChatBody, ChatMessage, Common, CompletionBody
from edgespec.core.errors import ClientError, refusal

MAX_BYTES_PER_TOKEN = 8
"""Of a whole prompt, on average. English has about 4 bytes a token and source code 3; a text with more than 8 is white
space or one word over and over, and tokenising it takes as long as tokenising a text that fits."""
MAX_CONTAINERS, MAX_COMMAS = 16_384, 65_536
"""Objects and lists of a body, and its commas, beside one container and eight commas for each token of the context:
prompts may be lists of tokens, and text may hold brackets and commas too. Decoding a list takes about a microsecond,
on the event loop."""


def check_structure(data: bytes, context: int) -> None:
    """Raises ClientError 400 for a body that would take long to decode. Takes about 1 ms for 4 MiB."""
    for marks, most in ((b"[{", MAX_CONTAINERS + context), (b",", MAX_COMMAS + 8 * context)):
        if sum(data.count(mark) for mark in marks) > most:
            sentence = f"The request body has more than {most} of the characters {marks.decode()}; send less at once."
            raise ClientError(sentence, code="request_too_complex")


def check_size(body: Common, model: ServedModel, limits: Limits) -> int:
    """The number of completions that the body requests. Raises ClientError 400."""
    prompts = _prompts(body)
    answers = (body.n or 1) * len(prompts)
    if answers > limits.max_choices:
        param = "n" if len(prompts) <= limits.max_choices else "prompt"
        raise refusal(param, f"one request gets at most {limits.max_choices} answers here")
    if isinstance(body, ChatBody):
        size = sum(map(_message_bytes, body.messages))
        if body.tools:
            size += len(msgspec.json.encode(body.tools))
        _check_bytes(size, model, "messages")
    for prompt in prompts:
        if isinstance(prompt, str):
            _check_bytes(_bytes(prompt), model, "prompt")
        elif isinstance(prompt, list):
            check_tokens(len(prompt), model, "prompt")
    return answers


def check_tokens(tokens: int, model: ServedModel, param: str) -> None:
    """Raises ClientError 400 where a prompt of so many tokens leaves no room for a completion."""
    if not tokens:
        raise refusal(param, "it has no tokens")
    if tokens >= model.context:
        raise too_long(f"{tokens} tokens", model, param)


def too_long(what: str, model: ServedModel, param: str) -> ClientError:
    """The error for a prompt that does not fit, in OpenAI's words, which some libraries search for."""
    sentence = (
        f"This model's maximum context length is {model.context} tokens. However, your {param} resulted in {what}"
    )
    return ClientError(f"{sentence}. Please reduce their length.", param=param, code="context_length_exceeded")


def _prompts(body: Common) -> Sequence[Any]:
    if not isinstance(body, CompletionBody):
        return [None]
    prompt = body.prompt
    if isinstance(prompt, str) or all(isinstance(item, int) for item in prompt):
        return [prompt]
    return prompt


def _message_bytes(message: ChatMessage) -> int:
    """Bytes of a message's content and calls, and those of one token for the message itself."""
    content = message.content
    parts = [content] if isinstance(content, str) else [part.text or "" for part in content or ()]
    calls = sum(len(bytes(call)) for call in message.tool_calls or ())
    return MAX_BYTES_PER_TOKEN + sum(map(_bytes, parts)) + calls


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _check_bytes(size: int, model: ServedModel, param: str) -> None:
    if size > MAX_BYTES_PER_TOKEN * model.context:
        raise too_long(f"{size} bytes, more than {MAX_BYTES_PER_TOKEN} for each of them", model, param)
