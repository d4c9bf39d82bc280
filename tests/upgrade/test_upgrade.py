"""Files of earlier versions are read, and those of later ones are named as such; nothing of them is changed.

`4713014` has what the programs of that commit wrote: both configurations with every default, and a list of API keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from cloud_gateway.auth import Key, KeyRing
from cloud_gateway.links.paired import PairedWorker, PairedWorkers
from cloud_gateway.part import GatewayPart
from cloud_gateway.parts import all_parts as all_gateway_parts
from cloud_gateway.process import config as gateway
from edgespec.core.errors import KeyStoreError
from edgespec.parts import all_parts as all_worker_parts
from edgespec.shared.files import private_folder, write_private
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateway, PairedGateways
from edgespec.shared.part import Part
from edgespec.worker import config as worker
from edgespec.worker.part import WorkerPart

OLD = Path(__file__).parent / "4713014"
SHAPES = {
    Key: "id name created salt hash offload revoked cache_group groups operator learn",
    PairedGateway: "key spki name address min_version paired_at linked_at formerly",
    PairedWorker: "key name paired_at min_version revoked_at last_seen groups expires_at rotated_from quarantined_at "
    "quarantine",
}
"""The fields of format 1. A field that is added needs the next number (`RecordFile`): write it here with its number.
`learn` came without one: it is written only if it is true, and an older version calls such a list newer for it."""


OF_PARTS = {
    "audit": ("audit",),
    "conduct": ("link.quarantine_keys",),
    "draft_heads": ("sources.medusa", "sources.eagle"),
    "mdns": ("link.mdns", "gateway.discover", "gateway.networks"),
    "owner_signs": ("owner",),
    "parallel_draft": ("local_draft.cpu", "local_draft.mode"),
    "peer_relay": ("peers", "relay"),
    "prometheus": ("metrics",),
    "queued_answers": ("sources.queued_answers", "sources.queued_tokens", "sources.kept_tokens"),
    "quotas": ("limits.key_tokens_per_minute",),
    "rejection": ("policy.share_seed",),
    "request_traces": ("traces",),
    "self_draft": ("local_draft.layers",),
    "torch_engine": ("target.device", "target.dtype"),
}
"""Tables and keys of then that parts have now, or had. An edgespec without the part refuses them."""


def of_these_parts(file: Path, parts: Sequence[Part], folder: Path) -> Path:
    """A copy of a configuration of then, without the keys of all other parts."""
    here = {part.name for part in parts}
    refused = {key for part, keys in OF_PARTS.items() if part not in here for key in keys}

    kept = []
    table = ""
    header = ""
    for line in file.read_text().splitlines():
        if line.startswith("["):
            header = line
            table = line.strip("[]")
            continue
        key = f"{table}.{line.partition(' =')[0]}"
        if not line or line.startswith("#") or table in refused or key in refused:
            continue

        # A table of which no key is left is refused, too.
        if header:
            kept.append(header)
            header = ""
        kept.append(line)

    copy = folder / file.name
    copy.write_text("\n".join(kept))
    return copy


@pytest.mark.parametrize(
    ("gateway_parts", "worker_parts"),
    [(all_gateway_parts(), all_worker_parts()), ((), ())],
    ids=["all parts", "the core alone"],
)
def test_configurations_with_every_default_of_then_load_with_a_warning(
    gateway_parts: Sequence[GatewayPart],
    worker_parts: Sequence[WorkerPart],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = [*gateway_parts, *worker_parts]
    of_gateway = of_these_parts(OLD / "gateway.toml", parts, tmp_path)
    of_worker = of_these_parts(OLD / "worker.toml", parts, tmp_path)

    loaded = gateway.load(of_gateway, gateway_parts)
    assert loaded.api.port == gateway.schema(gateway_parts)().api.port
    worker.load(of_worker, worker_parts)
    warned = [message.partition(": these")[0] for message in caplog.messages]
    assert warned == [str(of_gateway), str(of_worker)]


def test_keys_of_then_are_valid_and_a_new_one_can_be_read_by_then(tmp_path: Path) -> None:
    private_folder(tmp_path)
    ring = KeyRing(tmp_path)
    write_private(ring.file.path, (OLD / "api-keys.json").read_bytes())
    assert [key.name for key in ring.all()] == ["alice"]

    ring.create("bob")
    written = json.loads(ring.file.path.read_text())["keys"]
    fields_of_then = set(json.loads((OLD / "api-keys.json").read_text())["keys"][0])
    assert all(set(key) <= fields_of_then for key in written)


def all_keys(folder: Path) -> object:
    return KeyRing(folder).all()


def all_workers(folder: Path) -> object:
    return PairedWorkers(folder)


def all_gateways(folder: Path) -> object:
    return PairedGateways(folder)


LISTS = [
    ("api-keys.json", all_keys, '{"version": %d, "keys": [%s]}'),
    ("workers.json", all_workers, '{"format": %d, "records": [%s]}'),
    ("gateways.json", all_gateways, '{"format": %d, "records": [%s]}'),
]


@pytest.mark.parametrize(("name", "read", "form"), LISTS)
@pytest.mark.parametrize(
    ("number", "record", "says"),
    [
        (2, "", r"was written by a newer version of edgespec \(its format is 2, this version reads up to 1\)"),
        (1, '{"scent": 1}', "was written by a newer version of edgespec .*unknown field `scent`"),
        (1, "1", "is damaged"),
    ],
)
def test_a_list_of_a_later_version_is_not_called_damaged(
    name: str,
    read: Callable[[Path], object],
    form: str,
    number: int,
    record: str,
    says: str,
    tmp_path: Path,
) -> None:
    folder = KeyStore(tmp_path).folder
    private_folder(folder)
    content = (form % (number, record)).encode()
    write_private(folder / name, content)
    with pytest.raises(KeyStoreError, match=says):
        read(folder)
    assert (folder / name).read_bytes() == content


@pytest.mark.parametrize("kind", SHAPES)
def test_a_changed_shape_has_another_number(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_fields__ == tuple(SHAPES[kind].split())
