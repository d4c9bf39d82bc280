"""`locust -f integrations/load/locustfile.py --headless --host URL --trace FILE`: chats at the times of a trace.

`FILE` has a line `time,prompt tokens,completion tokens` for each request, as Azure's traces of LLM inference. The
first user sends as many of them as make `--rate` requests a second during `-t`, at the trace's times, scaled to that.
With `--rate 0` each user sends the next one when its last has ended, which measures capacity. What is neither a
completion nor a 429 or 503 with `Retry-After` is a failure. `$OPENAI_API_KEY` is the key. What it needs is in
`requirements.txt`.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import gevent
from locust import HttpUser, events, task

WORDS = "the of and to in is that it was for on are with as his they be at one have this from or had by".split()
URL = "/v1/chat/completions"


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """Beside locust's own."""
    parser.add_argument("--trace", required=True, help="the trace's CSV file")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second")
    parser.add_argument("--served", default="smol", help="name of the model")
    parser.add_argument("--longest", type=int, nargs=2, default=[400, 40], help="tokens of prompt and completion")
    parser.add_argument("--pids", type=int, nargs="*", default=[], help="processes whose memory is printed")


@events.test_start.add_listener
def begin(environment: Any, **_: Any) -> None:
    """Reads the trace."""
    asked = environment.parsed_options
    with Path(asked.trace).open() as file:
        rows = [(datetime.fromisoformat(when[:26]), int(p), int(c)) for when, p, c in list(csv.reader(file))[1:]]
    if asked.rate:
        rows = rows[: max(int(asked.rate * asked.run_time), 2)]
    scale = asked.run_time / (rows[-1][0] - rows[0][0]).total_seconds()
    times = [(at - rows[0][0]).total_seconds() * scale for at, *_ in rows]
    Chat.rows = iter([(at, *map(min, pair, asked.longest)) for at, (_, *pair) in zip(times, rows)])
    gevent.spawn(watch, asked.pids)


def watch(pids: Sequence[int]) -> None:
    """Prints the memory of the processes every 30 s."""
    for seconds in itertools.count(0, 30):
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
        print(f"memory after {seconds} s: {[count * 4 // 1024 for count in pages]} MiB", flush=True)
        gevent.sleep(30)


class Chat(HttpUser):
    """A client."""

    rows: Iterator[tuple[float, int, int]]
    numbers, first = itertools.count(1), itertools.count()

    @task
    def replay(self) -> None:
        """The whole trace, or its next row."""
        if not self.environment.parsed_options.rate:
            return self.send(*next(self.rows)[1:])
        began = time.monotonic()
        for at, prompt, completion in self.rows if next(self.first) == 0 else ():
            gevent.sleep(max(began + at - time.monotonic(), 0))
            gevent.spawn(self.send, prompt, completion)
        return gevent.sleep(3600)

    def send(self, prompt: int, completion: int) -> None:
        """One streamed request, with events for its first token and the time between chunks."""
        number, began, times = next(self.numbers), time.monotonic(), list[float]()
        text = " ".join([f"Request {number}.", *(WORDS[(i * number) % len(WORDS)] for i in range(prompt))])
        body = {"model": self.environment.parsed_options.served, "stream": True, "max_tokens": completion}
        body |= {"messages": [{"role": "user", "content": text}], "temperature": 0}
        headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
        with self.client.post(
            URL, json=body, headers=headers, stream=True, catch_response=True, timeout=300
        ) as response:
            if response.status_code in (429, 503) and response.headers.get("Retry-After"):
                self.note(f"refused with {response.status_code}", began, time.monotonic())
                return response.success()
            if response.status_code != 200:
                return response.failure(f"status {response.status_code}")
            for line in response.iter_lines():
                if b'"error"' in line[:20]:
                    return response.failure("an error in the stream")
                if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                    times.append(time.monotonic())
            if not times or line not in (b"", b"data: [DONE]"):
                return response.failure("a stream without an end")
            response.success()
        self.note("first token", began, times[0])
        self.note("whole", began, times[-1])
        return self.note("between chunks", times[0], times[-1], max(len(times) - 1, 1))

    def note(self, name: str, began: float, ended: float, parts: int = 1) -> None:
        """One event, in milliseconds."""
        took = 1000 * (ended - began) / parts
        self.environment.events.request.fire(
            request_type="STAT", name=name, response_time=took, response_length=0, exception=None, context={}
        )
