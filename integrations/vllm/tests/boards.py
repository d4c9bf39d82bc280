"""A link process, a request and a hook for tests without vLLM."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgespec_vllm import messages
from edgespec_vllm.board import Board
from edgespec_vllm.hook import CONSENT, Hook
from edgespec_vllm.line import Line
from edgespec_vllm.price import BatchLimits

VOCAB = 100
DRAFTS = 4
MAX_LEN = 64


class Link:
    """The link process's end of one connection: a listening socket whose peer is the board."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "board.sock")
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self.path)
        self._listening.listen(1)
        self.peer: socket.socket | None = None
        self._frames = messages.Frames()

    def received(self) -> list[messages.FromEngine]:
        """What the engine has sent since the last call."""
        if self.peer is None:
            self.peer, _ = self._listening.accept()
            self.peer.setblocking(False)
        found: list[Any] = []
        while True:
            try:
                data = self.peer.recv(1 << 20)
            except BlockingIOError:
                return found
            found += [messages.decode_from_engine(one) for one in self._frames.feed(data)]
            if not data:
                return found

    def send(self, *what: messages.FromLink | bytes) -> None:
        assert self.peer is not None
        for one in what:
            self.peer.sendall(one if isinstance(one, bytes) else messages.frame(one))

    def drop(self) -> None:
        """Ends the connection; the next one is accepted."""
        assert self.peer is not None
        self.peer.close()
        self.peer = None
        self._frames = messages.Frames()


def request(tokens: list[int], name: str = "a", consent: object = "default", **other: Any) -> Any:
    """vLLM's `Request` in the middle of decoding, as far as the hook uses it."""
    params = SimpleNamespace(
        temperature=other.pop("temperature", 0.0), top_k=-1, top_p=1.0, extra_args={CONSENT: consent}
    )
    usual = {
        "request_id": name, "sampling_params": params, "prompt_token_ids": tokens[:1], "mm_features": [],
        "resumable": False, "cache_salt": None, "all_token_ids": tokens, "num_computed_tokens": len(tokens) - 1,
        "num_output_tokens": 0, "max_tokens": 50, "use_structured_output": False, "spec_token_ids": [],
    }  # fmt: skip
    return SimpleNamespace(**usual | other)


def hook(path: str, grammar: Any = None, sampled: bool = False) -> Hook:
    """A hook whose clock stands still: it connects at its first step."""
    board = Board(Line(path), 0, VOCAB, DRAFTS)
    limits = BatchLimits(None, DRAFTS)
    return Hook(
        board, vocab_size=VOCAB, max_len=MAX_LEN, sampled=sampled, grammar=grammar, limits=limits, clock=lambda: 1.0
    )
