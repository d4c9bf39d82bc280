"""What is sent to vLLM's `/v1/completions`, and the chunks that come back; pure.

Prompts go as token ids, and tokens come back as ids: no text of a client passes through vLLM's tokenizer or templates.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import msgspec
from msgspec import Struct

from cloud_gateway.api.generation import ServedModel
from cloud_gateway.api.grammars import LAYOUT, Constraints, Grammar, Grammars
from cloud_gateway.core.requests.request import Finish, GenerationRequest, TokensEvent
from cloud_gateway.core.verify.interface import Constraint
from edgespec.core.errors import ClientError, refusal
from edgespec_vllm.hook import CONSENT, TAG

RETRY_S = 5.0
"""After which a client may try again, if vLLM names no time."""
_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0}
REFUSES: Mapping[str, str] = {
    "min_p": "vLLM has no 'min_p' while drafts are verified",
    "logit_bias": "vLLM has no 'logit_bias' while drafts are verified",
    "seed": "vLLM draws another text for a seed when a worker drafts; leave it out, set 'temperature' to 0, or send "
    '"edgespec": {"offload": "never"}',
}
"""Parameters of requests that vLLM cannot serve while it verifies drafts; `seed` only if a worker may draft."""


PASSED_ON = (400, 413, 422, 429)
"""Statuses of vLLM that are about the client's request. The others are about this gateway's: its key, its address."""
_REFERENCE = re.compile(r"@(\w+)")
"""A rule that the root of a grammar refers to."""
SHOWN = 300
"""Characters of a sentence of vLLM's."""


class UpstreamError(Exception):
    """vLLM sent what is no completion."""


class RefusedError(Exception):
    """vLLM serves this request not; `error` is what the client gets. Its text may quote the request: log `status`."""

    def __init__(self, status: int, error: ClientError) -> None:
        super().__init__(f"status {status} for a request")
        self.error = error


def in_one_text(grammar: Grammar) -> str:
    """A grammar in Lark's notation, with the rules that its root refers to."""
    if isinstance(grammar.root, str):
        start = _REFERENCE.sub(r"json_\1", grammar.root)
        named = grammar.named
    else:
        start = "start: json_json"
        named = {"json": grammar.root}

    lines = [start]
    for name, rules in named.items():
        if isinstance(rules, str):
            lines.append(f"json_{name}: %lark {{\n{rules}\n}}")
        else:
            lines.append(f"json_{name}: %json {json.dumps({**rules, 'x-guidance': LAYOUT})}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class SentGrammar:
    """A grammar that vLLM follows by itself, in the place of a constraint."""

    text: str


class SentGrammars:
    """Checks grammars as the gateway's own engine does, and writes each as one text in Lark's notation."""

    def __init__(self, own: Grammars) -> None:
        self._own = own

    def compile(self, grammar: Grammar, scope: bytes) -> Constraints:
        """The engine sends the text, and calls nothing of the constraint. Raises ClientError 400."""
        self._own.compile(grammar, scope)
        return lambda: cast(Constraint, SentGrammar(in_one_text(grammar)))

    def close(self) -> None:
        """Ends compilations at once."""
        self._own.close()


@runtime_checkable
class BestReader(Protocol):
    """A `RowReader` that takes the most probable tokens in the place of a row, since vLLM sends no rows."""

    top: int
    """So many of them."""

    def read_best(self, logprob: float, best: Iterable[tuple[int, float]]) -> object:
        """The value that goes to the API with a token.

        `logprob`: of the token that was drawn; `best`: tokens with theirs.
        """


def reader_of(request: GenerationRequest) -> BestReader | None:
    """The one that the request has; None if it has none."""
    reader = request.row_reader
    if isinstance(reader, BestReader):
        return reader
    return None


def check(request: GenerationRequest) -> None:
    """Raises ClientError 400 for an option of the gateway's own engine."""
    if request.row_reader is not None and reader_of(request) is None:
        sentence = "This request asks for what is read from rows of the model, and vLLM, which computes it, sends none."
        raise ClientError(sentence, code="unsupported_parameter")

    asked = request.speculation
    for name in ("policy", "k", "phi", "prefer", "sources", "verification"):
        if getattr(asked, name) is not None:
            raise refusal(f"edgespec.{name}", "vLLM verifies here, which has no such option", "unsupported_parameter")


def body(
    request: GenerationRequest, model: ServedModel, name: str, eos: frozenset[int], *, drafted: bool, tag: str
) -> dict[str, Any]:
    """The request; `name`: the model's at vLLM; `drafted`: whether workers may see it."""
    sampling = request.sampling
    room = model.context - len(request.tokens)
    found: dict[str, Any] = {
        "model": name, "prompt": list(request.tokens), "max_tokens": min(request.max_tokens, room), "stream": True,
        "return_token_ids": True, "add_special_tokens": False, "temperature": sampling.temperature,
        "top_p": sampling.top_p, "top_k": sampling.top_k or -1, "ignore_eos": request.ignore_eos,
        "stop_token_ids": [] if request.ignore_eos else sorted(eos),
        "min_tokens": request.min_tokens, "cache_salt": request.cache_scope.hex() or secrets.token_hex(16),
    }  # fmt: skip
    found |= {key: getattr(sampling, key) for key, value in _NEUTRAL.items() if getattr(sampling, key) != value}
    if sampling.temperature and not drafted:
        found["seed"] = sampling.seed
    if sampling.logit_bias:
        found["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    reader = reader_of(request)
    if reader is not None:
        found |= {"logprobs": reader.top, "return_tokens_as_token_ids": True}
    if request.constraint is not None:
        found["structured_outputs"] = {"grammar": cast(SentGrammar, request.constraint).text}
    if drafted:
        found["vllm_xargs"] = {CONSENT: " ".join(sorted(request.groups)), TAG: tag}
    return found


class Logprobs(Struct):
    """Of the tokens of a chunk; names of tokens are `token_id:N`."""

    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class Choice(Struct):
    """The one completion."""

    index: int = -1
    """The number of its prompt; a stream has one."""
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Fault(Struct):
    """Why there is no completion, in a stream with the status as `code`."""

    message: str = ""
    code: int | str | None = None


class Chunk(Struct):
    """One event of the stream, or the body of a response with an error."""

    choices: list[Choice] = []
    error: Fault | None = None


decode = msgspec.json.Decoder(Chunk).decode


def refused(status: int, body: bytes, retry_after: str | None = None) -> RefusedError:
    """What a response with an error means for the client; `body` may be anything."""
    with contextlib.suppress(msgspec.MsgspecError):
        return _refused(status, decode(body).error or Fault(), retry_after)
    return _refused(status, Fault(), retry_after)


def _refused(status: int, fault: Fault, retry_after: str | None = None) -> RefusedError:
    wait_s = float(retry_after) if retry_after and retry_after.isdecimal() else RETRY_S
    if status == 503:
        return RefusedError(status, away("vLLM takes no requests at present"))
    if status not in PASSED_ON:
        return RefusedError(status, failed())

    why = " ".join(fault.message.split())[:SHOWN] or f"status {status}"
    code, after = ("engine_busy", wait_s) if status == 429 else ("engine_refused", None)
    error = ClientError(f"vLLM refuses this request: {why}", status=status, code=code, retry_after_s=after)
    return RefusedError(status, error)


def choice_of(line: bytes, vocab_size: int) -> Choice | None:
    """What a line of the stream brings; None for one without tokens. Raises UpstreamError, RefusedError."""
    if not line.startswith(b"data:") or line.rstrip() == b"data: [DONE]":
        return None

    try:
        chunk = decode(line[5:])
    except msgspec.MsgspecError:
        raise UpstreamError("an event that cannot be read") from None
    if chunk.error is not None:
        raise _refused(chunk.error.code if isinstance(chunk.error.code, int) else 500, chunk.error)

    found = chunk.choices[0] if chunk.choices else None
    if found is not None and not all(0 <= token < vocab_size for token in found.token_ids or ()):
        raise UpstreamError("a token outside the vocabulary")

    return found


def event_of(found: Choice, eos: frozenset[int], reader: BestReader | None) -> TokensEvent | None:
    """The tokens for the client: without one that ends the text."""
    tokens = list(found.token_ids or ())
    if found.finish_reason == "stop" and tokens and tokens[-1] in eos:
        tokens.pop()
    if not tokens:
        return None
    return TokensEvent(tokens, None if reader is None else _readings(found.logprobs, len(tokens), reader))


def _readings(found: Logprobs | None, count: int, reader: BestReader) -> Sequence[object]:
    if found is None or min(len(found.token_logprobs), len(found.top_logprobs)) < count:
        raise UpstreamError("log-probabilities are missing")

    readings = []
    for own, others in list(zip(found.token_logprobs, found.top_logprobs))[:count]:
        best = [(int(name.removeprefix("token_id:")), value) for name, value in (others or {}).items()]
        readings.append(reader.read_best(0.0 if own is None else own, best))

    return readings


def finish_of(reason: str | None) -> Finish:
    """How it ended, in the engine's words. Raises UpstreamError."""
    if reason == "stop":
        return "stop"
    if reason == "length":
        return "length"
    raise UpstreamError("the stream ended early" if reason is None else f"it ended with {reason[:20]!r}")


def failed() -> ClientError:
    """502 for what is no completion, and no fault of the client's."""
    sentence = "vLLM, which computes this gateway's model, failed on the request; please try again."
    return ClientError(sentence, status=502, code="engine_failed")


def away(why: str = "vLLM has stopped and is started again") -> ClientError:
    """503 while there is no vLLM."""
    return ClientError(
        f"{why}; send the request again shortly.", status=503, code="engine_stopped", retry_after_s=RETRY_S
    )
