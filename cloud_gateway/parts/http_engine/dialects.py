"""What is sent to a server and what comes back, in the two dialects that show token ids; pure.

`OpenAi` is `/v1/completions` with `return_token_ids`, as vLLM has it. `LlamaServer` is llama.cpp's own `/completion`
with `return_tokens`: its `/v1/completions` answers with text alone, and a text is not its tokens. Its streams leave out
each token behind which the text is in the middle of a character, so it is asked for some tokens at a time instead. A
third kind of server needs another `Dialect` here and a line in `server.py`, which chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from edgespec.core.errors import UNDECODABLE
from edgespec.core.protocol.messages import Sampling

Body = Mapping[str, Any]
GREEDY = Sampling()


class GarbledError(Exception):
    """The server sent what is no completion; the text says what, in a few words and none of the server's."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the server has to be sent with each prompt of one completion."""

    model: str
    """The model's name at the server."""
    sampling: Sampling = GREEDY
    ignore_eos: bool = False
    salt: str = ""
    """Only prompts of equal salt share what the server keeps of a prefix, if it takes one."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens that the server drew, in their order."""

    tokens: Sequence[int] = ()
    stop: bool = False
    """The model ended its text; the token that ended it may be missing in `tokens`."""
    length: bool = False
    """The server ended the text, at the number of tokens that it was asked for or has room for."""


@dataclass(frozen=True, slots=True)
class ServerRefusal:
    """Why there is no completion, in the server's words."""

    message: str = ""
    status: int = 500


class Dialect(Protocol):
    """One kind of server. `decode` methods raise GarbledError."""

    name: str
    completions: str
    """The path to which both kinds of body go."""
    scoped: bool
    """Whether the server keeps prefixes of different salts apart."""
    streams: bool
    """Whether its streams have every token."""

    def stream(self, question: Question, prompt: Sequence[int], tokens: int) -> Body:
        """The body that asks for up to so many tokens: by events if the dialect `streams`, else in one response."""

    def rows(self, question: Question, prompts: Sequence[Sequence[int]]) -> Body:
        """The body that asks for one token after each prompt."""

    def decode_event(self, line: bytes) -> Drawn | ServerRefusal | None:
        """What a line of the stream brings, or the whole response; None for a line without tokens."""

    def decode_rows(self, body: bytes, count: int) -> Sequence[Drawn]:
        """One token, or the end of the text, after each of `count` prompts."""

    def scores(self, question: Question, prompt: Sequence[int]) -> Body | None:
        """The body that asks for the log-probabilities of a prompt's tokens; None if nothing does."""

    def tokenize(self, model: str, text: str) -> Body:
        """The body for `/tokenize`, whose response has `tokens`."""


class Fault(Struct):
    message: str = ""
    code: int | str | None = None


class Failure(Struct):
    error: Fault | str | None = None
    message: str = ""


def refusal_of(status: int, body: bytes) -> ServerRefusal:
    """What a response with an error says; `body` may be anything."""
    try:
        failure = msgspec.json.decode(body, type=Failure)
    except UNDECODABLE:
        return ServerRefusal("", status)

    if isinstance(failure.error, Fault):
        return ServerRefusal(failure.error.message, status)
    return ServerRefusal(failure.error or failure.message, status)


def in_stream(fault: Fault) -> ServerRefusal:
    """An error that came in the place of an event."""
    if isinstance(fault.code, int):
        return ServerRefusal(fault.message, fault.code)
    return ServerRefusal(fault.message)


def event_data(line: bytes) -> bytes | None:
    """The JSON of a line of an event stream; None for a comment, a pause or the end."""
    if not line.startswith(b"data:"):
        return None

    data = line[5:].strip()
    if data == b"[DONE]":
        return None
    return data


def decode_completion(data: bytes, kind: Any) -> Any:
    """A completion of this type. Raises GarbledError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNDECODABLE:
        raise GarbledError("a completion that cannot be read") from None


def in_order(drawn: Mapping[int, Drawn], count: int) -> Sequence[Drawn]:
    """The rows of a response by the numbers of their prompts. Raises GarbledError."""
    if sorted(drawn) != list(range(count)):
        raise GarbledError(f"{len(drawn)} rows of {count}")
    for row in drawn.values():
        if len(row.tokens) > 1 or not (row.tokens or row.stop):
            raise GarbledError("a row without a token")

    return [drawn[index] for index in range(count)]


class Choice(Struct):
    """A completion, or a piece of one. `index`: the number of its prompt."""

    index: int = -1
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    def drawn(self) -> Drawn:
        return Drawn(self.token_ids or (), stop=self.finish_reason == "stop", length=self.finish_reason == "length")


class Chunk(Struct):
    choices: list[Choice] = []
    error: Fault | None = None


class OpenAi:
    """A `Dialect`."""

    name = "openai"
    completions = "/v1/completions"
    scoped = True
    streams = True

    def stream(self, question: Question, prompt: Sequence[int], tokens: int) -> Body:
        return {**self._body(question), "prompt": prompt, "max_tokens": tokens, "stream": True}

    def rows(self, question: Question, prompts: Sequence[Sequence[int]]) -> Body:
        return {**self._body(question), "prompt": prompts, "max_tokens": 1}

    def decode_event(self, line: bytes) -> Drawn | ServerRefusal | None:
        data = event_data(line)
        if data is None:
            return None

        chunk = decode_completion(data, Chunk)
        if chunk.error is not None:
            return in_stream(chunk.error)
        if not chunk.choices:
            return None
        return chunk.choices[0].drawn()

    def decode_rows(self, body: bytes, count: int) -> Sequence[Drawn]:
        choices = decode_completion(body, Chunk).choices
        return in_order({choice.index: choice.drawn() for choice in choices}, count)

    def scores(self, question: Question, prompt: Sequence[int]) -> Body | None:
        return {**self._body(question), "prompt": prompt, "max_tokens": 1, "prompt_logprobs": 1}

    def tokenize(self, model: str, text: str) -> Body:
        return {"model": model, "prompt": text, "add_special_tokens": False}

    def _body(self, question: Question) -> dict[str, Any]:
        sampling = question.sampling
        body: dict[str, Any] = {
            "model": question.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "ignore_eos": question.ignore_eos,
            "return_token_ids": True,
            "add_special_tokens": False,
        }
        if sampling.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
        if question.salt:
            body["cache_salt"] = question.salt
        return body


class Completion(Struct):
    """A completion of llama-server. `index`: the number of its prompt."""

    index: int = 0
    tokens: list[int] = []
    stop_type: str = ""

    def drawn(self) -> Drawn:
        return Drawn(self.tokens, stop=self.stop_type in ("eos", "word"), length=self.stop_type == "limit")


WHOLE = 1 << 17
"""Tokens that penalties look back in llama-server: more than it has. It reserves four bytes for each."""


class LlamaServer:
    """A `Dialect`."""

    name = "llama-server"
    completions = "/completion"
    scoped = False
    streams = False

    def stream(self, question: Question, prompt: Sequence[int], tokens: int) -> Body:
        return {**self._body(question), "prompt": prompt, "n_predict": tokens}

    def rows(self, question: Question, prompts: Sequence[Sequence[int]]) -> Body:
        return {**self._body(question), "prompt": prompts, "n_predict": 1}

    def decode_event(self, line: bytes) -> Drawn | ServerRefusal | None:
        return decode_completion(line, Completion).drawn()

    def decode_rows(self, body: bytes, count: int) -> Sequence[Drawn]:
        completions = decode_completion(body, Completion | list[Completion])
        if isinstance(completions, Completion):
            completions = [completions]
        return in_order({completion.index: completion.drawn() for completion in completions}, count)

    def scores(self, question: Question, prompt: Sequence[int]) -> Body | None:
        return None

    def tokenize(self, model: str, text: str) -> Body:
        return {"content": text, "add_special": False, "parse_special": True}

    def _body(self, question: Question) -> dict[str, Any]:
        sampling = question.sampling
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": WHOLE,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "logit_bias": list(sampling.logit_bias.items()),
            "ignore_eos": question.ignore_eos,
            "cache_prompt": True,
            "return_tokens": True,
        }
