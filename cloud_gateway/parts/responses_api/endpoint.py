"""`POST /v1/responses`: its completion is written as a response or as its events."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from cloud_gateway.api import Api, ServedModel
from cloud_gateway.api.completions import End, Form, TextPiece
from cloud_gateway.api.routes import Route
from cloud_gateway.api.service import CompletionKind
from cloud_gateway.api.usage import Counts, Timings
from cloud_gateway.parts.responses_api.bodies import (
    OutputCall,
    OutputMessage,
    OutputText,
    Response,
    ResponseEvent,
    ResponsesBody,
    TextFormat,
    TextOptions,
    TokenCounts,
)
from edgespec.core.errors import ClientError

RENAMED = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}
"""Parameters of chats, by the names that they have here."""


class ResponseForm(Form):
    """Responses: one message, unless its text is empty, then the calls."""

    prefix = "resp_"
    always_counts = True

    def __init__(self, model: ServedModel, body: ResponsesBody) -> None:
        super().__init__(model, body)
        self._end = End(None)
        self._text = ""
        self._number = -1
        self._message_id = f"msg_{secrets.token_hex(12)}"
        self._said = dict[str, Any](output_index=0, item_id=self._message_id, content_index=0)
        self._response = Response(
            id=self.common["id"],
            created_at=self.common["created"],
            model=body.model,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            text=TextOptions((body.text and body.text.format) or TextFormat()),
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
        )

    def whole(self, outputs: Sequence[tuple[TextPiece, End]], usage: Counts, timings: Timings) -> Struct:
        ((piece, self._end),) = outputs
        self._text = piece.text
        return self._ended(usage, timings)

    def opening(self, index: int) -> Iterator[Struct]:
        yield self._event("response.created", response=self._response)
        yield self._event("response.in_progress", response=self._response)

    def piece(self, index: int, piece: TextPiece) -> Iterator[Struct]:
        if not self._text:
            yield from self._begun()
        self._text += piece.text
        yield self._event("response.output_text.delta", **self._said, delta=piece.text, logprobs=())

    def _begun(self) -> Iterator[Struct]:
        yield self._event("response.output_item.added", output_index=0, item=self._message("in_progress"))
        yield self._event("response.content_part.added", **self._said, part=OutputText(text=""))

    def closing(self, index: int, end: End) -> Iterator[Struct]:
        self._end = end
        output = self._output()
        for place, item in enumerate(output):
            if isinstance(item, OutputMessage):
                if not self._text:
                    yield from self._begun()
                yield self._event("response.output_text.done", **self._said, text=self._text, logprobs=())
                yield self._event("response.content_part.done", **self._said, part=item.content[0])
            else:
                where = dict[str, Any](output_index=place, item_id=item.id)
                begun = msgspec.structs.replace(item, status="in_progress", arguments="")
                yield self._event("response.output_item.added", output_index=place, item=begun)
                yield self._event("response.function_call_arguments.delta", **where, delta=item.arguments)
                more = {"arguments": item.arguments, "name": item.name}
                yield self._event("response.function_call_arguments.done", **where, **more)
            yield self._event("response.output_item.done", output_index=place, item=item)

    def counts(self, usage: Counts, timings: Timings) -> Iterator[Struct]:
        response = self._ended(usage, timings)
        yield self._event(f"response.{response.status}", response=response)

    def failure(self, error: ClientError) -> Struct:
        return self._event("error", code=error.code, message=str(error), param=error.param)

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:
        self._number += 1
        return ResponseEvent(type=kind, sequence_number=self._number, **fields)

    def _message(self, status: Literal["in_progress", "completed", "incomplete"]) -> OutputMessage:
        if status == "in_progress":
            content = []
        else:
            content = [OutputText(text=self._text)]
        return OutputMessage(id=self._message_id, status=status, content=content)

    def _output(self) -> list[OutputMessage | OutputCall]:
        output = list[OutputMessage | OutputCall]()
        if self._text or not self._end.calls:
            output.append(self._message("incomplete" if self._end.finish == "length" else "completed"))
        for call in self._end.calls:
            status: Literal["completed", "incomplete"] = "completed" if call.whole else "incomplete"
            ids = {"id": f"fc_{call.id[5:]}", "call_id": call.id}
            output.append(OutputCall(**ids, status=status, name=call.name, arguments=call.arguments))
        return output

    def _ended(self, usage: Counts, timings: Timings) -> Response:
        cut = self._end.finish == "length"
        read = usage.prompt_tokens
        made = usage.completion_tokens
        return msgspec.structs.replace(
            self._response,
            status="incomplete" if cut else "completed",
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            output=self._output(),
            usage=TokenCounts(
                *(read, {"cached_tokens": 0}, made, {"reasoning_tokens": 0}, read + made), edgespec=usage.edgespec
            ),
            timings=timings,
        )


KIND = CompletionKind(ResponsesBody, ResponseForm)


async def respond(api: Api, request: web.Request) -> web.StreamResponse:
    """The endpoint. An error names the parameter as it was sent."""
    try:
        return await api.complete(request, KIND)
    except ClientError as error:
        name = re.split(r"[.\[]", error.param or "")[0]
        if name not in RENAMED or error.code == "unknown_parameter":
            raise
        said = str(error).replace(f"'{name}", f"'{RENAMED[name]}")
        raise ClientError(said, param=RENAMED[name], code=error.code) from error


SUMMARY = "A response, without state."
ROUTE = Route("POST", "/v1/responses", "key", respond, SUMMARY, Response, ResponsesBody, ResponseEvent)
