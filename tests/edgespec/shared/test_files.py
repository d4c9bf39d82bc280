"""Private files: written atomically and for their owner alone, for any disk and umask."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.errors import KeyStoreError
from edgespec.shared.files import locked, private_folder, read_private, write_private
from edgespec.shared.keystore import KeyStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    private_folder(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few pages; only root can mount one."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32k,mode=0700", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount a file system; the test with a file size limit stands in")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folder_and_file_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o022, 0o277):
        before = os.umask(umask)
        try:
            inner = tmp_path / f"{umask:o}" if umask != 0o277 else tmp_path / "0"
            private_folder(inner)
            write_private(inner / "key", b"secret")
        finally:
            os.umask(before)
        assert (mode(inner), mode(inner / "key")) == (0o700, 0o600)
    assert read_private(inner / "key") == b"secret"


def test_a_file_that_others_may_read_is_refused_with_the_chmod_command(folder: Path) -> None:
    path = folder / "it's a key"
    path.write_bytes(b"secret")
    path.chmod(0o640)
    with pytest.raises(KeyStoreError) as error:
        read_private(path)
    command = re.search("`(chmod .*)`", str(error.value))
    assert command
    subprocess.run(command[1], shell=True, check=True)
    assert read_private(path) == b"secret"


def test_a_folder_that_others_may_enter_is_refused_with_the_chmod_command(folder: Path) -> None:
    folder.chmod(0o750)
    with pytest.raises(KeyStoreError, match="mode 0750") as error:
        private_folder(folder)
    command = re.search("`(chmod .*)`", str(error.value))
    assert command
    subprocess.run(command[1], shell=True, check=True)
    private_folder(folder)


def test_links_pipes_and_folders_are_not_read_as_keys(folder: Path) -> None:
    (folder / "real").write_bytes(b"x")
    (folder / "link").symlink_to("real")
    os.mkfifo(folder / "pipe", 0o600)
    (folder / "folder").mkdir(0o700)
    for name, says in [("link", "symbolic link"), ("pipe", "not a plain file"), ("folder", "not a plain file")]:
        with pytest.raises(KeyStoreError, match=says):
            read_private(folder / name)
    assert read_private(folder / "none") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file_is_refused(folder: Path) -> None:
    write_private(folder / "key", b"x")
    os.chown(folder / "key", 65534, 65534)
    with pytest.raises(KeyStoreError, match="belongs to the user with id 65534; run this command as that user"):
        read_private(folder / "key")


def test_a_dead_processs_file_is_replaced_and_a_planted_link_not_followed(folder: Path) -> None:
    (folder / ".key.new").write_bytes(b"half")
    write_private(folder / "key", b"whole")
    victim = folder / "victim"
    victim.write_bytes(b"untouched")
    (folder / ".key.new").symlink_to(victim)
    write_private(folder / "key", b"again")
    assert victim.read_bytes() == b"untouched"
    assert sorted(path.name for path in folder.iterdir()) == ["key", "victim"]


def test_a_full_disk_leaves_the_former_list_as_it_was(small_disk: Path) -> None:
    workers = PairedWorkers(KeyStore(small_disk).folder)
    workers.add(b"1" * 32, "first")
    fill(small_disk)
    with pytest.raises(KeyStoreError, match="the disk is full"):
        for i in range(2, 200):
            workers.add(bytes([i]) * 32, f"worker {i}")
    assert workers.lookup(b"1" * 32) == "paired"
    assert PairedWorkers(small_disk / "keys").all() == workers.all()
    assert [path.name for path in (small_disk / "keys").iterdir()] == ["workers.json"]


def test_a_file_size_limit_is_a_full_disk_for_any_user(folder: Path) -> None:
    script = (
        "import resource, signal, sys; from pathlib import Path; from edgespec.shared.files import write_private\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "try: write_private(Path(sys.argv[1]), b'x' * 100)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    write_private(folder / "key", b"former")
    done = subprocess.run([sys.executable, "-c", script, folder / "key"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("KeyStoreError ")
    assert "the disk is full; nothing was changed" in done.stdout
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("key", b"former")]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KeyStoreError, match="Not a directory"):
        private_folder(tmp_path / "file" / "keys")
    with pytest.raises(KeyStoreError, match="not a folder"):
        private_folder(tmp_path / "file")
    with pytest.raises(KeyStoreError, match="No such file"):
        write_private(tmp_path / "none" / "key", b"x")


def test_a_reader_never_sees_a_part_while_a_writer_is_killed_at_random(folder: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from edgespec.shared.files import locked, write_private\n"
        "path = Path(sys.argv[1]); print('go', flush=True)\n"
        "while True:\n"
        "  for c in b'ab':\n"
        "    with locked(path.parent): write_private(path, bytes([c]) * 50_000)"
    )
    write_private(folder / "key", b"a" * 50_000)
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", script, folder / "key"], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            for _ in range(200):
                data = read_private(folder / "key")
                assert data in (b"a" * 50_000, b"b" * 50_000)
            writer.send_signal(signal.SIGKILL)
        assert read_private(folder / "key") in (b"a" * 50_000, b"b" * 50_000)


def test_the_lock_keeps_a_second_one_out(folder: Path) -> None:
    entered = threading.Event()

    def second() -> None:
        with locked(folder):
            entered.set()

    thread = threading.Thread(target=second)
    with locked(folder):
        thread.start()
        assert not entered.wait(0.2)
    thread.join(10)
    assert entered.is_set()
