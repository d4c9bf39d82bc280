"""The port for workers: this machine's identity, its list of workers, pairing, and the links once it is open; and the
gateway's own worker, a draft process on other cores, or another device, of the same machine.

With `local_draft.mode = "async-local"` draft and target run at the same time (AMUSD, section III): that process drafts
on while the target verifies, and a commit shows it where to roll back. It is an ordinary worker over the loopback
interface: its tree, its policies, its accounting and its failures are those of any worker, and nothing else of the
gateway knows of it. It may read every prompt, since none leaves the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from cloud_gateway.links.judge import Judge
from cloud_gateway.links.link import TokenizerOffer
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.server import Links, link_admission
from cloud_gateway.process.config import LinkSection, LocalDraftSection
from edgespec.core.errors import AddressError, KeyStoreError
from edgespec.core.pairing.groups import OWN_GROUP
from edgespec.core.protocol.handshake import GatewayIdentity
from edgespec.core.protocol.messages import VERSION
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.address import Address
from edgespec.shared.advertise import Advertiser
from edgespec.shared.fields import machine_name
from edgespec.shared.files import write_private
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.shared.pairing_listener import PairingListener
from edgespec.shared.server_keys import ServerKeyStore


class LinkPort:
    """Lives on the event loop; open from `open` until its stack is left."""

    def __init__(self, settings: LinkSection, store: ServerKeyStore) -> None:
        """Raises KeyStoreError."""
        self._settings = settings
        self.key = store.identity()
        self.tls = store.tls_identity()
        self.name = machine_name(settings.name)
        self.paired = PairedWorkers(store.folder)
        self.pairing = PairingListener(self.key, self.name, self.tls.spki_hash, self.paired.add)
        self.links: Links | None = None
        """None until the port is open."""
        self.advertiser: Advertiser | None = None
        self.number = 0
        self._quarantined = 0

    def make_links(
        self,
        tokenizer_digest: bytes,
        vocab_size: int,
        connections: int,
        *,
        offer: TokenizerOffer | None = None,
        refused: Callable[[str], None] = lambda reason: None,
        judges: Sequence[Judge] = (),
        quarantined: Callable[[str, str, str], None] = lambda worker, name, why: None,
    ) -> Links:
        """The links for a target with this tokenizer; the rest is as of `Links`."""
        me = GatewayIdentity(self.key, self.name, self.tls.spki_hash, tokenizer_digest)
        if offer is not None:
            me = replace(me, sends_tokenizer=offer.sends, advice=offer.advice)
        return Links(
            me,
            vocab_size,
            self.paired,
            refused,
            pair=self.pairing.handle,
            admission=link_admission(connections),
            offer=offer,
            judges=judges,
            quarantined=quarantined,
        )

    async def open(self, links: Links, closing: AsyncExitStack) -> None:
        """Listens for workers, and announces that by mDNS unless it is off. Raises AddressError."""
        settings = self._settings
        try:
            self.number = await links.start(settings.host, settings.port, self.tls.context())
        except AddressError as error:
            raise AddressError(f"{error} Change `link.port` in the configuration.") from error
        closing.push_async_callback(links.stop)
        self.links = links
        if settings.mdns:
            where = settings.host, self.number
            self.advertiser = Advertiser(self.name, self.key.public, self.tls.spki_hash, *where)
            self.advertiser.start()
            closing.push_async_callback(self.advertiser.close)

    def quarantined(self) -> int:
        """How many workers are quarantined; as many as before while their list cannot be read."""
        with contextlib.suppress(KeyStoreError):
            self._quarantined = self.paired.quarantined()
        return self._quarantined

    @property
    def url(self) -> str:
        return f"wss://{Address(reachable_host(self._settings.host), self.number)}"

    @property
    def local(self) -> Address:
        """Its address for a worker on this machine."""
        host = self._settings.host
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), self.number)  # noqa: S104


def reachable_host(configured: str) -> str:
    """The configured host, or for a wildcard this machine's address on its route out."""
    if configured not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return configured
    return _outgoing_address(socket.AF_INET6 if configured == "::" else socket.AF_INET) or socket.gethostname()


def _outgoing_address(family: socket.AddressFamily) -> str | None:
    """This machine's source address for packets to other networks; nothing is sent."""
    target = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # documentation addresses, RFC 3849 and 5737
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None


log = logging.getLogger("cloud_gateway.process.link_port")

NAME = "own worker"
RETRY_S = (1.0, 30.0)
"""Shortest and longest wait before it is started again; a run longer than the longest wait starts over."""
END_S = 10.0
"""Time for it to end by itself."""
TAIL = 3
"""Last lines of its output in the log entry of its end."""
_NOT_ITS_OWN = ("CREDENTIALS_DIRECTORY", "STATE_DIRECTORY", "RUNTIME_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_USEC")
"""Variables that systemd gave to the gateway's process."""


class OwnWorker:
    """Starts the process, starts it again if it ends, and ends it. Lives on the event loop."""

    def __init__(self, draft: LocalDraftSection, folder: Path, gateway: SigningKey, name: str, spki: bytes) -> None:
        """`folder`: of its keys and configuration, made if it is missing; the rest is the gateway's identity.

        Raises KeyStoreError.
        """
        self._draft = draft
        self._folder = folder
        self._gateway = gateway
        self._name = name
        self._spki = spki
        self._store = KeyStore(folder)
        self._task: asyncio.Task[None] | None = None

    def pair(self, workers: PairedWorkers) -> None:
        """Adds its key to the gateway's list, which the operator sees. Raises KeyStoreError."""
        workers.add(self._store.identity().public, NAME, VERSION, (OWN_GROUP,))

    def start(self, address: Address) -> None:
        """Runs it from now on; `address`: of the gateway's link port. Raises KeyStoreError."""
        PairedGateways(self._store.folder).add(
            self._gateway.public, self._spki, self._name, str(address), min_version=VERSION
        )
        write_private(self._folder / "worker.toml", _configuration(self._draft, self._folder).encode())
        self._task = asyncio.ensure_future(self._keep_running())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = RETRY_S[0]
        while True:
            began = loop.time()
            try:
                ended = await self._run()
            except OSError as error:
                ended = f"it cannot be started ({error.strerror or error})"
            wait_s = RETRY_S[0] if loop.time() - began > RETRY_S[1] else wait_s
            log.warning("the gateway's own worker ended, and is started again in %.0f s: %s", wait_s, ended)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_S[1])

    async def _run(self) -> str:
        """One run; returns how it ended, in words."""
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_ITS_OWN}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edgespec", "run", "--always", "--end-with-input"),
            *("--config", str(self._folder / "worker.toml")),
            stdin=PIPE,  # its end shows the process that the gateway is gone, however it ended
            stdout=DEVNULL,
            stderr=PIPE,
            env=environment,
        )
        log.info("the gateway's own worker runs as process %d", process.pid)
        try:
            tail = await _last_lines(process)
            return f"exit status {await process.wait()}; {' '.join(tail) or 'it printed nothing'}"
        finally:
            await _end(process)


def _configuration(draft: LocalDraftSection, folder: Path) -> str:
    """Its worker.toml: on this machine."""
    tables: dict[str, dict[str, object]] = {
        "draft": {"model": draft.model, "threads": draft.threads, "n_gpu_layers": draft.n_gpu_layers},
        "gateway": {"discover": False},
        "daemon": {"name": NAME, "state_dir": str(folder), "cpu": draft.cpu, "priority": "normal"},
    }
    lines = ["# Written by the gateway at each start (`local_draft.mode`); changes are lost."]
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]

    return "\n".join(lines) + "\n"


async def _last_lines(process: Process) -> list[str]:
    """The last lines of its standard error, once that has ended."""
    assert process.stderr is not None
    lines: deque[str] = deque(maxlen=TAIL)
    async for line in process.stderr:
        lines.append(line.decode(errors="replace").strip())
    return list(lines)


async def _end(process: Process) -> None:
    """Ends it by closing its input, and by force if that takes too long."""
    if process.returncode is not None:
        return

    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_S)
    if process.returncode is None:
        process.kill()
        await process.wait()
