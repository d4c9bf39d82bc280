"""`edgespec doctor` beside a gateway that rotated its identity too long ago."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.parts.doctor import checks as doctor
from edgespec.shared.paired import PairedGateways
from edgespec.shared.server_keys import ServerKeyStore
from tests.support.links import serving
from tests.support.rotated import renew_gateway
from tests.support.services import listed


@pytest.mark.claim("a-worker-that-was-away-too-long-follows-nobody")
async def test_a_worker_that_was_away_too_long_is_asked_to_pair_again(tmp_path: Path) -> None:
    worker = ServerKeyStore(tmp_path / "state")
    keys = ServerKeyStore(tmp_path / "gateway")
    first = keys.identity().public, keys.tls_identity().spki_hash
    renew_gateway(keys)
    async with serving(tmp_path, paired=[listed(worker)], keys=keys) as gateway:
        gateways = PairedGateways(worker.folder)
        gateways.add(*first, "gw", str(gateway.address), 1)
        gateways.update(first[0], paired_at=1)
        (known,) = gateways.all()
        found = await doctor.address(gateway.address, known.pin)
        assert found.exit_code == 77 and "more than 90 days ago" in found.says and "pair again" in found.do
        assert not gateway.links.workers()
