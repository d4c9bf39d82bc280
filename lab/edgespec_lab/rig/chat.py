"""A client of the chat API for rigs: one completion, whole or in chunks."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from edgespec_lab.rig.processes import RigError

ANSWER_S = 300.0
"""Maximum silence of the chat API."""
Prompt = str | Sequence[Mapping[str, str]]
"""The first message of a user, or the messages of a dialogue."""


class ChatClient:
    """Completions of one model with one API key."""

    def __init__(self, port: int, model: str, key: str, text: bool = False) -> None:
        """`text`: ask for text completions of the first message, of a model without a chat template."""
        self.port = port
        self.model = model
        self.key = key
        self.text = text

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One chat completion for any body without a model's name. Raises RigError with the API's sentence."""
        with self._post(body) as response:
            return self._as_chat(json.load(response), "message")

    def chunks(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The same as a stream, usage last."""
        with self._post({**body, "stream": True, "stream_options": {"include_usage": True}}) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield self._as_chat(json.loads(line[6:]), "delta")

    def _as_chat(self, answer: dict[str, Any], key: str) -> dict[str, Any]:
        for choice in answer["choices"] if self.text else ():
            choice[key] = {"content": choice["text"]}
        return answer

    def _post(self, body: Mapping[str, Any]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        asked = {"model": self.model, **body}
        if self.text:
            asked["prompt"] = asked.pop("messages")[0]["content"]
        whole = json.dumps(asked)
        path = "/v1/completions" if self.text else "/v1/chat/completions"
        try:
            connection.request("POST", path, whole, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise RigError(f"The chat API did not answer within {ANSWER_S:g} s, or broke off ({error}).") from None
        if response.status != HTTPStatus.OK:
            raise RigError(f"The chat API answered {response.status}: {response.read().decode(errors='replace')}")

        return response


def greedy(prompt: Prompt, max_tokens: int, edgespec: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a greedy completion with `usage.edgespec`; `edgespec` is the rest of the request's extension."""
    return {
        "messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "edgespec": {"usage": True, **edgespec},
    }
