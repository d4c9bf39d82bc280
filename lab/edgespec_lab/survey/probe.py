"""One request to one endpoint, timed: names, TCP and TLS handshakes, first token, end.

Every request has a connection of its own, so that each sample has a connect time. aiohttp reports when a name is
resolved and a connection is ready. The times between, when the socket is made and when the TLS handshake begins, are
taken where aiohttp and asyncio create a socket and a TLS object. Proxies of the environment are not used, since the
proxy would be measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import math
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from edgespec import __version__
from edgespec.core.errors import ConfigError
from edgespec.shared.folders import expand
from edgespec_lab.survey.answer import Answer, NotAStreamError
from edgespec_lab.survey.config import EndpointSection, RequestSection
from edgespec_lab.survey.sample import VERSION, Outcome, Sample

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
MAX_RETRY_AFTER_S = 7 * 86_400.0
_STATUS: Mapping[int, Outcome] = {401: "unauthorised", 403: "unauthorised", 429: "rate-limited"}
_REFUSALS: tuple[Outcome, ...] = ("unauthorised", "rate-limited", "http-error")


@dataclass(slots=True)
class Moments:
    """When each step of a request was reached, in seconds of `time.perf_counter`."""

    resolving: float | None = None
    resolved: float | None = None
    connecting: float | None = None
    shaking_hands: float | None = None
    """TCP is connected and TLS begins."""
    ready: float | None = None
    """The connection can carry the request, which follows at once."""
    stalled_s: float | None = None
    """`_stalled_s` when the first token was there."""


class _TimedContext(ssl.SSLContext):
    """Records when a handshake begins, which is when asyncio wraps the connected socket."""

    moments = Moments()

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        self.moments.shaking_hands = time.perf_counter()
        return super().wrap_bio(*args, **options)


class Prober:
    """Sends requests to one endpoint, one at a time."""

    def __init__(self, endpoint: EndpointSection, request: RequestSection, source: str, key: str) -> None:
        """`key` is the API key itself, "" for none. Raises ConfigError for a `ca_file` that cannot be used."""
        self.endpoint = endpoint
        self._request = request
        self._source = source
        self._url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        self._headers = {
            "User-Agent": f"edgespec-survey/{__version__}",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",  # a compressor may hold the first token back
        }
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._context = _tls_context(endpoint) if endpoint.base_url.startswith("https:") else None

    async def sample(self, at: float, skipped: int = 0) -> Sample:
        """Makes one request. Errors of endpoint and network do not raise; they are the sample's `outcome`."""
        moments = Moments()
        answer = Answer()
        status: int | None = None
        retry_after_s: float | None = None
        stalled_s = _stalled_s()
        try:
            async with (
                asyncio.timeout(self._request.timeout_s),
                self._session(moments) as session,
                session.post(self._url, json=self._body(), allow_redirects=False) as response,
            ):
                status = response.status
                retry_after_s = retry_after(response.headers.get("Retry-After"), time.time())
                outcome = await _outcome(response, answer, moments)
        except TimeoutError:
            outcome = "timeout"
        except NotAStreamError as error:
            outcome = "stream-error" if error.answered_error else "not-a-stream"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            outcome = _network_outcome(error)
        ended = time.perf_counter()
        tokens = answer.tokens if answer.tokens is not None else answer.chunks
        return Sample(
            v=VERSION,
            at=round(at, 3),
            source=self._source,
            endpoint=self.endpoint.name,
            region=self.endpoint.region,
            model=self.endpoint.model,
            outcome=outcome,
            status=status,
            dns_ms=_between(moments.resolving, moments.resolved),
            connect_ms=_between(moments.connecting, moments.shaking_hands or moments.ready),
            tls_ms=_between(moments.shaking_hands, moments.ready),
            ttft_ms=_between(moments.ready, answer.first_at),
            total_ms=_between(moments.ready, ended),
            chunks=answer.chunks,
            tokens=answer.tokens,
            tokens_per_s=_rate(tokens, answer),
            retry_after_s=retry_after_s,
            stalled_ms=round(((_stalled_s() if moments.stalled_s is None else moments.stalled_s) - stalled_s) * 1e3, 3),
            skipped=skipped,
        )

    def _body(self) -> dict[str, Any]:
        usage = {"stream_options": {"include_usage": True}} if self.endpoint.ask_usage else {}
        return {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": self._request.prompt}],
            self.endpoint.limit_field: self._request.max_tokens,
            "stream": True,
            **usage,
        }

    def _session(self, moments: Moments) -> aiohttp.ClientSession:
        """A session whose one connection leaves its times in `moments`."""

        def new_socket(address: tuple[Any, ...]) -> socket.socket:
            if moments.connecting is None:  # with two families the first counts, as the waiting client would count
                moments.connecting = time.perf_counter()
            made = socket.socket(address[0], address[1], address[2])
            made.setblocking(False)
            return made

        if self._context is not None:
            self._context.moments = moments
        connector = aiohttp.TCPConnector(
            ssl=self._context or True, use_dns_cache=False, force_close=True, limit=1, socket_factory=new_socket
        )
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),  # `sample` has one for everything
            trace_configs=[_trace(moments)],
            trust_env=False,
        )


def refused(sample: Sample) -> bool:
    """Whether requests to the endpoint should back off."""
    return sample.outcome in _REFUSALS or (sample.outcome == "server-error" and sample.retry_after_s is not None)


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds of a `Retry-After` header (RFC 9110, section 10.2.3: seconds or a date); None without one.

    `now` is the time of day, in seconds since 1970. At most a week is accepted.
    """
    if value is None:
        return None

    seconds: float | None = None
    if value.strip().isascii() and value.strip().isdecimal():
        seconds = float(value)
    else:
        with contextlib.suppress(ValueError, OverflowError, OSError):
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now
    if seconds is None:
        return None

    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


async def _outcome(response: aiohttp.ClientResponse, answer: Answer, moments: Moments) -> Outcome:
    """Reads a response to its end and classifies it."""
    if response.status != 200:
        return _STATUS.get(response.status, "server-error" if response.status >= 500 else "http-error")
    if response.content_type != "text/event-stream":
        return "not-a-stream"

    async for data in response.content.iter_any():
        answer.feed(data, time.perf_counter())
        if answer.first_at is not None and moments.stalled_s is None:
            moments.stalled_s = _stalled_s()
        if answer.done:
            break
    if not (answer.done or answer.finished):
        return "broken"
    if answer.first_at is not None:
        return "ok"

    return "empty"


def _network_outcome(error: Exception) -> Outcome:
    match error:
        case aiohttp.ClientConnectorDNSError() | socket.gaierror():
            return "dns"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "tls"
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return "refused"
        case aiohttp.ClientConnectorError():
            return "unreachable"
        case aiohttp.InvalidURL() | aiohttp.ClientResponseError() | ValueError():
            return "not-a-stream"  # the server does not speak HTTP
    return "broken"


def _trace(moments: Moments) -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()

    def note(name: str) -> Any:
        async def noted(*_: object) -> None:
            setattr(moments, name, time.perf_counter())

        return noted

    trace.on_dns_resolvehost_start.append(note("resolving"))
    trace.on_dns_resolvehost_end.append(note("resolved"))
    trace.on_connection_create_end.append(note("ready"))
    return trace


def _tls_context(endpoint: EndpointSection) -> _TimedContext:
    """One for each endpoint, since it holds the times of that endpoint's current request."""
    context = _TimedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if not endpoint.ca_file:
        context.load_default_certs()
        return context

    try:
        context.load_verify_locations(expand(endpoint.ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"`ca_file` of endpoint {endpoint.name} cannot be used ({error.strerror or error}); "
            "it must hold certificates in PEM format."
        ) from None

    return context


def _stalled_s() -> float:
    """Seconds that this thread was ready to run but did not (Linux, sched-stats.rst); 0 where not available."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _between(start: float | None, end: float | None) -> float | None:
    if start is None or end is None:
        return None
    return round((end - start) * 1e3, 3)


def _rate(tokens: int, answer: Answer) -> float | None:
    """Tokens per second after the first; None where that cannot be determined."""
    if answer.first_at is None or answer.last_at is None or tokens < 2:
        return None
    seconds = answer.last_at - answer.first_at
    if seconds > 0 and math.isfinite(seconds):
        return round((tokens - 1) / seconds, 2)
    return None
