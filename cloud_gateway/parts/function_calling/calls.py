"""The calls in a completion's text, whole or, of a completion that was cut at its maximum length, as far as they go."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from cloud_gateway.api.parameters import Call
from cloud_gateway.api.respond import beginning

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
MAX_CALLS = 128
"""Calls of one completion; a request may offer as many tools."""
_SPACE = re.compile(r"\s*")
_BEGUN = re.compile(
    r'\s*\{\s*"name"\s*:\s*"(?P<name>[A-Za-z0-9_-]{1,64})"'
    r'(?:\s*,\s*(?:"arguments"\s*:\s*(?P<arguments>.*)|"a?r?g?u?m?e?n?t?s?"?\s*)?)?',
    re.DOTALL,
)
"""A call behind its opening tag, from its name on."""


class CallReader:
    """The `Reader`: it returns the text before the first call at once and holds the rest until the completion ends."""

    def __init__(self, names: Collection[str], *, forced: bool = False) -> None:
        """`names`: of the functions that may be called. `forced`: the completion is calls only, by its grammar."""
        self._names = names
        self._forced = forced
        self._held = ""
        self._calling = False
        self._kept: list[str] = []
        """Text from the first call on, in pieces, since joining them each time would take quadratic time."""

    def feed(self, text: str) -> str:
        """The text that cannot be part of a call."""
        if self._calling:
            self._kept.append(text)
            return ""

        self._held += text
        at = self._held.find(OPENING)
        if at >= 0:
            self._calling = True
        else:
            at = len(self._held) - beginning(self._held, (OPENING,))
        passed = self._held[:at]
        self._held = self._held[at:]
        return passed

    def end(self, *, cut: bool = False) -> tuple[str, list[Call]]:
        """The rest of the text, or the calls: a call that cannot be parsed, or of an unknown function, stays text.

        Of a completion that was `cut` at its maximum length the last call is left out if others came before it. Else it
        has its arguments as far as they go, and what a grammar forced never becomes text.
        """
        held = "".join([self._held, *self._kept])
        calls, at = _scanned(held, self._names)
        rest = held[at:]
        if not rest:
            return ("", calls)

        if cut:
            calls = self._cut(rest, calls)
            if calls or self._forced:
                return ("", calls)
        return (held, [])

    def _cut(self, rest: str, calls: list[Call]) -> list[Call]:
        """The calls of a completion that was cut in `rest`, behind these whole ones; none if `rest` begins none."""
        if calls:
            begins = rest.startswith(OPENING) or OPENING.startswith(rest)
            return calls if begins and len(calls) < MAX_CALLS else []

        call = begun_call(rest, self._names)
        if call is not None:
            return [call]
        if self._forced and len(self._names) == 1:
            (name,) = self._names
            return [Call(name, "", whole=False)]
        return []


def read_calls(text: str, names: Collection[str]) -> list[Call] | None:
    """The calls that `text` consists of, or None if it is anything else. Linear in the length of `text`."""
    calls, at = _scanned(text, names)
    if at < len(text):
        return None
    return calls


def begun_call(text: str, names: Collection[str]) -> Call | None:
    """The call that ends with the text, its arguments as far as they go; None before its name is complete."""
    begun = _BEGUN.fullmatch(text.removeprefix(OPENING)) if text.startswith(OPENING) else None
    if begun is None or begun["name"] not in names:
        return None

    arguments = begun["arguments"] or ""
    if arguments and not arguments.startswith("{"):
        return None
    with suppress(ValueError, RecursionError):
        # The object is complete: only what closes the call is missing.
        value, _ = _DECODER.raw_decode(arguments)
        arguments = json.dumps(value, ensure_ascii=False)
    return Call(begun["name"], arguments, whole=False)


def _scanned(text: str, names: Collection[str]) -> tuple[list[Call], int]:
    """The calls with which the text begins, and the place of what is none, which is its end if nothing is."""
    calls: list[Call] = []
    at = _after_space(text, 0)
    while at < len(text):
        if not text.startswith(OPENING, at) or len(calls) == MAX_CALLS:
            break
        try:
            value, behind = _DECODER.raw_decode(text, _after_space(text, at + len(OPENING)))
        except (ValueError, RecursionError):
            break
        call = _call(value, names)
        behind = _after_space(text, behind)
        if call is None or not text.startswith(CLOSING, behind):
            break
        calls.append(call)
        at = _after_space(text, behind + len(CLOSING))

    return calls, at


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string too


def _call(value: Any, names: Collection[str]) -> Call | None:
    if not isinstance(value, dict):
        return None

    name = value.get("name")
    arguments = value.get("arguments", {})
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None

    return Call(name, json.dumps(arguments, ensure_ascii=False))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
