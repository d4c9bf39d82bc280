"""Emulates a wide-area link: a TCP proxy with delay, jitter, loss and bandwidth (`python -m edgespec_lab.wan -h`).

Bytes stay in order, as with TCP; delays are those of `lab/edgespec_lab/link_model.py`, where each chunk is a message.
Threads instead of an event loop: a sleeping thread wakes within about 0.1 ms of its time, while an event loop's timers
are rounded up to a whole millisecond.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Literal

from edgespec.core.errors import AddressError, ConfigError, EdgespecError
from edgespec_lab.link_model import LinkModel, OneWay

CHUNK = 64 * 1024
MAX_LOSS = 0.9
"""A link that loses everything would never deliver."""


def _pump(source: socket.socket, sink: socket.socket, way: OneWay, flows: threading.Event) -> None:
    """Carries one direction until either end closes, while `flows` is set."""
    line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def deliver() -> None:
        while True:
            due, data = line.get()
            time.sleep(max(due - time.monotonic(), 0.0))
            flows.wait()
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                _close(source)
                return

    threading.Thread(target=deliver, daemon=True).start()
    try:
        while data := source.recv(CHUNK):
            line.put((way.arrival(time.monotonic(), len(data)), data))
    except OSError:
        pass  # the close below reaches the other side
    line.put((way.arrival(time.monotonic(), 0), b""))


def _close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be closed already
        sock.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Listens on loopback and forwards every connection to `target` over the modelled path."""

    def __init__(
        self, target: tuple[str, int], model: LinkModel, listen: tuple[str, int] = ("127.0.0.1", 0), seed: int = 1
    ) -> None:
        """Raises AddressError when `listen` cannot be bound."""
        self.target = target
        self.model = model
        self._seed = seed
        try:
            self._server = socket.create_server(listen)
        except OSError as error:
            raise AddressError(f"The proxy cannot listen on {listen[0]}:{listen[1]}: {error.strerror}.") from error
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        self._connections = 0
        self._ways: list[OneWay] = []
        self._flows = {"up": threading.Event(), "down": threading.Event()}
        self.heal()

    def change(self, model: LinkModel) -> None:
        """Another path from now on, also for open connections."""
        self.model = model
        for way in self._ways:
            way.model = model

    def hold(self, *directions: Literal["up", "down"]) -> None:
        """Delivers nothing in these directions (`up`: to the target) until `heal`: a partition, or a half-open path."""
        for one in directions:
            self._flows[one].clear()

    def heal(self) -> None:
        """Delivers what was held; TCP would send it again."""
        for flows in self._flows.values():
            flows.set()

    def serve(self) -> None:
        """Forwards connections until `close`."""
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self._carry(client)

    def _carry(self, client: socket.socket) -> None:
        try:
            upstream = socket.create_connection(self.target, timeout=10)
        except OSError:
            client.close()
            return
        upstream.settimeout(None)
        self._connections += 1
        for sock in (client, upstream):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open += [client, upstream]
        seed = self._seed * 1_000_003 + self._connections * 2
        up, down = (OneWay(self.model, random.Random(seed + i)) for i in range(2))
        self._ways += [up, down]
        self._start(_pump, client, upstream, up, self._flows["up"])
        self._start(_pump, upstream, client, down, self._flows["down"])

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def cut(self) -> None:
        """Aborts every connection at once, as when a cable is pulled."""
        for sock in self._open:
            _close(sock)
        self._open.clear()
        self._ways.clear()

    def close(self) -> None:
        """Stops listening and aborts every connection."""
        _close(self._server)
        self._server.close()
        self.heal()
        self.cut()


def main(argv: list[str] | None = None) -> int:
    """`python -m edgespec_lab.wan --to HOST:PORT --rtt-ms 20`; prints the port that it listens on, then serves."""
    parser = argparse.ArgumentParser(prog="python -m edgespec_lab.wan", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="mean extra delay of a chunk, each way")
    parser.add_argument("--loss", type=float, default=0.0, help="share of chunks that TCP has to repair")
    parser.add_argument("--mbit-s", type=float, default=float("inf"), help="bandwidth each way (default: no limit)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    model = LinkModel(options.rtt_ms / 1e3, options.jitter_ms / 1e3, options.loss, options.mbit_s * 1e6)
    try:
        if not (
            0 <= model.rtt_s <= 60
            and 0 <= model.jitter_s <= 60
            and 0 <= model.loss <= MAX_LOSS
            and model.bandwidth_bps > 0
        ):  # NaN too
            raise ConfigError(
                f"--rtt-ms and --jitter-ms must be numbers from 0 to 60000, --loss one from 0 to {MAX_LOSS}, "
                "--mbit-s one above 0."
            )
        proxy = Proxy(_address(options.to), model, _address(options.listen), options.seed)
    except EdgespecError as error:
        print(f"edgespec_lab.wan: {error}", file=sys.stderr)
        return error.exit_code
    print(proxy.port, flush=True)
    try:
        proxy.serve()
    except KeyboardInterrupt:
        proxy.close()

    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise AddressError(f"{text!r} is not an address of the form host:port.")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
