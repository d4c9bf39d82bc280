"""A real systemd as the first process of its own namespaces, over this machine's files; what it writes is not kept.

Units start, restart and end there as on a computer that was booted. Limits on memory and tasks hold there only if
this machine has those controllers in cgroup2. Needs root and the Debian packages systemd, dbus and util-linux.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
CODE = (f"PYTHONPATH={CHECKOUT}", "PYTHONDONTWRITEBYTECODE=1")
"""Environment of a process that runs it."""
PLACES = (str(CHECKOUT), sys.prefix, sys.base_prefix)
FILES = Path("/srv/files")
"""In the machine: what its caller put into it."""
LOGS = Path("/srv/logs")
WRITTEN = Path("/run/written")
"""The files of its disk that were written there, below folders as those of `/`."""
TOOLS = ("systemd-run", "dbus-daemon", "unshare", "nsenter", "setpriv", "runuser")
SYSTEMD = "/usr/lib/systemd/systemd"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
BOOT_S = 120.0
COMMAND_S = 240.0
LINES = 12
"""Lines of a log, in an error."""

_INIT = f"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
cd "$1/root"
mount --rbind /dev dev
mount --bind /dev/null dev/console
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mkdir -p .{FILES} .{LOGS} .{WRITTEN}
mount --bind "$1/upper" .{WRITTEN}
cp -r "$2/." .{FILES}
shift 2
for path; do
    mkdir -p ".$path"
    mount --rbind "$path" ".$path"
    mount -o remount,bind,ro ".$path"
done
chmod 711 root  # a user's service reads an interpreter there
rm -rf etc/systemd/system/*
cp usr/lib/systemd/system/dbus.socket usr/lib/systemd/system/dbus.service etc/systemd/system
for name in sysinit basic sockets shutdown network-online multi-user; do
    printf '[Unit]\\nDefaultDependencies=no\\n' > etc/systemd/system/$name.target
done
printf '[Unit]\\nDefaultDependencies=no\\nWants=dbus.socket\\n' > etc/systemd/system/booted.target
pivot_root . mnt
umount -l mnt
mount --make-rshared /  # what a container manager does: credentials are mounted from another namespace
exec env -i container=edgespec PATH={PATH} SYSTEMD_UNIT_PATH=/etc/systemd/system \
    {SYSTEMD} --system --unit=booted.target --show-status=no
"""


class CannotBoot(Exception):
    """This machine lets no systemd run in namespaces; the text has the reason."""


class Booted:
    """The machine, once it is up. Its paths are those of this machine, besides `FILES` and `LOGS`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def command(self, *command: str, user: str = "") -> list[str]:
        """The command line that runs a command in it, as root or as one of its users."""
        inside = ["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-u", "-i", "-C"]
        where = ["env", "-i", f"PATH={PATH}", *CODE, f"HOME=/home/{user}" if user else "HOME=/root"]
        who = ["runuser", "-u", user, "--", "env", f"XDG_RUNTIME_DIR=/run/user/{user}"] if user else []
        return [*inside, *where, *who, *command]

    def run(self, *command: str, user: str = "", code: int = 0) -> str:
        """A command's output; asserts its exit status."""
        try:
            done = subprocess.run(
                self.command(*command, user=user), capture_output=True, text=True, timeout=COMMAND_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{command} took longer than {COMMAND_S:g} s\n{self.logs()}") from None
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def python(self, *arguments: str, user: str = "") -> str:
        """The same for this checkout's Python."""
        return self.run(sys.executable, *arguments, user=user)

    def show(self, unit: str, name: str, user: str = "") -> str:
        """A property of a unit."""
        scope = ["--user"] if user else []
        return self.run("systemctl", *scope, "show", "--value", "--property", name, unit, user=user).strip()

    def wait(self, done: Callable[[], bool]) -> None:
        """Until `done`."""
        deadline = time.monotonic() + COMMAND_S
        while not done():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.5)

    def logs(self) -> str:
        """The last lines of each service."""
        show = ["sh", "-c", f"tail -n {LINES} {LOGS}/*"]
        return subprocess.run(self.command(*show), capture_output=True, text=True, check=False).stdout

    def write(self, path: Path | str, text: str, user: str = "") -> None:
        """A file and its folders."""
        self.run("sh", "-c", 'mkdir -p "${1%/*}" && printf "%s" "$2" > "$1"', "-", str(path), text, user=user)

    def written(self) -> set[str]:
        """Files on its disk that were written since it was booted."""
        found = self.run("find", str(WRITTEN), "-not", "-type", "d", "-not", "-type", "c")
        return {line.removeprefix(str(WRITTEN)) for line in found.splitlines()}


def shown() -> list[str]:
    """Settings that show a service the interpreter and the checkout, also below /root, /home and /tmp."""
    places = sorted({*PLACES, *map(os.path.realpath, PLACES)})
    return ["ProtectHome=tmpfs", f"BindReadOnlyPaths={' '.join(places)}", *(f"Environment={one}" for one in CODE)]


@contextmanager
def booted(folder: Path, files: Path) -> Iterator[Booted]:
    """The machine with a copy of `files` in `FILES`; `folder` is empty. Raises CannotBoot."""
    assert os.geteuid() == 0 and all(map(shutil.which, TOOLS)), (
        "this test needs root and the Debian packages systemd, dbus and util-linux (apt-get install)"
    )
    with _cgroup() as group, (folder.parent / f"{folder.name}.log").open("w+") as log:
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            "--net",
            "--cgroup",
        ]
        command += ["--fork", "--kill-child", "sh", "-c", _INIT, "-", str(folder), str(files)]
        command += sorted(set(map(os.path.realpath, PLACES)))
        enter = ["sh", "-c", 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"', "-", str(group)]
        with subprocess.Popen([*enter, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process:
            try:
                yield Booted(_first(process, log.name))
            finally:
                process.kill()  # and with it, by --kill-child, the first process and all others


@contextmanager
def _cgroup() -> Iterator[Path]:
    """A control group of its own, which is gone afterwards. Raises CannotBoot."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    own = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    root = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
    if root is None:
        raise CannotBoot("no cgroup2 file system is mounted")
    group = root / own / f"edgespec-booted-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise CannotBoot(f"no control group can be made in {group.parent}: {error.strerror}") from None
    try:
        yield group
    finally:
        deadline = time.monotonic() + BOOT_S
        while "populated 1" in (group / "cgroup.events").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        for inner, _, _ in os.walk(group, topdown=False):
            Path(inner).rmdir()


def _first(process: subprocess.Popen[bytes], log: str) -> int:
    """The id of systemd's process, once it answers."""
    deadline = time.monotonic() + BOOT_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.5)
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            state = Booted(int(child)).command("systemctl", "is-system-running")
            if subprocess.run(state, capture_output=True, text=True, check=False).stdout.strip() == "running":
                return int(child)
    raise CannotBoot(f"systemd did not start in namespaces; it wrote: {Path(log).read_text().strip() or 'nothing'}")
