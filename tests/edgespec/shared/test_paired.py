"""The lists of paired machines: atomic, private, shared between processes, and refused when damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.errors import KeyStoreError, PairingError
from edgespec.core.protocol.messages import VERSION
from edgespec.core.protocol.names import key_id
from edgespec.shared.paired import PairedGateways

A = b"A" * 32
B = b"B" * 32
C = b"C" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_a_worker_is_unpaired_then_paired_then_revoked_and_paired_again(folder: Path) -> None:
    workers = PairedWorkers(folder)
    assert workers.lookup(A) == "unpaired"
    worker = workers.add(A, "lab-7")
    assert workers.lookup(A) == "paired"
    assert worker.paired_at > 1_500_000_000
    revoked = workers.revoke("lab-7")
    assert revoked.revoked_at is not None
    assert workers.lookup(A) == "revoked"
    assert workers.revoke("lab-7") == revoked
    workers.add(A, "lab-7")
    assert workers.lookup(A) == "paired"
    assert (folder / "workers.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.claim("who-was-paired-at-a-later-version-is-refused")
def test_who_was_paired_at_a_later_version_is_refused(folder: Path) -> None:
    workers = PairedWorkers(folder)
    for version, standing in ((VERSION, "paired"), (VERSION + 1, "version")):
        workers.add(A, "lab-7", version)
        assert PairedWorkers(folder).lookup(A) == standing
    workers.revoke("lab-7")
    assert workers.lookup(A) == "revoked"


def test_another_process_sees_a_change_at_once(folder: Path) -> None:
    running = PairedWorkers(folder)
    command = PairedWorkers(folder)
    command.add(A, "lab-7")
    assert running.lookup(A) == "paired"
    command.revoke("lab-7")
    assert running.lookup(A) == "revoked"
    running.add(B, "lab-8")
    assert command.lookup(B) == "paired"
    assert command.lookup(A) == "revoked"


def test_changes_made_at_the_same_time_are_all_kept(folder: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from cloud_gateway.links.paired import PairedWorkers\n"
        "workers = PairedWorkers(Path(sys.argv[1]))\n"
        "for i in range(10): workers.add(bytes([int(sys.argv[2]), i]) * 16, 'w')"
    )
    racing = [subprocess.Popen([sys.executable, "-c", script, folder, str(n)]) for n in range(3)]
    assert [process.wait(60) for process in racing] == [0, 0, 0]
    assert len(PairedWorkers(folder).all()) == 30


def test_when_a_worker_was_last_seen_is_kept(folder: Path) -> None:
    workers = PairedWorkers(folder)
    workers.seen(A)
    assert workers.all() == []
    workers.add(A, "lab-7")
    assert workers.find("lab-7").last_seen is None
    workers.seen(A)
    assert PairedWorkers(folder).find("lab-7").last_seen


def test_a_machine_is_named_by_its_id_its_first_digits_or_its_name(folder: Path) -> None:
    workers = PairedWorkers(folder)
    workers.add(A, "lab-7")
    workers.add(B, "twin")
    workers.add(C, "Twin")
    assert workers.find("lab-7").key == A
    assert workers.find(key_id(B)).key == B
    assert workers.find(key_id(C)[:6].upper()).key == C
    assert (workers.find("twin").key, workers.find("Twin-2").key) == (B, C)
    for nobody in ("lab", "", key_id(A)[:3]):
        with pytest.raises(PairingError, match=f"No machine called .* paired are: lab-7 \\({key_id(A)}\\), twin"):
            workers.find(nobody)


@pytest.mark.claim("a-worker-named-like-an-id-does-not-catch-its-revocation")
def test_a_worker_named_like_an_id_does_not_catch_its_revocation(folder: Path) -> None:
    workers = PairedWorkers(folder)
    workers.add(A, "culprit")
    for digits in (4, 6, 16):
        workers.add(bytes([digits]) * 32, key_id(A)[:digits])
        assert workers.find(key_id(A)[:digits]).key == A
    assert workers.revoke(key_id(A)[:4]).name == "culprit"


def test_what_a_log_or_a_list_shows_can_be_pasted(folder: Path) -> None:
    workers = PairedWorkers(folder)
    workers.add(A, "lab-7")
    workers.add(B, "lab 8")
    for text in (f"lab 8 ({key_id(B)})", f"worker lab 8 ({key_id(B)}):", f" {key_id(B)} ", f"({key_id(B)})"):
        assert workers.find(text).key == B


def test_the_beginning_of_two_ids_is_refused_with_both_names(folder: Path) -> None:
    workers = PairedWorkers(folder)
    seen = dict[str, bytes]()
    for number in range(100_000):
        key = number.to_bytes(32, "big")
        other = seen.setdefault(key_id(key)[:4], key)
        if other != key:
            break
    workers.add(other, "lab-7")
    workers.add(key, "lab-8")
    with pytest.raises(PairingError) as error:
        workers.revoke(key_id(key)[:4])
    assert all(f"{name} ({key_id(k)})" in str(error.value) for name, k in (("lab-7", other), ("lab-8", key)))
    assert workers.revoke(key_id(key)).name == "lab-8"


@pytest.mark.claim("a-worker-named-like-an-id-does-not-catch-its-revocation")
def test_a_second_worker_of_the_same_name_gets_a_number(folder: Path) -> None:
    workers = PairedWorkers(folder)
    assert [workers.add(key, "lab-7").name for key in (A, B, C, B, A)] == [
        "lab-7",
        "lab-7-2",
        "lab-7-3",
        "lab-7-2",
        "lab-7",
    ]
    workers.revoke("lab-7")
    assert workers.add(b"D" * 32, "LAB-7").name == "LAB-7-4"
    assert (workers.name_of(C), workers.name_of(b"E" * 32)) == ("lab-7-3", "unknown")


def test_a_key_made_to_have_anothers_id_is_not_stored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = PairedWorkers(folder)
    workers.add(A, "lab-7")
    monkeypatch.setattr("cloud_gateway.links.paired.key_id", lambda key: "0123456789abcdef")
    with pytest.raises(KeyStoreError, match="Another worker's key has the id"):
        workers.add(B, "lab-8")
    assert workers.lookup(B) == "unpaired"


def test_a_gateway_is_stored_moved_and_forgotten(folder: Path) -> None:
    gateways = PairedGateways(folder)
    gateways.add(A, B, "dept", "10.0.0.1:7443", 1)
    gateways.reached(A, "10.0.0.2:7443")
    gateways.reached(C, "10.0.0.3:7443")
    again = PairedGateways(folder)
    (known,) = again.all()
    assert (known.key, known.spki, known.name, known.address, known.min_version) == (A, B, "dept", "10.0.0.2:7443", 1)
    assert again.get(A) == known
    stamp = (folder / "gateways.json").stat().st_mtime_ns
    again.reached(A, "10.0.0.2:7443")
    again.reached(A, "")
    assert (folder / "gateways.json").stat().st_mtime_ns == stamp
    again.forget(A)
    again.forget(A)
    assert gateways.get(A) is None


def wrong(change: dict[str, object]) -> bytes:
    record = {"key": "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=", "name": "x", "paired_at": 1} | change
    return json.dumps({"format": 1, "records": [record]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        wrong({"key": "AAAA"}),
        wrong({"name": "\x1b"}),
    ],
)
def test_a_damaged_list_is_reported_and_left_unchanged(folder: Path, data: bytes) -> None:
    workers = PairedWorkers(folder)
    workers.add(A, "x")
    (folder / "workers.json").write_bytes(data)
    for use in (lambda: workers.lookup(A), lambda: workers.add(B, "y"), lambda: PairedWorkers(folder)):
        with pytest.raises(
            KeyStoreError, match="is damaged .*; restore it from a backup, or remove it, restart and pair again"
        ):
            use()
    assert (folder / "workers.json").read_bytes() == data
    (folder / "workers.json").write_bytes(wrong({}))
    assert workers.lookup(A) == "paired"
