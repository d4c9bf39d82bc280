"""The measuring client: `python -m tools.attacks.client`, one line of JSON on standard input says where and how long.

It streams completions back to back and prints one line for each event: `gap START SECONDS` between two pieces of a
completion, `first START SECONDS` to its first piece, `end START SECONDS` for a whole one, `fail START SECONDS WHY`.
Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from tools.attacks.prompts import prompt

WORDS, TOKENS = 20, 96
TIMEOUT_S = 60.0
"""Silence after which a completion counts as failed."""
AFTER_FAILURE_S = 0.3


def main() -> int:
    """Streams until standard input is closed."""
    where = json.loads(sys.stdin.readline())
    os.sched_setaffinity(0, where["cores"])
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    rng = random.Random(where["seed"])
    number = 0
    while True:
        number += 1
        began = time.monotonic()
        try:
            last = began
            for _ in _pieces(where, prompt(rng, number, WORDS)):
                now = time.monotonic()
                _say("first" if last == began else "gap", last, now)
                last = now
            _say("end", began, time.monotonic())
        except (OSError, http.client.HTTPException, _Failed) as error:
            _say("fail", last, time.monotonic(), f"{type(error).__name__} {error}"[:100])
            time.sleep(AFTER_FAILURE_S)


class _Failed(Exception):
    """The API said so."""


def _pieces(where: dict[str, Any], text: str) -> Iterator[None]:
    """One item for each event with text."""
    body = {
        "model": where["model"],
        "messages": [{"role": "user", "content": text}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {where['key']}", "Content-Type": "application/json", "Connection": "close"}
    connection = http.client.HTTPConnection("127.0.0.1", where["port"], timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise _Failed(f"status {response.status}")
        ended = False
        for line in response:
            if line.startswith(b'data: {"error"'):
                raise _Failed("error event")
            if line.startswith(b"data: {") and (json.loads(line[6:])["choices"] or [{}])[0].get("delta", {}).get(
                "content"
            ):
                yield
            ended = ended or line.startswith(b"data: [DONE]")
        if not ended:
            raise _Failed("broken off")
    finally:
        connection.close()


def _say(kind: str, start: float, now: float, why: str = "") -> None:
    print(f"{kind} {start:.6f} {now - start:.6f} {why}".rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
