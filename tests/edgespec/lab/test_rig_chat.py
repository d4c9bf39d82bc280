"""A rig's client of the chat API."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from edgespec.lab.rig.chat import ChatClient, greedy


class Completions(BaseHTTPRequestHandler):
    seen: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012  one server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, body))
        answer = json.dumps({"choices": [{"text": " a lighthouse"}], "usage": {}})
        self.send_response(200)
        self.end_headers()
        self.wfile.write((f"data: {answer}\n" if body.get("stream") else answer).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def client() -> Any:
    server = HTTPServer(("127.0.0.1", 0), Completions)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield ChatClient(server.server_port, "m", "k", text=True)
    server.shutdown()
    server.server_close()


def test_a_model_without_a_template_is_asked_for_text_completions(client: ChatClient) -> None:
    whole = client.complete(greedy("Once upon", 5, {}))
    (chunk,) = client.chunks(greedy("Once upon", 5, {}))
    assert whole["choices"][0]["message"]["content"] == chunk["choices"][0]["delta"]["content"] == " a lighthouse"
    for path, body in Completions.seen:
        assert path == "/v1/completions" and body["prompt"] == "Once upon" and "messages" not in body
