"""The handlers of the gateway's control socket, which the commands call; while none runs, they work on its files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from cloud_gateway.auth import KeyRing
from cloud_gateway.core.requests.router import Merit, cost_s
from cloud_gateway.process.views import CHANGED, key_row, worker_row
from edgespec.core.errors import PairingError
from edgespec.core.protocol.names import key_id
from edgespec.shared.control import Handler

if TYPE_CHECKING:
    from cloud_gateway.engine.loop import Engine
    from cloud_gateway.links.paired import PairedWorkers
    from cloud_gateway.links.server import Links
    from cloud_gateway.process.link_port import LinkPort


def nobody_listens(worker: str, name: str) -> None:
    """Of commands that work on files alone."""


class Commands:
    """Each handler returns JSON types and runs on the event loop; files are written in a thread."""

    def __init__(
        self,
        paired: PairedWorkers,
        ring: KeyRing,
        port: LinkPort | None = None,
        lifted: Callable[[str, str], None] = nobody_listens,
    ) -> None:
        """`port`: of the running gateway; `lifted`: called with the key id and name of a worker whose quarantine was
        ended by command.
        """
        self._paired = paired
        self._ring = ring
        self._port = port
        self._lifted = lifted
        self.engine: Engine | None = None
        """The one that workers draft for, once it runs."""

    def handlers(self) -> dict[str, Handler]:
        """The handlers by the names that cloud_gateway/process/commands.py uses."""
        return {
            "pair": self.pair,
            "workers": self.workers,
            **{f"{change}_worker": partial(self.change_worker, change) for change in CHANGED},
            "create_key": self.create_key,
            "keys": self.keys,
            "revoke_key": self.revoke_key,
        }

    async def pair(self, groups: Sequence[str] = ()) -> AsyncIterator[dict[str, object]]:
        """The events of pairing; each code is sent with the address for the worker."""
        port = self._port
        if port is None or self._links is None:
            raise PairingError("The gateway is still loading its models; try again shortly.")

        async with aclosing(port.pairing.pair(groups)) as events:  # type: ignore[type-var]
            async for event in events:
                if "code" in event:
                    event |= {"address": port.url, "announced": port.is_announced}
                yield event

    @property
    def _links(self) -> Links | None:
        """Those of the running gateway, once its port is open."""
        if self._port is None:
            return None
        return self._port.links

    async def workers(self) -> dict[str, object]:
        """All paired workers, with figures of the linked ones."""
        return {"workers": self.worker_rows()}

    def worker_rows(self) -> list[dict[str, object]]:
        """All of them; `rank` 1 is the linked one that an idle gateway gives the next request to."""
        links = self._links
        merit = self.engine and self.engine.merit
        if links:
            linked = {worker.id: worker for worker in links.workers()}
        else:
            linked = {}
        views = [link for link in linked.values() if not link.paused]
        ranks = {one.id: n for n, one in enumerate(sorted(views, key=lambda one: cost_s(one, 0, merit or Merit())), 1)}
        rows = [
            worker_row(one, linked.get(key_id(one.key)), merit.of(one.name) if merit else None)
            for one in self._paired.all()
        ]
        return [row | {"rank": ranks.get(str(row["id"]))} for row in rows]

    async def change_worker(
        self,
        change: str,
        id: str,  # noqa: A002 - the parameter's name on the wire
        values: Sequence[Any] = (),
    ) -> dict[str, object]:
        """Calls a method of `PairedWorkers`, and passes on what follows for the worker's link and requests.

        A link that has expired ends within a second, and a worker that was released is linked at its next attempt.
        """
        worker = await asyncio.to_thread(getattr(self._paired, change), id, *values)
        links = self._links
        link = None
        if change == "release":
            self._lifted(key_id(worker.key), worker.name)
        if change == "revoke" and links is not None:
            links.revoke(worker.key)
        if change == "regroup" and links is not None:
            link = links.regroup(worker.key, frozenset(worker.groups))
        if links is not None and link is not None:  # requests that it may no longer see leave it at once
            from cloud_gateway.engine.exchange import WorkerGone, WorkerReady

            links.inbox.post(WorkerGone(link.id, "regrouped"))
            if not link.paused:
                links.inbox.post(WorkerReady(link.id))
        return worker_row(worker, link)

    async def create_key(
        self,
        name: str,
        offload: bool,
        cache_group: str = "",
        groups: Sequence[str] = (),
        operator: bool = False,
        learn: bool = False,
    ) -> dict[str, object]:
        """Makes a key. Only this reply holds a secret; other users cannot open the socket."""
        key, secret = await asyncio.to_thread(
            self._ring.create,
            name,
            offload=offload,
            groups=groups,
            cache_group=cache_group,
            operator=operator,
            learn=learn,
        )
        return {**key_row(key), "key": secret}

    async def keys(self) -> dict[str, object]:
        return {"keys": [key_row(key, self._ring.used.get(key.id)) for key in self._ring.all()]}

    async def revoke_key(self, id: str) -> dict[str, object]:  # noqa: A002
        return key_row(await asyncio.to_thread(self._ring.revoke, id))
