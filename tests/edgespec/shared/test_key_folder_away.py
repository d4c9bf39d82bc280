"""A key folder that is away for a while, as an unmounted disk or one that a backup replaces, is damage, not an empty
list; and one state folder serves one gateway, whatever is deleted in it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.errors import AddressError, KeyStoreError
from edgespec.shared.files import held
from edgespec.shared.paired import PairedGateways
from edgespec.worker.service import paired_gateway

A = b"A" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.mark.claim("a-list-that-is-away-unpairs-nobody")
@pytest.mark.parametrize("gone", ["folder", "file"])
def test_a_list_that_was_there_and_is_gone_unpairs_nobody(folder: Path, tmp_path: Path, gone: str) -> None:
    workers = PairedWorkers(folder)
    workers.add(A, "lab-7")
    place = folder if gone == "folder" else folder / "workers.json"
    place.rename(tmp_path / "away")

    uses: list[Callable[[], object]] = [
        lambda: workers.lookup(A),
        workers.all,
        lambda: workers.seen(A),
        lambda: workers.add(b"B" * 32, "lab-8"),
        workers.quarantined,
    ]
    for use in uses:
        with pytest.raises(KeyStoreError, match="workers.json is gone, and was there before: mount or restore"):
            use()
    assert not place.exists(), "what is made in its place would be in the way of what returns"

    (tmp_path / "away").rename(place)
    assert workers.lookup(A) == "paired"
    assert [worker.name for worker in workers.all()] == ["lab-7"]


@pytest.mark.parametrize("store", [PairedWorkers, PairedGateways])
def test_a_list_that_was_never_there_is_empty_and_makes_no_folder(folder: Path, store: type[PairedWorkers]) -> None:
    listed = store(folder)
    assert listed.all() == [] and listed.get(A) is None
    assert not folder.exists()


def test_a_list_that_another_process_makes_later_is_seen_and_then_missed(folder: Path) -> None:
    running = PairedWorkers(folder)
    assert running.lookup(A) == "unpaired"
    PairedWorkers(folder).add(A, "lab-7")
    assert running.lookup(A) == "paired"
    (folder / "workers.json").unlink()
    with pytest.raises(KeyStoreError, match="is gone"):
        running.lookup(A)


def test_a_worker_without_its_folder_makes_no_other_one(folder: Path) -> None:
    """Its identity would be another one, and the returning folder would land inside the new one."""
    with pytest.raises(Exception, match="not paired with a gateway"):
        paired_gateway(PairedGateways(folder))
    assert not folder.exists()


HOLD = """
import sys
from pathlib import Path
from edgespec.shared.files import held
with held(Path(sys.argv[1]), "gateway"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.claim("two-gateways-never-share-a-state-folder")
def test_a_state_folder_stays_held_when_all_in_it_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "gateway.sock.lock").touch()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=pipe, stdout=pipe) as first:
        assert first.stdout is not None and first.stdin is not None
        assert first.stdout.readline() == b"held\n"
        (tmp_path / "gateway.sock.lock").unlink()
        with pytest.raises(AddressError, match="A gateway is running already on the state folder .* process id"):
            with held(tmp_path, "gateway"):
                pass
        first.stdin.close()
        first.wait(20)

    with held(tmp_path, "gateway"):  # the lock has ended with its process
        pass


def test_a_held_state_folder_is_closed_to_users_who_could_lock_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with held(tmp_path, "gateway"):
        assert tmp_path.stat().st_mode & 0o777 == 0o700
