"""Secrets to search for, malformed HTTP requests of every kind that contain them, and the search."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Iterable, Mapping

KEY = "es-quokkaid-quokkakeysecret0123456789abcdefghijklmnopqrst"
PROMPT = 'my wombat7 "numbat8" \u2713 is 4711'
ANSWER = "bilby0815 dingo4812"
MIN_PIECE = 6
"""Characters of a form or word that is looked for: a line must not hold a part of a prompt either."""


def forms(secret: str) -> set[str]:
    """The encodings in which a program may write a text."""
    raw = secret.encode()
    shifted = {base64.b64encode(b"x" * n + raw).decode()[4:-4] for n in range(3)}
    quoted = {repr(secret)[1:-1], repr(raw)[2:-1], json.dumps(secret)[1:-1], ascii(secret)[1:-1]}
    found = {secret, raw.hex(), urllib.parse.quote(secret), urllib.parse.quote_plus(secret), *shifted, *quoted}
    return {form for form in found if len(form) >= MIN_PIECE}


def traces_of(secrets: Iterable[str], text: str) -> list[str]:
    """Which forms of which secrets, or of their longer words, occur in a text."""
    found = {form for secret in secrets for form in forms(secret) if form in text}
    words = {word for secret in secrets for word in secret.replace('"', " ").split() if len(word) >= MIN_PIECE}
    return sorted(found | {word for word in words if word in text})


def requests(key: str, port: int, model: str = "echo") -> Mapping[str, bytes]:
    """Requests that are refused, by what is wrong with them. `key` is a valid API key."""
    good = json.dumps({"model": model, "messages": [{"role": "user", "content": PROMPT}]}).encode()
    authorised = f"Authorization: Bearer {key}\r\n".encode()

    def post(body: bytes, *headers: bytes, length: int | None = None, after: bytes = b"close") -> bytes:
        lines = [
            b"POST /v1/chat/completions HTTP/1.1",
            b"Host: 127.0.0.1:%d" % port,
            b"Connection: %b" % after,
            *headers,
        ]
        lines.append(b"Content-Length: %d" % (len(body) if length is None else length))
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    def chat(**changes: object) -> bytes:
        body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], **changes}
        return post(json.dumps(body).encode(), authorised.strip())

    bearer = b"Authorization: Bearer " + KEY.encode()
    chunked = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + authorised + b"Transfer-Encoding: chunked\r\n\r\n"
    return {
        "a NUL in the key": post(good, bearer + b"\x00"),
        "a line feed in the key": post(good, bearer + b"\n" + KEY.encode()),
        "a header without a colon": post(good, KEY.encode()),
        "a wrong key": post(good, bearer),
        "a key of another scheme": post(good, b"Authorization: Basic " + base64.b64encode(KEY.encode())),
        "a short Content-Length": post(good, authorised.strip(), length=16, after=b"keep-alive"),
        "a bad Content-Length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + PROMPT.encode() + b"\r\n\r\n",
        "two lengths": post(good, authorised.strip(), b"Content-Length: 5"),
        "a bad chunk size": chunked + PROMPT.encode() + b"\r\n" + good,
        "a bad chunk end": chunked + b"5\r\n" + PROMPT.encode() + b"\r\n0\r\n\r\n",
        "no HTTP at all": PROMPT.encode() + b"\r\n\r\n",
        "a method that does not exist": b"QUOKKA /" + KEY.encode() + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        "a bad version": b"GET /" + KEY.encode() + b" HTTP/9.quokka\r\nHost: x\r\n\r\n",
        "a header that is too long": post(good, b"X: " + KEY.encode() * 400),
        "an unknown path": b"GET /" + KEY.encode() + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "no JSON": post(PROMPT.encode(), authorised.strip()),
        "unfinished JSON": post(good[:-3], authorised.strip()),
        "bad UTF-8": post(good.replace(b"4711", b"\xff\xfe"), authorised.strip()),
        "an unknown parameter": chat(**{PROMPT: 1}),
        "an unknown model": chat(model=PROMPT),
        "a wrong type": chat(temperature=PROMPT),
        "a wrong role": chat(messages=[{"role": PROMPT, "content": PROMPT}]),
        "a wrong message": chat(messages=[{"role": "user", "content": {PROMPT: PROMPT}}]),
        "a prompt beyond the context": chat(messages=[{"role": "user", "content": PROMPT * 400}]),
        "a body beyond the limit": post(good, authorised.strip(), length=5_000_000),
        "a stop string that is none": chat(stop=[PROMPT, 5]),
        "a schema that is none": chat(response_format={"type": "json_schema", "json_schema": {PROMPT: PROMPT}}),
        "an extension that is none": chat(edgespec={"policy": PROMPT}),
        "a tool that is none": chat(tools=[{"type": PROMPT}]),
    }
