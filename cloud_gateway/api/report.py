"""One log line for each API request: key, tokens, time, outcome. No text of request or completion."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence

from aiohttp import web

from cloud_gateway.api.answer import Answer
from cloud_gateway.api.request_id import ID
from cloud_gateway.auth import Key
from edgespec.core.errors import ClientError
from edgespec.shared.log_text import LimitedLog

log = logging.getLogger("cloud_gateway.api")

_lines = LimitedLog(log)
MAX_CANCELLED_LINES = 20
"""A minute, of one key: a client that cancels requests as fast as it sends them would fill the log."""
_cancelled = itertools.count()
_COMPLETED = web.RequestKey("completed", bool)


def completed(
    request: web.Request, key: Key, model: str, prompt_tokens: int, answers: Sequence[Answer], began: float
) -> None:
    """The completions of one request are over, each with `finish` as in the API, `cancelled` or `error`."""
    request[_COMPLETED] = True
    tokens = sum(answer.tokens for answer in answers)
    ends = list(dict.fromkeys(outcome(answer) for answer in answers))
    text = (
        f"{request[ID]} of API key {named(key)}: model {model}, {prompt_tokens} prompt tokens, "
        f"{tokens} completion tokens, {_pace(answers, tokens, began)}, {', '.join(ends)}"
    )
    if ends == ["cancelled"]:
        _lines.line(logging.INFO, (key.id, "cancelled", next(_cancelled) % MAX_CANCELLED_LINES), text)
    else:
        log.log(logging.WARNING if "error" in ends else logging.INFO, "%s", text)


def _pace(answers: Sequence[Answer], tokens: int, began: float) -> str:
    """Times since `began` (time.monotonic), and whose drafts were accepted."""
    spent_s = time.monotonic() - began
    first = min((answer.first_token_at for answer in answers if answer.first_token_at is not None), default=None)
    if first is None:
        return f"{spent_s:.3f} s"
    rate = tokens / max(began + spent_s - first, 0.001)
    usages = [answer.usage for answer in answers if answer.usage is not None]
    workers = {name for usage in usages for name, counts in usage.by_worker.items() if counts.get("accepted")}
    others = {
        source
        for usage in usages
        for source, count in usage.accepted.items()
        if count and not (workers and source == "worker")
    }
    drafted = ", ".join(sorted(workers) + sorted(others)) or "nobody"
    return f"{spent_s:.3f} s, first token after {first - began:.3f} s, {rate:.1f} tokens/s, drafted by {drafted}"


def outcome(answer: Answer) -> str:
    """How one completion ended; `cancelled` where the client left, or another completion of the request failed."""
    return answer.finish or ("error" if answer.failed else "cancelled")


def refused(request: web.Request, key: Key | None, error: ClientError) -> None:
    """A request got an error instead. One line a minute for each key and kind; without a key for each kind."""
    if request.get(_COMPLETED):
        return  # `completed` has logged it
    level = logging.WARNING if error.status >= 500 else logging.INFO
    who = f"API key {named(key)}" if key is not None else "no API key"
    text = f"{request[ID]} of {who} from {request.remote}: refused with {error.status} {error.code}"
    _lines.line(level, (key and key.id, error.status, error.code), text)


def named(key: Key) -> str:
    """An API key by its name and public id."""
    return f"{key.name or '-'} ({key.id})"
