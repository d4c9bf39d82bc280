"""The link layer as the engine uses it, with one worker and no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.engine.exchange import WorkerGone
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.pool import Workers
from edgespec.core.drafting.algorithm2 import Drafting, DraftRule, Proposal
from edgespec.core.drafting.ranking import best_children
from edgespec.core.drafting.tree import BranchShare
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Close, Commit, Open, Share, ToWorker
from tools.doubles.model import HashModel

NEAR = LinkedWorker("w", 0.0, 0.0, 0.002, paused=False)


class OneWorker(Workers):
    """One worker, `w`, which stays silent; keeps what it is sent and what it did wrong."""

    def __init__(self, view: LinkedWorker = NEAR, *, returns: bool = False) -> None:
        """`returns`: it is linked again at once after it was punished."""
        self.worker = view
        self.returns = returns
        self.up = True
        self.engine: Engine | None = None
        self.seen: list[ToWorker] = []
        self.punished: list[RemoteProtocolError] = []
        self.notes: list[str] = []
        self.audits: list[tuple[str, float, int]] = []
        self.divergences = 0
        self.tables = 0
        """Times that the table of all workers was made."""

    def linked(self) -> Mapping[str, LinkedWorker]:
        """The worker, unless it is down."""
        self.tables += 1
        if self.up:
            return {self.worker.id: self.worker}
        return {}

    def view(self, worker: str) -> LinkedWorker | None:
        if self.up:
            return self.worker
        return None

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        self.seen += bodies

    def audited(self, worker: str, key: str, claimed: float, accepted: int) -> None:
        self.audits.append((key, claimed, accepted))

    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None:
        self.punished.append(error)
        self.up = self.returns

    def diverged(self, worker: str) -> None:
        self.divergences += 1

    def note(self, worker: str, reason: str, text: str) -> None:
        self.notes.append(reason)


class LoopWorker(OneWorker):
    """Drafts by Algorithm 2 in the event loop, right as often as asked; messages and frames take `delay_s` each."""

    def __init__(
        self,
        delay_s: float = 0.0,
        right: float = 0.8,
        step_s: float = 0.0005,
        rule: DraftRule | None = None,
        *,
        model: HashModel | None = None,
        **view: Any,
    ) -> None:
        """`view`: fields of the engine's view of it, where they are not those of the delay."""
        super().__init__(replace(NEAR, **({"rtt_s": 2 * delay_s, "rtt_high_s": 2 * delay_s} | view)))
        self.delay_s = delay_s
        self.step_s = step_s
        self.model = model or HashModel(right=right)
        self.rule = rule or DraftRule(branching=2, theta=0.5, sequences=4)
        self.muted = False
        self.requests: dict[int, Drafting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        """Arrives after the delay."""
        super().send(worker, bodies)
        for body in bodies:
            asyncio.get_running_loop().call_later(self.delay_s, self._arrive, body)

    def _arrive(self, body: ToWorker) -> None:
        if isinstance(body, Open):
            task = asyncio.ensure_future(self._draft(self.receive(body)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self.receive(body)

    def receive(self, body: ToWorker) -> Any:
        """Takes in a message; returns the request's drafting, None where the request is not known."""
        match body:
            case Open():
                drafting = Drafting(body.request, body.epoch, body.prompt_len, self.rule)
                drafting.commit(0, body.tokens)
                self.requests[body.request] = drafting
            case Commit() if body.request in self.requests:
                self.requests[body.request].commit(body.prefix_len, body.tokens, body.prefix_hash)
            case Share() if body.request in self.requests:
                self.requests[body.request].part = BranchShare(body.index, body.count)
            case Close():
                self.requests.pop(body.request, None)
        return self.requests.get(body.request)

    def die(self) -> None:
        """The machine is gone."""
        self.up = False
        self.requests.clear()
        assert self.engine is not None
        self.engine.post(WorkerGone(self.worker.id, "gone"))

    def propose(self, tokens: Sequence[int], width: int) -> Proposal:
        """What its draft model proposes after these tokens."""
        return best_children(self.model.logits(tokens), (), width)

    def step(self, drafting: Drafting) -> bool:
        """One draft step over the leaves that are due; whether there were any."""
        leaves = drafting.candidates()
        root = drafting.tree.root
        prefix = drafting.prefix.tokens
        found = [self.propose([*prefix, *leaf.path(root)], self.rule.branching) for leaf in leaves]
        drafting.record(leaves, found)
        return bool(leaves)

    async def _draft(self, drafting: Drafting) -> None:
        loop = asyncio.get_running_loop()
        while self.requests.get(drafting.request) is drafting:
            await asyncio.sleep(self.step_s if self.step(drafting) else 0.001)
            frame = drafting.delta()
            if frame is not None and not self.muted and self.engine is not None:
                loop.call_later(self.delay_s, self.engine.post, FrameArrived(self.worker.id, frame))


class Team(Workers):
    """Several of the above, each under an id of its own."""

    def __init__(self, *members: OneWorker) -> None:
        self.members = {one.worker.id: one for one in members}

    def join(self, engine: Engine) -> None:
        """Where their frames go."""
        for one in self.members.values():
            one.engine = engine

    def linked(self) -> Mapping[str, LinkedWorker]:
        """Those that are up."""
        return {name: one.worker for name, one in self.members.items() if one.up}

    def view(self, worker: str) -> LinkedWorker | None:
        return self.members[worker].view(worker)

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        if self.members[worker].up:
            self.members[worker].send(worker, bodies)

    def punish(self, worker: str, error: RemoteProtocolError, request: int) -> None:
        self.members[worker].punish(worker, error, request)

    def audited(self, worker: str, key: str, claimed: float, accepted: int) -> None:
        self.members[worker].audited(worker, key, claimed, accepted)

    def diverged(self, worker: str) -> None:
        self.members[worker].diverged(worker)

    def note(self, worker: str, reason: str, text: str) -> None:
        self.members[worker].note(worker, reason, text)
