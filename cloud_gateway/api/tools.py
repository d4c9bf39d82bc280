"""Tool calls: the tools that a request offers, the grammar of a completion that calls them, and the calls in its text.

The model's chat template writes the tools into the prompt. Only the most common form of a call is parsed and forced:
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once or more at the end, as Hermes and Qwen write it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from edgespec.core.errors import UNDECODABLE, ClientError, refusal

OPENING = "<tool_call>"
CLOSING = "</tool_call>"
MAX_CALLS = 128
"""Calls of one completion; a request may offer as many tools."""
MAX_DEPTH = 64
OPEN = frozenset(
    "additionalProperties unevaluatedProperties patternProperties propertyNames minProperties anyOf oneOf $ref".split()
)
"""Keywords of an object by which it may have properties beside those that it names."""
_SPACE = re.compile(r"\s*")
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)")]
"""In a notation that Python and JSON Schema (ECMA-262) share: in Python `$` alone passes a newline at the end."""


class Function(Struct):
    """A function that the model may call; with `strict`, its arguments satisfy `parameters`."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct):
    """One entry of `tools`."""

    type: str
    function: Function


class Named(Struct):
    """A function by its name."""

    name: Name


class ToolNamed(Struct):
    """A tool by its name."""

    type: Literal["function"]
    function: Named


class AllowedTools(Struct):
    """Some of the tools, one of which the model may or must call."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolNamed], Meta(min_length=1)]


class ToolChoice(Struct):
    """`tool_choice` as an object: the function to call, or some that may be called."""

    type: Literal["function", "allowed_tools"]
    function: Named | None = None
    allowed_tools: AllowedTools | None = None


Choice = Literal["none", "auto", "required"] | ToolChoice


class CalledFunction(Struct):
    """A call in an earlier message; `arguments` is JSON in a string."""

    name: str
    arguments: str


class Called(Struct):
    """One entry of an assistant message's `tool_calls`."""

    function: CalledFunction
    id: str = ""
    type: str = "function"


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model wrote; `arguments` is JSON in a string, as in OpenAI's API."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


def parsed(value: Raw, param: str) -> Any:
    """A value that was left as it came, and so unchecked. Raises ClientError 400."""
    try:
        return msgspec.json.decode(value)
    except UNDECODABLE:
        raise refusal(param, "it is no valid JSON", "invalid_json") from None


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of a request."""

    shown: Sequence[Tool] = ()
    """Those in the prompt."""
    callable: Sequence[Function] = ()
    """Those of them that the model may call."""
    must: bool = False
    """Whether it has to call one."""
    several: bool = True

    @property
    def rendered(self) -> list[dict[str, Any]] | None:
        """For the chat template."""
        return [{"type": "function", "function": _function(tool.function)} for tool in self.shown] or None

    def grammar(self, wanted: dict[str, Any] | None) -> Wanted | None:
        """What the completion is constrained to, None where its text is free; `wanted`: schema of one without calls."""
        if not self.callable:
            if wanted is None:
                return None
            return Wanted(wanted)

        limited = self.must or not self.several or len(self.callable) < len(self.shown)
        if not limited and wanted is None and not any(function.strict for function in self.callable):
            return None

        schemas = {
            f"a{n}": _arguments(function) if self.must or function.strict else {"type": "object"}
            for n, function in enumerate(self.callable)
        }
        more = '("\\n" call)*' if self.several else ""
        rules = [f'call: "{OPENING}" body', "body: " + " | ".join(f"body{n}" for n in range(len(self.callable)))]
        for n, function in enumerate(self.callable):
            begin = f'\n{{"name": "{function.name}", "arguments": '
            end = f"}}\n{CLOSING}"
            rules.append(f"body{n}: {json.dumps(begin)} @a{n} {json.dumps(end)}")
        if self.must:
            start = f"start: call {more}"
        elif wanted is not None:
            start, schemas["json"] = f"start: @json | call {more}", wanted
        else:
            start = f'start: TEXT | head body {more}\nhead[lazy]: TEXT "{OPENING}"\nTEXT: /(.|\\n)*/'
        return Wanted(schemas, "tools", "\n".join([start, *rules]))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A JSON schema, or several by name and a grammar in Lark's notation that names them; the parameter they are of."""

    schema: dict[str, Any]
    param: str = "response_format"
    lark: str = ""


def offered(tools: Sequence[Tool] | None, choice: Choice | None, *, several: bool | None = None) -> Offer:
    """What a request offers; `several`: its `parallel_tool_calls`. Raises ClientError 400."""
    functions: dict[str, Function] = {}
    for index, tool in enumerate(tools or ()):
        if tool.type != "function":
            raise _unsupported(f"tools[{index}].type", "only 'function' is supported")
        if tool.function.name in functions:
            raise _unsupported(f"tools[{index}].function.name", "another tool has this name too")
        functions[tool.function.name] = tool.function
    names = list(functions)
    must = choice == "required"
    if isinstance(choice, ToolChoice):
        chosen = (choice.function, choice.allowed_tools)[choice.type == "allowed_tools"]
        if isinstance(chosen, AllowedTools):
            names = list(dict.fromkeys(tool.function.name for tool in chosen.tools))
            must = chosen.mode == "required"
        elif chosen is not None:
            names = [chosen.name]
            must = True
            several = False
        else:
            raise refusal("tool_choice", f"its field '{choice.type}' is missing")
        if unknown := [name for name in names if name not in functions]:
            raise refusal("tool_choice", f"there is no tool '{unknown[0]}' in 'tools'")
    if must and not functions:
        raise refusal("tool_choice", "it goes with 'tools' only")
    if choice == "none" or not functions:
        return Offer()

    return Offer(tools or (), [functions[name] for name in names], must, several is not False)


def _arguments(function: Function) -> dict[str, Any]:
    """What forced arguments have to satisfy: properties that a schema does not name are left out, as vLLM's and
    llama.cpp's grammars do, since a small model adds such without end."""
    asked = function.parameters or {"additionalProperties": False}
    return {"type": "object", **(asked if b'"allOf"' in msgspec.json.encode(asked) else _closed(asked))}


def _closed(schema: Any, nested: int = 0) -> Any:
    """The schema with `additionalProperties: false` at each object with properties that says nothing of others.

    What lies deeper than MAX_DEPTH stays as it is: the grammar refuses it.
    """
    if not isinstance(schema, dict) or nested > MAX_DEPTH:
        return schema

    found = dict(schema)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(found.get(name), dict):
            found[name] = {key: _closed(one, nested + 1) for key, one in found[name].items()}
    for name in ("anyOf", "prefixItems"):
        if isinstance(found.get(name), list):
            found[name] = [_closed(one, nested + 1) for one in found[name]]
    if "items" in found:
        found["items"] = _closed(found["items"], nested + 1)
    named = found.get("properties")
    required = found.get("required", [])
    listed = isinstance(named, dict) and isinstance(required, list) and all(one in named for one in required)
    if listed and not found.keys() & OPEN:
        found["additionalProperties"] = False
    return found


def _function(function: Function) -> dict[str, Any]:
    return {
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or {"type": "object", "properties": {}},
    }


def former_calls(calls: list[Raw], at: str) -> list[dict[str, Any]]:
    """An assistant message's `tool_calls` for the template: arguments as an object. Raises ClientError 400."""
    rendered = []
    for index, raw in enumerate(calls):
        try:
            called = msgspec.json.decode(raw, type=Called)
            arguments = json.loads(called.function.arguments or "{}")
        except (*UNDECODABLE, ValueError):
            raise _unsupported(f"{at}[{index}]", "it is no call of a function with JSON arguments") from None
        function = {"name": called.function.name, "arguments": arguments}
        rendered.append({"id": called.id, "type": "function", "function": function})

    return rendered


class CallText:
    """Returns the text before the first call at once and holds the rest until the completion ends."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
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
        """The rest of the text, or the calls: a call that cannot be parsed, or of an unknown tool, stays text.

        Of a completion that was `cut` at its maximum length the last call is left out if others came before it.
        """
        held = "".join([self._held, *self._kept])
        if cut and held.count(OPENING) > held.count(CLOSING) > 0:
            held = held[: held.rindex(OPENING)]
        calls = read_calls(held, self._names) if self._calling else None
        if calls is None:
            return (held, [])
        return ("", calls)


def read_calls(text: str, names: Collection[str]) -> list[Call] | None:
    """The calls that `text` consists of, or None where it is anything else. Linear in the length of `text`."""
    calls: list[Call] = []
    at = _after_space(text, 0)
    while at < len(text):
        if not text.startswith(OPENING, at) or len(calls) == MAX_CALLS:
            return None
        try:
            value, at = _DECODER.raw_decode(text, _after_space(text, at + len(OPENING)))
        except (ValueError, RecursionError):
            return None
        call = _call(value, names)
        at = _after_space(text, at)
        if call is None or not text.startswith(CLOSING, at):
            return None
        calls.append(call)
        at = _after_space(text, at + len(CLOSING))

    return calls


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


def beginning(text: str, strings: Iterable[str]) -> int:
    """Length of the longest end of the text that begins one of these strings, and is not all of it."""
    longest = 0
    for string in strings if text else ():
        for n in range(min(len(string) - 1, len(text)), longest, -1):
            if string[n - 1] == text[-1] and text.endswith(string[:n]):
                longest = n
                break

    return longest


def _unsupported(param: str, why: str) -> ClientError:
    return refusal(param, why, "unsupported_parameter")
