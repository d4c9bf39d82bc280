"""The survey's configuration: every key of `lab/edgespec_lab/survey/survey.toml`, which documents units and reasons."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from edgespec.core.protocol.messages import Text
from edgespec.shared.fields import MachineName
from edgespec.shared.settings import Section

HOST_GAP_S = 10.0
"""Minimum mean time between two requests to one host. The paper's study (WANSpec, section 3) had 22.5 s."""
LOCAL_GAP_S = 0.1
"""The same for hosts of this machine."""
MAX_ENDPOINTS = 64


def _check_url(text: str) -> None:
    url = urlsplit(text)  # a ValueError of its own is as clear as ours
    if url.scheme not in ("http", "https") or not url.hostname or url.port == 0:
        raise ValueError("it does not begin with http:// or https:// and a host")
    if "@" in url.netloc:
        raise ValueError("it holds a user or a password; a key belongs into the variable that `api_key_env` names")
    if url.query or url.fragment or not text.isprintable() or " " in text:
        raise ValueError("it has a query, a fragment or a space")
    if url.path.rstrip("/").endswith("/chat/completions"):
        raise ValueError("/chat/completions is added to it")


def _check_variable(name: str) -> None:
    if name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name):
        raise ValueError("this is the name of a variable, never the key itself")


def _check_path(path: str) -> None:
    if path and not path.startswith(("/", "~")):
        raise ValueError("a relative path would mean another file wherever the command is run")


_URL_WORDS = "an http:// or https:// address, as https://HOST/v1"
Label = Annotated[
    str,
    Meta(
        pattern=r"^[\w.@()+'/ -]{1,40}\Z",
        extra={"allowed": "1 to 40 letters, digits, spaces and the signs . _ @ ( ) + ' / -"},
    ),
]
OptionalLabel = Annotated[
    str,
    Meta(
        pattern=r"^[\w.@()+'/ -]{0,40}\Z",
        extra={"allowed": '"", or at most 40 letters, digits, spaces and the signs . _ @ ( ) + \' / -'},
    ),
]


class ScheduleSection(Section, frozen=True):
    """[schedule]: how often, and for how long."""

    interval_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 60.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.5
    duration_h: Annotated[float, Meta(ge=0.001, le=744)] = 24.0
    count: Annotated[int, Meta(ge=0, le=100_000)] = 0


class RequestSection(Section, frozen=True):
    """[request]: what is asked, and how long to wait."""

    prompt: Annotated[str, Meta(min_length=1, max_length=200, extra={"allowed": "text of 1 to 200 characters"})] = (
        "Count from one to nine."
    )
    max_tokens: Annotated[int, Meta(ge=1, le=64)] = 16
    timeout_s: Annotated[float, Meta(ge=1, le=300)] = 60.0
    source: MachineName = ""


class EndpointSection(Section, frozen=True):
    """[[endpoints]]: one OpenAI-compatible service."""

    name: Label
    base_url: Annotated[
        str,
        Meta(max_length=500, extra={"allowed": _URL_WORDS, "check": _check_url, "hidden": True}),
    ]
    model: Annotated[Text, Meta(min_length=1, extra={"allowed": "text of 1 to 200 characters"})]
    region: OptionalLabel = ""
    api_key_env: Annotated[
        str,
        Meta(
            max_length=4000,
            extra={
                "allowed": '"" or the name of an environment variable',
                "check": _check_variable,
                "hidden": True,  # a key that is put here by mistake must not show in a log
            },
        ),
    ] = ""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    ask_usage: bool = True
    ca_file: Annotated[
        str, Meta(max_length=4000, extra={"allowed": '"" or a path that begins with / or ~', "check": _check_path})
    ] = ""

    @property
    def host(self) -> str:
        """The host that is asked, without port."""
        return urlsplit(self.base_url).hostname or ""


class SurveySettings(Section, frozen=True):
    """All of survey.toml."""

    schedule: ScheduleSection = ScheduleSection()
    request: RequestSection = RequestSection()
    endpoints: tuple[EndpointSection, ...] = ()

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts: names used twice, keys in clear text on public networks, rates that would be abuse."""
        if len(self.endpoints) > MAX_ENDPOINTS:
            yield "endpoints", f"at most {MAX_ENDPOINTS}"
        names = [endpoint.name for endpoint in self.endpoints]
        for number, endpoint in enumerate(self.endpoints):
            if endpoint.name in names[:number]:
                yield f"endpoints.{number}.name", "another name than those before it"
            if endpoint.api_key_env and endpoint.base_url.startswith("http:") and not _is_private(endpoint.host):
                yield f"endpoints.{number}.base_url", "https: its API key would cross public networks in clear text"
        host, min_s = self.min_interval_s()
        if self.schedule.interval_s < min_s:
            yield "schedule.interval_s", f"at least {min_s:g}, or the survey would be a load on {host}"

    def min_interval_s(self) -> tuple[str, float]:
        """The host that bounds the interval, and the bound in seconds; endpoints of one host share its allowance."""
        hosts = Counter(endpoint.host for endpoint in self.endpoints)
        gaps = {
            host: round(count * (LOCAL_GAP_S if is_local(host) else HOST_GAP_S), 9) for host, count in hosts.items()
        }
        return max(gaps.items(), key=lambda one: one[1], default=("", 0.0))


def is_local(host: str) -> bool:
    """Whether a host is this machine by its form."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_private(host: str) -> bool:
    """Whether a host is in a private network by its form, so that requests to it do not cross public networks."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return is_local(host) or host.endswith((".local", ".internal", ".home.arpa")) or "." not in host
