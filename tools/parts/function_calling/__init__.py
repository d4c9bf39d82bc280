"""A chat with tools and the calls of a model, for `python -m tools.fuzz`."""

from __future__ import annotations

from cloud_gateway.parts.function_calling.calls import CallReader
from tools.fuzz.decoder import Decoder

PIECE = 40
"""Characters that arrive at once, so that no call lies whole in one piece."""
CHAT = (
    b'{"model":"fuzz","messages":[{"role":"system","content":[{"type":"text","text":"a"}]},{"role":"assistant",'
    b'"content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f1",'
    b'"arguments":"{\\"a\\": 1}"}}]},'
    b'{"role":"tool","tool_call_id":"c","content":"2"}],"tools":[{"type":"function","function":{"name":"f1",'
    b'"parameters":{"type":"object","properties":{}}}}],"tool_choice":"auto"}'
)
CALLS = (
    b'I call. <tool_call>{"name": "f1", "arguments": {"a": [1, 2.5, null]}}</tool_call>\n'
    b'<tool_call>\n{"name": "f1"}\n</tool_call>'
)


def calls(data: bytes) -> object:
    """The first call in the text of a model, whole or cut, and nothing of the text is lost otherwise."""
    text = data.decode(errors="replace")
    read(text, cut=True)
    return read(text, cut=False)


def read(text: str, *, cut: bool) -> object:
    """The first call in a text that comes in pieces; None if it has none."""
    reader = CallReader(["f1"])
    passed = "".join(reader.feed(text[at : at + PIECE]) for at in range(0, len(text), PIECE))
    rest, found = reader.end(cut=cut)
    assert text.startswith(passed + rest) and (found or passed + rest == text), "text was lost"
    if found:
        return found[0]

    return None


DECODERS = {"tool calls of a model": Decoder(calls, [CALLS])}
