"""Measurements of predicted outputs, and a chat with one for `python -m tools.fuzz`."""

CHAT = (
    b'{"model":"fuzz","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"prediction":{"type":"content",'
    b'"content":[{"type":"text","text":"once upon a time, once upon"},{"type":"text","text":""}]}}'
)
