"""Decoders of what clients, models, other servers and this machine's own commands send."""

from __future__ import annotations

from functools import partial

from cloud_gateway.api.bodies import Served, asked
from cloud_gateway.api.generation import ServedModel
from cloud_gateway.api.schema import ChatBody, Common, CompletionBody, chat_messages
from cloud_gateway.core.requests.request import OPTIONS
from cloud_gateway.parts import all_parts
from cloud_gateway.process.loading import parameters_of
from edgespec.core.errors import ClientError, LocalProtocolError
from edgespec.shared.control import _decode_request
from edgespec_lab.survey.answer import Answer, NotAStreamError
from tools.doubles.limits import request_limits
from tools.fuzz.decoder import JSON, Decoder
from tools.parts import PARAMETERS

MODEL = ServedModel("fuzz", created=0, context=512, vocab_size=300, fingerprint="f")
LIMITS = request_limits(client_options=OPTIONS, parameters=parameters_of(all_parts()))
PIECE = 40
"""Bytes or characters that arrive at once, so that nothing lies whole in one piece."""


def table() -> dict[str, Decoder]:
    """By name."""
    return {
        "chat body": Decoder(partial(_body, kind=ChatBody), _CHATS, ClientError, JSON, cost=2),
        "completion body": Decoder(partial(_body, kind=CompletionBody), _COMPLETIONS, ClientError, JSON, cost=2),
        "stream of an endpoint": Decoder(_stream, _STREAMS, NotAStreamError),
        "control request": Decoder(_decode_request, [b'{"method":"pair","params":{"groups":["lab"]}}\n'],
                                   LocalProtocolError, JSON),
    }  # fmt: skip


def _body(data: bytes, kind: type[Common]) -> object:
    """All that is done with a body up to its prompt."""
    try:
        found = asked(data, kind, Served(MODEL, (MODEL.id,), LIMITS))
        if isinstance(found.body, ChatBody):
            chat_messages(found.body.messages)
        for option in found.options:
            option.prepare(lambda text: list(text.encode()), MODEL.context)
    except ClientError as error:
        assert error.status == (404 if error.code == "model_not_found" else 400), f"{error.status} for a body"
        raise

    return found.body


def _stream(data: bytes) -> object:
    answer = Answer()
    for at in range(0, len(data), 10 * PIECE):
        answer.feed(data[at : at + 10 * PIECE], at / 100)
    return answer


_CHATS = [
    (
        b'{"model":"fuzz","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"temperature":0.5,"seed":1,'
        b'"logit_bias":{"3":-1.5},"stop":["a"],"stream":true,"stream_options":{"include_usage":true},'
        b'"edgespec":{"policy":"adaptive","k":2,"offload":"never"}}'
    ),
    *PARAMETERS,
]
_COMPLETIONS = [
    b'{"model":"fuzz","prompt":"once","max_tokens":3,"top_p":0.5,"top_k":-1,"logprobs":2,"echo":false,"best_of":1}',
    b'{"model":"fuzz","prompt":[[1,2,3],[4]],"n":2,"presence_penalty":-2,"frequency_penalty":2,"min_p":0}',
]
_STREAMS = [
    (
        b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\r\n\r\n: ping\n\n'
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"completion_tokens":3}}\n\ndata: [DONE]\n\n'
    ),
]
