"""Tools for a chat template that knows none: the Hermes form, in ordinary messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

INTRODUCTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""As the templates of Qwen 2.5 introduce them."""


def in_words(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The same chat without tools: they stand in the system message, calls and their results in the texts."""
    plain = list[dict[str, Any]]()
    for message in messages:
        if message["role"] != "tool":
            calls = [_tagged("tool_call", json.dumps(call["function"])) for call in message.get("tool_calls", ())]
            text = "\n".join([message["content"], *calls] if message["content"] else calls)
            plain.append({"role": message["role"], "content": text})
            continue
        result = _tagged("tool_response", message["content"])
        if plain and plain[-1].get("results"):
            plain[-1]["content"] += "\n" + result
        else:
            plain.append({"role": "user", "content": result, "results": True})
    if tools:
        words = INTRODUCTION.format(tools="\n".join(json.dumps(tool) for tool in tools))
        if plain and plain[0]["role"] == "system":
            words = plain.pop(0)["content"] + "\n\n" + words
        plain.insert(0, {"role": "system", "content": words})
    return [{"role": one["role"], "content": one["content"]} for one in plain]


def _tagged(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"
