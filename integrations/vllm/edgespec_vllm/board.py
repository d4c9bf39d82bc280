"""What vLLM's engine shares with the link process: the requests that allow it, and the candidates for them.

The board keeps no queue of commits. It knows up to which position it has sent the tokens of each request and sends
what is missing when there is room. So nothing is lost when the link process is slow, and `Want` states from which
position to go on after it has restarted. A request whose tokens nobody wants costs nothing in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from edgespec_vllm import messages
from edgespec_vllm.line import Line
from edgespec_vllm.messages import Chain, Closed, FromLink, Hello, Leave, Opened, Tokens, Want, frame
from edgespec_vllm.price import Chances
from edgespec_vllm.tree import NONE, Candidates, Tree

MAX_STREAMS = 1024
"""Requests on one board; further ones run without drafts."""
BYTES_PER_TOKEN = 5
"""At most, on the wire."""
SMALL = 1024
"""Bytes that any message without tokens takes at most."""
MIN_STEP_NODES = 2048
"""Nodes that messages of the link process may cost in one step of vLLM; PASS_NODES for each request with a worker if
that is more. 2,048 nodes take about a millisecond."""


class Terms(NamedTuple):
    """How a request may be offloaded and how its tokens are chosen; fields as in `messages.Opened`."""

    groups: Sequence[str]
    scope: bytes = b""
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    tag: str = ""


class _Stream:
    """One request: `tokens` is vLLM's own list, which grows."""

    __slots__ = ("accepted", "chances", "drafted", "number", "planned", "request", "sent", "terms", "tokens", "tree")

    def __init__(self, request: str, number: int, tokens: Sequence[int], terms: Terms, chances: Chances) -> None:
        self.request = request
        self.number = number
        self.tokens = tokens
        self.terms = terms
        self.sent = 0
        self.tree: Tree | None = None
        self.drafted = self.accepted = 0
        self.chances = chances
        """How often its drafts were right."""
        self.planned: tuple[int, Sequence[float]] = (0, ())
        """Tokens before the step that is being computed, and the chances of the drafts in it."""

    def settle(self, every: Chances) -> None:
        """Counts what became of the drafts of a step, for its request and in the record of all."""
        before, chances = self.planned
        if chances and len(self.tokens) > before:
            accepted = min(len(self.tokens) - before - 1, len(chances))
            self.drafted += len(chances)
            self.accepted += accepted
            predicted = sum(chances[: accepted + 1])  # those after the first wrong one were not tried
            self.chances.settled(predicted, accepted)
            every.settled(predicted, accepted)
        self.planned = (0, ())


class Board:
    """One engine's end. Nothing in it waits."""

    def __init__(self, line: Line, rank: int, vocab_size: int, drafts: int) -> None:
        self.line = line
        self._drafts = drafts
        self._hello = frame(Hello(messages.VERSION, rank, vocab_size, drafts))
        self.streams: dict[str, _Stream] = {}
        """By request."""
        self._numbers: dict[int, _Stream] = {}
        self._wanted: dict[int, _Stream] = {}
        self.drafted: set[str] = set()
        """Requests for which candidates came."""
        self._unsaid: list[_Stream | Closed] = []
        """Requests to announce, and those that are over, in this order."""
        self._last = 0
        self._chances = Chances()
        """How often the drafts of all requests were right."""
        self.malformed = 0

    def open(self, request: str, tokens: Sequence[int], terms: Terms) -> None:
        """Puts a request on the board."""
        if request in self.streams or len(self.streams) >= MAX_STREAMS:
            return
        self._last += 1
        stream = _Stream(request, self._last, tokens, terms, Chances(self._chances))
        self.streams[request] = stream
        self._numbers[self._last] = stream
        self._unsaid.append(stream)

    def close(self, request: str) -> None:
        """Takes a request off the board; does nothing for one that is not on it."""
        stream = self.streams.pop(request, None)
        if stream is not None:
            del self._numbers[stream.number]
            self._wanted.pop(stream.number, None)
            self.drafted.discard(request)
            stream.settle(self._chances)
            self._unsaid.append(Closed(stream.number, stream.drafted, stream.accepted))

    def plan(self, request: str, chances: Sequence[float]) -> None:
        """Candidates with these chances are verified in the coming step."""
        stream = self.streams[request]
        stream.planned = (len(stream.tokens), chances)

    def chances(self, request: str) -> Chances:
        """How often the drafts of a request on the board were right."""
        return self.streams[request].chances

    def send(self, now: float) -> None:
        """Writes what the link process is to receive, as far as there is room."""
        line = self.line
        if line.up and not (self._wanted or self._unsaid or line.unsent):
            return

        if not line.up:
            if not line.connect(now):
                self._unsaid.clear()
                return
            line.send(self._hello)
            self._wanted.clear()
            self._unsaid = list(self._numbers.values())
        while self._unsaid and line.room > SMALL:
            self._say(self._unsaid.pop(0))
        for stream in self._wanted.values():
            stream.settle(self._chances)
            self._send_tokens(stream)
        line.flush()

    def receive(self) -> None:
        """Takes in what the link process has sent, as much as one step may cost. What is no message ends the
        connection."""
        room = max(MIN_STEP_NODES, messages.PASS_NODES * len(self._wanted))
        while room > 0 and (payload := self.line.receive()) is not None:
            try:
                message = messages.decode_from_link(payload)
            except msgspec.MsgspecError:
                self.malformed += 1
                self.line.fail("a malformed message")
                return
            room -= messages.nodes_of(message)
            self._take(message)

    def chain(self, request: str) -> Candidates:
        """The most probable candidates after the committed tokens, at most `num_speculative_tokens`."""
        stream = self.streams.get(request)
        if stream is None or stream.tree is None:
            return NONE
        if len(stream.tokens) > stream.tree.start:
            stream.tree.advance(stream.tokens[stream.tree.start :])
        return stream.tree.best(self._drafts)

    def _say(self, what: _Stream | Closed) -> None:
        if isinstance(what, Closed):
            self.line.send(frame(what))
        elif what.number in self._numbers:
            self.line.send(frame(Opened(what.number, list(what.terms.groups), *what.terms[1:])))

    def _send_tokens(self, stream: _Stream) -> None:
        total = len(stream.tokens)
        while stream.sent < total:
            count = min(total - stream.sent, messages.MAX_TOKENS, (self.line.room - SMALL) // BYTES_PER_TOKEN)
            if count <= 0:
                return
            start = stream.sent
            stream.sent = stream.sent + count
            part = list(stream.tokens[start : stream.sent])
            counts = stream.drafted, stream.accepted
            self.line.send(frame(Tokens(stream.number, start, part, total - stream.sent, *counts)))

    def _take(self, message: FromLink) -> None:
        stream = self._numbers.get(message.request)
        if stream is None:  # over already
            return

        match message:
            case Want(number, have):
                stream.sent = min(have, len(stream.tokens))
                self._wanted[number] = stream
            case Leave(number):
                self._wanted.pop(number, None)
            case Chain(_, start, tokens, costs):
                if stream.tree is None:
                    stream.tree = Tree(len(stream.tokens))
                    self.drafted.add(stream.request)
                elif len(stream.tokens) > stream.tree.start:
                    stream.tree.advance(stream.tokens[stream.tree.start :])
                stream.tree.add(start, tokens, costs, stream.tokens)
