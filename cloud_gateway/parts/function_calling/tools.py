"""The tools that a request offers, and the grammar of a completion that calls them.

The model's chat template writes the tools into the prompt. Only the most common form of a call is forced, and read
(calls.py): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once or more at the end, as Hermes and Qwen
write it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from cloud_gateway.api.grammars import Grammar, Rules
from cloud_gateway.api.parameters import Field, Option, Reader
from cloud_gateway.api.schema import ChatBody, Name, TokenizeBody
from cloud_gateway.parts.function_calling.calls import CLOSING, MAX_CALLS, OPENING, CallReader
from edgespec.core.errors import ClientError, refusal

MAX_DEPTH = 64
OPEN = frozenset(
    "additionalProperties unevaluatedProperties patternProperties propertyNames minProperties anyOf oneOf $ref".split()
)
"""Keywords of an object by which it may have properties beside those that it names."""


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


class NamedFunction(Struct):
    """A function by its name."""

    name: Name


class ToolNamed(Struct):
    """A tool by its name."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Struct):
    """Some of the tools, one of which the model may or must call."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolNamed], Meta(min_length=1)]


class ToolChoice(Struct):
    """`tool_choice` as an object: the function to call, or some that may be called."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


Choice = Literal["none", "auto", "required"] | ToolChoice
LISTED = Field(Annotated[list[Tool], Meta(max_length=MAX_CALLS)])
CHOSEN = Field(Choice, "none, auto, required, or an object that names tools")


@dataclass(frozen=True, slots=True)
class Offer(Option):
    """The tools of a request."""

    shown: Sequence[Tool] = ()
    """Those in the prompt."""
    callable: Sequence[Function] = ()
    """Those of them that the model may call."""
    must: bool = False
    """Whether it has to call one."""
    several: bool = True

    def functions(self) -> Sequence[Mapping[str, Any]]:
        """Those in the prompt, for the chat template."""
        return [{"type": "function", "function": _function(tool.function)} for tool in self.shown]

    def reader(self) -> Reader | None:
        if not self.callable:
            return None
        return CallReader([function.name for function in self.callable], forced=self.must)

    def around(self, form: Grammar | None) -> Grammar | None:
        """Text that has `form`, or calls; calls alone if the model has to call."""
        if not self.callable:
            return form

        limited = self.must or not self.several or len(self.callable) < len(self.shown)
        strict = any(function.strict for function in self.callable)
        if form is None and not limited and not strict:
            return None

        more = '("\\n" call)*' if self.several else ""
        named: dict[str, Rules] = self._arguments()
        if self.must:
            start = f"start: call {more}"
        elif form is not None:
            start = f"start: @text | call {more}"
            named |= form.named
            named["text"] = form.root
        else:
            start = f'start: TEXT | head body {more}\nhead[lazy]: TEXT "{OPENING}"\nTEXT: /(.|\\n)*/'
        return Grammar("\n".join([start, *self._rules()]), "tools", named)

    def _arguments(self) -> dict[str, Rules]:
        """The schema of each function's arguments, `a0` of the first."""
        schemas: dict[str, Rules] = {}
        for number, function in enumerate(self.callable):
            if self.must or function.strict:
                schemas[f"a{number}"] = _arguments(function)
            else:
                schemas[f"a{number}"] = {"type": "object"}
        return schemas

    def _rules(self) -> list[str]:
        """`call`, with its opening tag, and `body`, without."""
        bodies = " | ".join(f"body{number}" for number in range(len(self.callable)))
        rules = [f'call: "{OPENING}" body', f"body: {bodies}"]
        for number, function in enumerate(self.callable):
            begin = json.dumps(f'\n{{"name": "{function.name}", "arguments": ')
            end = json.dumps(f"}}\n{CLOSING}")
            rules.append(f"body{number}: {begin} @a{number} {end}")
        return rules


class Tools:
    """The `Parameter`: `tools`, `tool_choice` and `parallel_tool_calls` of chats."""

    def fields(self, body: type[Struct]) -> Mapping[str, Field]:
        if issubclass(body, TokenizeBody):
            return {"tools": LISTED}
        if issubclass(body, ChatBody):
            return {"tools": LISTED, "tool_choice": CHOSEN, "parallel_tool_calls": Field(bool)}
        return {}

    def read(self, values: Mapping[str, Any]) -> Option | None:
        return offered(values.get("tools"), values.get("tool_choice"), several=values.get("parallel_tool_calls"))


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


def _unsupported(param: str, why: str) -> ClientError:
    return refusal(param, why, "unsupported_parameter")
