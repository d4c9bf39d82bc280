"""From a validated body to the engine's requests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from cloud_gateway.api.limits import Limits, ServedModel
from cloud_gateway.api.schema import ChatBody, Common, CompletionBody
from cloud_gateway.api.sizes import check_tokens
from cloud_gateway.core.requests.options import Extension
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.verify.interface import Constraint
from edgespec.core.errors import refusal
from edgespec.core.protocol.messages import Sampling

SEED_SPAN = 2**63
"""Seeds of the engine are 63 bits wide; the API accepts signed 64-bit ones and maps the negative half onto them."""


def generations(
    body: Common,
    prompts: Sequence[Sequence[int]],
    model: ServedModel,
    limits: Limits,
    *,
    may_offload: bool,
    cache_scope: bytes = b"",
    constraint: Callable[[], Constraint] | None = None,
) -> list[GenerationRequest]:
    """The completions to generate: `n` for each prompt, prompt by prompt. Raises ClientError 400 naming the parameter.

    `constraint` returns a new one for each completion.
    """
    n = body.n or 1
    for prompt in prompts:
        check_tokens(len(prompt), model, "messages" if isinstance(body, ChatBody) else "prompt")
    outside = max(body.logit_bias or [0])
    if outside >= model.vocab_size:
        raise refusal("logit_bias", f"token {outside} is outside the model's vocabulary of {model.vocab_size}")
    lengths = [_max_tokens(body, len(prompt), model, limits) for prompt in prompts]
    most = max(limits.max_request_tokens, limits.api.max_tokens_limit)
    if n * sum(lengths) > most:
        why = f"all answers of one request together get at most {most} tokens here; ask for fewer, or shorter ones"
        raise refusal("n" if n > 1 else "max_tokens", why)
    seed = secrets.randbits(63) if body.seed is None else body.seed
    extension = body.edgespec or Extension()
    if extension.verification == "rejection" and body.seed is not None:
        raise refusal(
            "edgespec.verification", "with 'rejection' no seed can give the same text again; leave 'seed' out"
        )
    speculation = extension if may_offload else replace(extension, offload="never")
    return [
        GenerationRequest(
            tokens=prompt,
            max_tokens=length,
            sampling=_sampling(body, (seed + choice) % SEED_SPAN),
            stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
            ignore_eos=bool(extension.ignore_eos),
            speculation=speculation,
            constraint=constraint() if constraint else None,
            cache_scope=cache_scope,
            top_logprobs=_top_logprobs(body),
        )
        for prompt, length in zip(prompts, lengths, strict=True)
        for choice in range(n)
    ]


def _top_logprobs(body: Common) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    assert isinstance(body, ChatBody)
    return (body.top_logprobs or 0) if body.logprobs else None


def _max_tokens(body: Common, prompt_tokens: int, model: ServedModel, limits: Limits) -> int:
    name, asked = "max_tokens", body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        if asked not in (None, body.max_completion_tokens):
            raise refusal("max_tokens", "it differs from 'max_completion_tokens', which means the same")
        name, asked = "max_completion_tokens", body.max_completion_tokens
    if asked is not None:
        if asked > limits.api.max_tokens_limit:
            raise refusal(name, f"this gateway gives at most {limits.api.max_tokens_limit} tokens in one answer")
        return asked
    room = max(1, model.context - prompt_tokens)  # a prompt without any room is refused by the engine
    return min(room, limits.api.max_tokens, limits.api.max_tokens_limit)


def _sampling(body: Common, seed: int) -> Sampling:
    return Sampling(
        temperature=_or(body.temperature, 1.0),
        top_k=max(0, body.top_k or 0),
        top_p=_or(body.top_p, 1.0),
        min_p=_or(body.min_p, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=body.logit_bias or {},
        seed=seed,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)
