"""OpenAI's response objects for chat and for text completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from cloud_gateway.api.answer import Piece
from cloud_gateway.api.limits import ServedModel
from cloud_gateway.api.logprobs import Entry, chat_logprobs, text_logprobs
from cloud_gateway.api.tools import Call

Json = dict[str, object]


class ChatFormat:
    """`chat.completion` and `chat.completion.chunk`."""

    prefix, whole_kind, chunk_kind = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> Json | None:
        """The first chunk's choice, which names the role."""
        return self._delta(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, piece: Piece) -> Json:
        """A chunk's choice with new text."""
        return {**self._delta(index, {"content": piece.text}), "logprobs": chat_logprobs(piece.logprobs)}

    def calls(self, index: int, calls: Sequence[Call]) -> Json:
        """A chunk's choice with all tool calls of the completion."""
        return self._delta(index, {"tool_calls": [{"index": n, **call.object()} for n, call in enumerate(calls)]})

    def closing(self, index: int, finish: str | None) -> Json:
        """The last chunk's choice, with the finish reason."""
        return self._delta(index, {}, finish)

    def choice(
        self,
        index: int,
        text: str,
        finish: str | None,
        logprobs: Sequence[Entry] | None = None,
        calls: Sequence[Call] = (),
    ) -> Json:
        """A whole choice."""
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text.strip() or None, "tool_calls": [call.object() for call in calls]}
        return {"index": index, "message": message, "logprobs": chat_logprobs(logprobs), "finish_reason": finish}

    def _delta(self, index: int, delta: Json, finish: str | None = None) -> Json:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


class TextFormat:
    """`text_completion`, whole and in chunks."""

    prefix, whole_kind, chunk_kind = "cmpl-", "text_completion", "text_completion"

    def opening(self, index: int) -> Json | None:
        """Text completions have no opening chunk."""
        return None

    def piece(self, index: int, piece: Piece) -> Json:
        """A chunk's choice with new text."""
        return self.choice(index, piece.text, None, piece.logprobs)

    def calls(self, index: int, calls: Sequence[Call]) -> Json:
        """Never called: text completions have no tools."""
        raise NotImplementedError

    def closing(self, index: int, finish: str | None) -> Json:
        """The last chunk's choice."""
        return self.choice(index, "", finish)

    def choice(
        self,
        index: int,
        text: str,
        finish: str | None,
        logprobs: Sequence[Entry] | None = None,
        calls: Sequence[Call] = (),
    ) -> Json:
        """A whole choice, or a part of one."""
        return {"index": index, "text": text, "logprobs": text_logprobs(logprobs), "finish_reason": finish}


Format = ChatFormat | TextFormat


class Envelope:
    """The fields that all objects of one response share: id, time, model, fingerprint."""

    def __init__(self, form: Format, model: ServedModel) -> None:
        self.form = form
        self._common = {
            "id": form.prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": model.id,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, choices: Sequence[Json], usage: Json) -> Json:
        """The response of a request without `stream`."""
        return {**self._common, "object": self.form.whole_kind, "choices": choices, "usage": usage}

    def chunk(self, choice: Json | None, extra: Json) -> Json:
        """One event of a stream; `extra` is its `usage` where that was requested."""
        choices = [] if choice is None else [choice]
        return {**self._common, "object": self.form.chunk_kind, "choices": choices, **extra}


def model_object(model: ServedModel) -> Json:
    """An entry of `/v1/models`."""
    return {"id": model.id, "object": "model", "created": model.created, "owned_by": "edgespec"}
