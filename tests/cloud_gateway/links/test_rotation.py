"""Rotations and expiry of keys over real links, a worker's and the gateway's."""

from __future__ import annotations

import shutil
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
from edgespec.shared.paired import PairedGateway, PairedGateways
from edgespec.shared.server_keys import ServerKeyStore
from tests.support.links import GatewayUnderTest, client, serving, worker_identity
from tests.support.rotated import renew, renew_gateway
from tests.support.services import listed, service_of
from tests.support.sockets import reserved
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
        renew(store)
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


@pytest.mark.claim("a-worker-that-was-cut-off-for-its-fault-is-on-probation")
async def test_a_new_key_does_not_end_a_workers_probation(
    gateway: GatewayUnderTest, paired: PairedWorkers, tmp_path: Path
) -> None:
    store = KeyStore(tmp_path / "worker")
    before = worker_identity(key=store.identity())
    paired.add(before.key.public, "lab-7")
    async with client(gateway, before) as linked:
        await linked.ws.send(b"x" * 100)
        await linked.closed()
    await until(lambda: not gateway.links.workers())

    renew(store)
    after = worker_identity(key=store.identity(), rotations=store.rotations())
    async with client(gateway, after):
        await until(gateway.links.workers)
        (worker,) = gateway.links.workers()
        assert worker.id == key_id(after.key.public)
        assert worker.paused
        assert worker.probation_because == "on probation, its links kept ending"


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
    path.parent.mkdir(mode=0o700)
    path.write_bytes(json.encode({"format": 1, "records": [earlier]}))
    path.chmod(0o600)
    (record,) = paired.all()
    assert (record.name, record.expires_at, record.standing) == ("one", None, "paired")
    paired.seen(record.key)
    assert set(json.decode(path.read_bytes())["records"][0]) <= set(earlier)


def stored(worker: ServerKeyStore) -> PairedGateway:
    (gateway,) = PairedGateways(worker.folder).all()
    return gateway


@pytest.mark.claim("a-new-identity-that-the-paired-one-signed-is-accepted")
@pytest.mark.claim("a-worker-does-not-go-back")
async def test_a_worker_follows_the_gateways_rotation_and_never_goes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    worker = ServerKeyStore(tmp_path / "state")
    keys = ServerKeyStore(tmp_path / "gateway")
    me = [listed(worker)]
    old = keys.identity().public
    with reserved() as port:
        async with serving(tmp_path, paired=me, keys=keys, port=port) as gateway:
            PairedGateways(worker.folder).add(old, gateway.pin.spki_hash, "gw", str(gateway.address), 1)
            async with service_of(tmp_path) as (service, task, _):
                await until(gateway.links.workers)
                await gateway.links.stop()
                stolen = ServerKeyStore(tmp_path / "thief")
                for name in ("identity.key", "tls.pem"):
                    shutil.copy(keys.folder / name, stolen.folder / name)
                new = renew_gateway(keys)
                async with serving(tmp_path, paired=me, keys=keys, port=port) as rotated:
                    await until(lambda: (rotated.links.workers() and service.gateway.key != old) or task.done())
                    assert stored(worker).key == service.gateway.key == new != old
                    assert (stored(worker).spki, stored(worker).formerly) == (keys.tls_identity().spki_hash, (old,))
                    assert f"gw has rotated its identity: ({key_id(old)}) is now ({key_id(new)})" in caplog.text
                async with serving(tmp_path, paired=me, keys=stolen, port=port) as thief:
                    await until(lambda: "the TLS key is not the one that was pinned at pairing (pin)" in caplog.text)
                    assert not thief.links.workers() and not thief.seen.of("up")
                async with serving(tmp_path, paired=me, keys=keys, port=port) as again:
                    await until(lambda: again.links.workers() or task.done())


def test_a_rotation_that_stopped_half_way_is_finished_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ServerKeyStore(tmp_path)
    old = keys.identity().public, keys.tls_identity().spki_hash
    monkeypatch.setattr(ServerKeyStore, "_finish", lambda self: None)  # killed before it replaced a file
    new = renew_gateway(keys)
    assert (keys.identity().public, keys.tls_identity().spki_hash) == old
    monkeypatch.undo()
    again = ServerKeyStore(tmp_path)
    assert again.identity().public == new
    assert again.tls_identity().spki_hash != old[1] and again.tls_identity().context()
    assert not (keys.folder / "rotated.json").exists()
