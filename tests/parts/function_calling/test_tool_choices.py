"""Which tools a request may name, what its forced arguments may hold, and what its reply says of its own options."""

from __future__ import annotations

import pytest

from cloud_gateway.api.errors import ClientError
from cloud_gateway.parts.function_calling.calls import CallReader
from cloud_gateway.parts.function_calling.tools import (
    AllowedTools,
    Function,
    NamedFunction,
    Tool,
    ToolChoice,
    ToolNamed,
    offered,
)

WEATHER = Tool("function", Function("weather"))
CALL = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    "choice",
    [
        ToolChoice("function", NamedFunction("forecast")),
        ToolChoice(
            "allowed_tools", allowed_tools=AllowedTools("auto", [ToolNamed("function", NamedFunction("forecast"))])
        ),
    ],
)
def test_a_choice_of_a_tool_that_is_not_there_is_the_clients_fault(choice: ToolChoice) -> None:
    with pytest.raises(ClientError, match="there is no tool 'forecast' in 'tools'") as refused:
        offered([WEATHER], choice)
    assert refused.value.status == 400


def test_objects_within_a_list_of_forced_arguments_are_closed_too() -> None:
    """A small model would otherwise add properties to the objects of a list without end."""
    place = {"type": "object", "properties": {"city": {"type": "string"}}}
    parameters = {"type": "object", "properties": {"places": {"type": "array", "items": place}}}
    tool = Tool("function", Function("weather", parameters=parameters))
    wanted = offered([tool], "required").around(None)
    assert wanted is not None

    (forced,) = wanted.named.values()
    assert isinstance(forced, dict)
    places = forced["properties"]["places"]
    assert places["items"] == {**place, "additionalProperties": False}


def test_a_completion_that_was_cut_behind_its_last_call_keeps_that_call() -> None:
    reader = CallReader({"weather"})
    passed = reader.feed(CALL + "\n" + CALL)
    rest, calls = reader.end(cut=True)
    assert passed + rest == ""
    assert [call.name for call in calls] == ["weather", "weather"]
