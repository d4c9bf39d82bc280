"""One log line for each API request: id, key, tokens, time, outcome. No text of request or completion.

The id is also in the response's header and in the audit log.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from aiohttp import web

from cloud_gateway.api.answer import Answer
from cloud_gateway.auth import Key
from edgespec.core.errors import ClientError
from edgespec.shared.log_text import LimitedLog

HEADER = "x-request-id"
"""OpenAI's name for it; the official client shows it as `_request_id`."""
ID = web.RequestKey("id", str)
"""The guard (routes.py) stores the id in the request under it."""

TRACE_PARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""The client's header of that name (W3C Trace Context), while its request is handled."""


def new_id() -> str:
    """A new id. A client's own is not used, since it could contain anything, also a secret."""
    return f"req_{secrets.token_hex(12)}"


async def show(request: web.Request, response: web.StreamResponse) -> None:
    """Puts the id into the response's headers; a signal of the application, called before they are sent."""
    response.headers[HEADER] = request.get(ID) or new_id()


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
    figures = _pace(answers, tokens, began)
    pace = ", ".join(text for name, text in TEXTS.items() if figures[name] is not None).format(**figures)
    text = (
        f"{request[ID]} of API key {named(key)}: model {model}, {prompt_tokens} prompt tokens, "
        f"{tokens} completion tokens, {pace}, {', '.join(ends)}"
    )
    figures |= {"request": request[ID], "key": key.id, "key_name": key.name, "model": model, "finish": ends}
    figures |= {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    if ends == ["cancelled"]:
        kind = (key.id, "cancelled", next(_cancelled) % MAX_CANCELLED_LINES)
        _lines.line(logging.INFO, kind, text, figures=figures)
    else:
        log.log(logging.WARNING if "error" in ends else logging.INFO, "%s", text, extra={"figures": figures})


TEXTS = {
    "seconds": "{seconds:.3f} s",
    "first_token_s": "first token after {first_token_s:.3f} s",
    "tokens_per_s": "{tokens_per_s:.1f} tokens/s",
    "drafted_by": "drafted by {drafted_by}",
}
"""A line's text of each figure, if there is one."""


def _pace(answers: Sequence[Answer], tokens: int, began: float) -> dict[str, Any]:
    """Times since `began` (time.monotonic), and whose drafts were accepted."""
    spent_s = time.monotonic() - began
    first = min((answer.first_token_at for answer in answers if answer.first_token_at is not None), default=None)
    found: dict[str, Any] = dict.fromkeys(TEXTS) | {"seconds": round(spent_s, 4)}
    if first is None:
        return found
    usages = [answer.usage for answer in answers if answer.usage is not None]
    workers = {name for usage in usages for name, counts in usage.by_worker.items() if counts.get("accepted")}
    others = {
        source
        for usage in usages
        for source, count in usage.accepted.items()
        if count and not (workers and source == "worker")
    }
    rate = tokens / max(began + spent_s - first, 0.001)
    drafted = ", ".join(sorted(workers) + sorted(others)) or "nobody"
    return found | {"first_token_s": round(first - began, 4), "tokens_per_s": round(rate, 2), "drafted_by": drafted}


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
