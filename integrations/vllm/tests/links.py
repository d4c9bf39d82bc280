"""Workers that a test plays, the link process over a real board, and an engine without one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgespec_vllm.board import Board
from edgespec_vllm.line import Line
from edgespec_vllm.link.server import BoardServer
from edgespec_vllm.link.streams import Ledger, Streams
from edgespec_vllm.messages import Chain, FromLink

from cloud_gateway.core.requests.router import LinkedWorker
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import Tree
from edgespec.core.protocol.worth import WorkerFigures
from integrations.vllm.tests.boards import DRAFTS, VOCAB


class Workers:
    """The links as `Streams` uses them: keeps what each worker is sent."""

    def __init__(self) -> None:
        self.views: dict[str, LinkedWorker] = {}
        self.sent: list[tuple[str, Any]] = []
        self.punished: list[str] = []

    def add(self, name: str, rtt_s: float = 0.01, **fields: Any) -> None:
        self.views[name] = LinkedWorker(name, rtt_s, 0.02, fields.pop("step_s", 0.01), False, **fields)

    def linked(self) -> dict[str, LinkedWorker]:
        return self.views

    def send(self, worker: str, bodies: Sequence[Any]) -> None:
        self.sent += [(worker, body) for body in bodies]

    def punish(self, worker: str, error: Exception, request: int) -> None:
        self.punished.append(worker)

    def account(self, worker: str, figures: WorkerFigures) -> None:
        """Its figures are sent to nobody."""

    def diverged(self, worker: str) -> None:
        self.sent.append((worker, "diverged"))

    def taken(self) -> list[tuple[str, Any]]:
        sent = self.sent
        self.sent = []
        return sent


class Kept(Ledger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, ...]] = []

    def assigned(self, tag: str, worker: str, name: str) -> None:
        self.found.append(("assigned", tag, worker, name))

    def released(self, tag: str, worker: str, name: str, why: str, frames: int) -> None:
        self.found.append(("released", tag, worker, why, frames))

    def frame(self, tag: str, name: str, fresh: int, *, useful: bool) -> None:
        self.found.append(("frame", tag, name, fresh, useful))

    def verified(self, tag: str, name: str, drafted: int, accepted: int) -> None:
        self.found.append(("verified", tag, name, drafted, accepted))


class Scene:
    """A link process with its board, and one engine."""

    def __init__(self, folder: Path) -> None:
        self.workers = Workers()
        self.now = 0.0
        self.ledger = Kept()
        self.streams = Streams(self.workers, lambda: self.now, self.ledger)
        self.server = BoardServer(folder / "board.sock", self.streams, VOCAB)
        self.board = Board(Line(str(folder / "board.sock")), 0, VOCAB, DRAFTS)

    async def settle(self) -> None:
        """Lets both ends exchange everything."""
        for _ in range(6):
            self.board.send(self.now)
            self.board.receive()
            await asyncio.sleep(0.005)

    async def step(self, tokens: list[int], *more: int) -> None:
        """The engine commits tokens."""
        self.now += 0.05
        tokens += more
        await self.settle()


def tree(request: int, epoch: int, prefix: list[int], first: int, parents: list[int], tokens: list[int]) -> Tree:
    costs = [100 + 900 * (token in tokens[:n]) for n, token in enumerate(tokens)]
    return Tree(request, epoch, len(prefix), prefix_hash(prefix), first, parents, tokens, costs, [0] * len(tokens))


class PlainEngine:
    """An engine's connection that keeps what it is sent."""

    def __init__(self, drafts: int = DRAFTS) -> None:
        self.drafts = drafts
        self.received: list[FromLink] = []

    def send(self, message: FromLink) -> None:
        self.received.append(message)

    def chains(self) -> list[Chain]:
        """Those that came since the last call."""
        found = [message for message in self.received if isinstance(message, Chain)]
        self.received.clear()
        return found
