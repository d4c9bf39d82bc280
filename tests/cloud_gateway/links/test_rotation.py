"""Rotated keys and expired pairings over real sockets, with the lists on disk."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import json
from websockets.exceptions import ConnectionClosed

from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.protocol.handshake import CloseCode
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.session import Timers
from edgespec.shared.keystore import KeyStore
from tests.support.links import GatewayUnderTest, client, serving, worker_identity
from tests.support.until import until


@pytest.fixture
async def gateway(tmp_path: Path, paired: PairedWorkers) -> AsyncIterator[GatewayUnderTest]:
    async with serving(tmp_path, listed=paired, timers=Timers(ping_every_s=0.05)) as gateway:
        yield gateway


@pytest.mark.claim("a-statement-is-taken-once-and-a-key-that-is-gone-stays-out")
async def test_a_rotated_key_replaces_the_old_one_and_its_link(
    gateway: GatewayUnderTest, paired: PairedWorkers, tmp_path: Path
) -> None:
    store = KeyStore(tmp_path / "worker")
    before = worker_identity(key=store.identity())
    paired.add(before.key.public, "lab-7", groups=("physics",))
    async with client(gateway, before) as former:
        await until(gateway.links.workers)
        store.rotate()
        new = store.identity()
        async with client(gateway, worker_identity(key=new, rotations=store.rotations())):
            assert await former.closed() == CloseCode.SUPERSEDED
            (linked,) = gateway.links.workers()
            assert (linked.id, linked.name, linked.groups) == (key_id(new.public), "lab-7", {"physics"})
    (record,) = PairedWorkers(tmp_path / "keys").all()
    assert (record.key, record.rotated_from, record.groups) == (new.public, before.key.public, ("physics",))
    with pytest.raises(ConnectionClosed, match="4401"):
        async with client(gateway, before):
            pass


@pytest.mark.claim("a-link-ends-when-its-pairing-expires")
async def test_a_link_ends_when_its_pairing_expires(gateway: GatewayUnderTest, paired: PairedWorkers) -> None:
    me = worker_identity()
    paired.add(me.key.public, "lab-7")
    paired.expire("lab-7", time.time() + 3600)
    async with client(gateway, me) as linked:
        await until(gateway.links.workers)
        paired.expire("lab-7", time.time() - 1)
        with pytest.raises(ConnectionClosed, match="4410"):
            while True:
                await linked.receive()
    with pytest.raises(ConnectionClosed, match="4410"):
        async with client(gateway, me):
            pass
    paired.expire("lab-7", None)
    async with client(gateway, me):
        await until(gateway.links.workers)


def test_a_list_of_an_earlier_version_is_read_and_stays_readable_to_it(paired: PairedWorkers, tmp_path: Path) -> None:
    earlier = {
        "key": json.decode(json.encode(b"a" * 32)), "name": "one", "paired_at": 1, "min_version": 1, "revoked_at": None,
        "last_seen": 2, "groups": ["default"],
    }  # fmt: skip
    path = tmp_path / "keys" / "workers.json"
    path.write_bytes(json.encode({"format": 1, "records": [earlier]}))
    path.chmod(0o600)
    (record,) = paired.all()
    assert (record.name, record.expires_at, record.standing) == ("one", None, "paired")
    paired.seen(record.key)
    assert set(json.decode(path.read_bytes())["records"][0]) <= set(earlier)


def test_a_rotation_that_stopped_half_way_leaves_the_old_key(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    old = (tmp_path / "keys" / "identity.key").read_bytes() if store.identity() else b""
    store.rotate()
    (tmp_path / "keys" / "identity.key").write_bytes(old)  # the statement was written, the key was not
    assert store.rotations() == ()
    made = store.rotate()
    assert store.rotations() == (made,) and made.new_key == store.identity().public
