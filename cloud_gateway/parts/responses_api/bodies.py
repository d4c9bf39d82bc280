"""The body of `POST /v1/responses`, which becomes a chat, and the types of its response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from cloud_gateway.api.completions import Closed
from cloud_gateway.api.schema import ChatBody, ChatMessage, Common, Name, Part
from cloud_gateway.api.usage import Speculated, Timings
from edgespec.core.errors import refusal


class Item(Struct):
    """One item of `input`: a message, a call, or its result. Other fields of earlier responses are ignored."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    output: str | list[Part] | None = None


class FunctionTool(Struct):
    """A function that the model may call."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(Struct):
    """A tool by its name."""

    type: Literal["function"]
    name: Name


class NamedChoice(Struct):
    """`tool_choice` as an object."""

    type: Literal["function", "allowed_tools"]
    name: Name | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedTool] = []


class TextFormat(Struct):
    """`text.format`."""

    type: str = "text"
    name: Name = "response"
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(Struct):
    """`text`."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Struct):
    """`reasoning`; any value that requests some is refused."""

    effort: str | None = None
    summary: str | None = None


class ResponsesBody(Common, kw_only=True):
    """`POST /v1/responses`. A `store` of true, which is OpenAI's default, is accepted; nothing is stored."""

    input: str | Annotated[list[Item], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["disabled", "auto"] | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None

    def items(self) -> tuple[str, int]:
        return "input", len(self.input) if isinstance(self.input, list) else 1

    def as_served(self) -> ChatBody:
        """The same as a chat. Raises ClientError 400."""
        for name in ("previous_response_id", "conversation", "background"):
            if getattr(self, name):
                why = "this gateway stores no responses: send the whole conversation in 'input'"
                raise refusal(name, why, "unsupported_parameter")
        asked = self.reasoning
        if asked and (asked.summary or asked.effort not in {None, "none"}):
            raise refusal("reasoning", "this gateway does not control reasoning; leave it out", "unsupported_parameter")
        if (self.n or 1) > 1:
            raise refusal("n", "a response is one; send several requests", "unsupported_parameter")

        common = {name: getattr(self, name) for name in Common.__struct_fields__}
        common["max_tokens"] = self.max_output_tokens or self.max_tokens
        return ChatBody(**common, messages=self._messages())

    def beside(self) -> Mapping[str, Any]:
        choice: Any = self.tool_choice
        if isinstance(choice, NamedChoice):
            choice = _choice(choice)
        values: dict[str, Any] = {"tool_choice": choice, "parallel_tool_calls": self.parallel_tool_calls}
        if self.tools:
            values["tools"] = [_tool(tool, index) for index, tool in enumerate(self.tools)]
        if self.text and self.text.format:
            values["response_format"] = _format(self.text.format)
        return values

    def _messages(self) -> list[ChatMessage]:
        """The items as messages of a chat; calls that follow each other belong to one message of the assistant."""
        if self.instructions:
            messages = [ChatMessage("system", self.instructions)]
        else:
            messages = []
        if isinstance(self.input, str):
            items = [Item(role="user", content=self.input)]
        else:
            items = self.input
        for index, item in enumerate(items):
            match item.type:
                case "message":
                    messages.append(ChatMessage(item.role or "", _content(item.content)))
                case "function_call":
                    _add_call(messages, item)
                case "function_call_output":
                    messages.append(ChatMessage("tool", _content(item.output), tool_call_id=item.call_id))
                case _:
                    why = "only messages, function calls and their outputs are supported"
                    raise refusal(f"input[{index}].type", why, "unsupported_parameter")

        return messages


def _add_call(messages: list[ChatMessage], item: Item) -> None:
    """Puts a former call into the assistant's last message, in constant time: a body may hold thousands of calls."""
    if not messages or messages[-1].role != "assistant":
        messages.append(ChatMessage("assistant"))
    message = messages[-1]
    if message.tool_calls is None:
        message.tool_calls = []

    function = {"name": item.name, "arguments": item.arguments}
    call = msgspec.json.encode({"id": item.call_id, "function": function})
    message.tool_calls.append(msgspec.Raw(call))


def _content(content: str | list[Part] | None) -> str | list[Part] | None:
    if not isinstance(content, list):
        return content
    return [Part("text" if part.type in ("input_text", "output_text") else part.type, part.text) for part in content]


def _tool(tool: FunctionTool, index: int) -> dict[str, Any]:
    """An entry of a chat's `tools`."""
    if tool.type != "function" or tool.name is None:
        raise refusal(f"tools[{index}].type", "only functions with a name are supported", "unsupported_parameter")

    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": {**function, "strict": tool.strict}}


def _choice(choice: NamedChoice) -> dict[str, Any]:
    """A chat's `tool_choice`."""
    if choice.type == "function":
        named = {"name": choice.name} if choice.name else None
        return {"type": "function", "function": named}

    tools = [{"type": "function", "function": {"name": tool.name}} for tool in choice.tools]
    allowed = {"mode": choice.mode, "tools": tools} if tools else None
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _format(wanted: TextFormat) -> dict[str, Any]:
    """A chat's `response_format`."""
    if wanted.schema is None:
        return {"type": wanted.type}

    schema = {"name": wanted.name, "schema": wanted.schema, "strict": wanted.strict}
    return {"type": wanted.type, "json_schema": schema}


class OutputText(Closed, kw_only=True):
    """A message's text."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: tuple[str, ...] = ()
    logprobs: tuple[str, ...] = ()


class OutputMessage(Closed, kw_only=True, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputCall(Closed, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    call_id: str
    name: str
    arguments: str


class TokenCounts(Closed):
    """`usage`."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int
    edgespec: Speculated | UnsetType = UNSET


class Stateless(Closed, kw_only=True):
    """Fields of a response that mean nothing without state, or before it can fail."""

    error: None = None
    metadata: None = None
    previous_response_id: None = None
    store: bool = False


class Response(Stateless, kw_only=True):
    """`POST /v1/responses`."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: Sequence[OutputMessage | OutputCall] = ()
    parallel_tool_calls: bool
    temperature: float
    text: TextOptions
    tool_choice: Any
    tools: list[FunctionTool]
    top_p: float
    usage: TokenCounts | None = None
    timings: Timings | UnsetType = UNSET


class ResponseEvent(Closed, kw_only=True, omit_defaults=True):
    """One event of its stream; the type says which fields it has."""

    type: str
    sequence_number: int
    response: Response | None = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int | None = None
    item: OutputMessage | OutputCall | None = None
    part: OutputText | None = None
    delta: str | None = None
    text: str | None = None
    arguments: str | None = None
    name: str | None = None
    logprobs: tuple[str, ...] | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None
