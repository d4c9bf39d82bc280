"""The campus store: earlier completions of an API key as a source of candidates for its next ones.

Completions are kept in memory, and on disk if the operator says for how many days. Those of one key, or of the keys of
one cache group, draft for requests of the same (docs/campus-store.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from cloud_gateway.auth import KeyRing
from cloud_gateway.part import Figure, Foundation, GatewayPart, Running, Serving
from cloud_gateway.parts.campus_store.verb import FOLDER, StoreVerb
from edgespec.core.errors import ConfigError
from edgespec.shared.settings import Section

if TYPE_CHECKING:
    from cloud_gateway.core.sources.interface import SourceMakers
    from cloud_gateway.engine.exchange import Recording
    from cloud_gateway.parts.campus_store.store import Store
    from edgespec.shared.control import Handler

SOURCE = "store"
"""Its name in `policy.sources` and `usage.edgespec.sources`."""


class CampusStoreSection(Section, frozen=True):
    """[campus_store]: how much is kept of earlier completions, in memory and on disk."""

    megabytes: Annotated[int, Meta(ge=0, le=65536)] = 64
    days: Annotated[int, Meta(ge=0, le=3650)] = 0
    prompts: bool = False


class StoreRunning(Running):
    """The store of one gateway, which begins when the models are loaded."""

    def __init__(self, section: CampusStoreSection, keys: KeyRing, folder: Path) -> None:
        self._section = section
        self._keys = keys
        self._folder = folder
        self._store: Store | None = None

    def recording(self, serving: Serving) -> Recording:
        """Begins the store. Raises KeyStoreError for its folder."""
        from cloud_gateway.parts.campus_store.disk import Disk
        from cloud_gateway.parts.campus_store.source import Storing
        from cloud_gateway.parts.campus_store.store import Store, StoreLimits

        section = self._section
        disk = None
        if section.megabytes and section.days:
            disk = Disk(self._folder, serving.model.id, serving.model.vocab_size)
        limits = StoreLimits(section.megabytes * 2**20, section.days, section.prompts)
        self._store = Store(limits, self._keys, disk)
        return Storing(self._store)

    def sources(self, serving: Serving) -> SourceMakers:
        from cloud_gateway.parts.campus_store.source import StoreSource

        assert self._store is not None, "recording is called first"
        return {SOURCE: partial(StoreSource, store=self._store)}

    def default_sources(self) -> Sequence[str]:
        if not self._section.megabytes:
            return ()
        return (SOURCE,)

    def figures(self) -> Sequence[Figure]:
        if self._store is None:
            return ()
        text = "Memory of the completions that are kept to draft from."
        return [Figure("store_bytes", text, "gauge", self._store.memory_bytes)]

    def handlers(self) -> Mapping[str, Handler]:
        return {"store_status": self._status, "store_forget": self._forget}

    async def close(self) -> None:
        """Writes what waits."""
        if self._store is not None:
            await asyncio.to_thread(self._store.close)

    async def _status(self) -> dict[str, object]:
        store = self._started()
        return {"keys": await asyncio.to_thread(store.rows)}

    async def _forget(self, key: str) -> dict[str, object]:
        store = self._started()
        return {"texts": await asyncio.to_thread(lambda: store.forget(key).result())}

    def _started(self) -> Store:
        """Raises ConfigError while the gateway loads its models."""
        if self._store is None:
            raise ConfigError("The gateway is still loading its models; run this again when it serves.")
        return self._store


def start_store(gateway: Foundation) -> Running:
    """Deletes what an earlier configuration has left on disk, if nothing is to be kept there. Raises KeyStoreError."""
    section = gateway.settings.of(CampusStoreSection)
    folder = gateway.state_dir / FOLDER
    if not section.megabytes or not section.days:
        from cloud_gateway.parts.campus_store import disk

        for key in disk.keys_in(folder):
            disk.delete_texts(folder, key)
    return StoreRunning(section, gateway.keys, folder)


PART = GatewayPart(
    "campus_store",
    {"campus_store": CampusStoreSection},
    verbs=[StoreVerb()],
    example=Path(__file__).with_name("gateway.toml"),
    start=start_store,
    sources=[SOURCE],
    own_engine_only=("campus_store.days", "campus_store.prompts"),
)
