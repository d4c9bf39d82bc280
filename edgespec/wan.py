"""A stand-in for a wide-area link: a TCP proxy that delays, jitters, stalls and limits (`python -m edgespec.wan -h`).

Bytes stay in order, as TCP delivers them. A "lost" chunk is one that arrives a retransmission later, and holds up
what follows it. Threads rather than an event loop: a sleeping thread wakes within about 0.1 ms of its time, an event
loop's timers are rounded up to a whole millisecond.
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
from dataclasses import dataclass

from edgespec.core.errors import AddressError, ConfigError, EdgespecError

CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Weather:
    """The link's behaviour. Times in seconds; each direction takes half the round trip."""

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    """Largest extra delay of a chunk, drawn evenly."""
    loss: float = 0.0
    """Share of chunks that arrive one retransmission (`rtt_s` + 0.2) later."""
    bytes_per_s: float = 0.0
    """0: unlimited."""
    seed: int = 1


class Delay:
    """When each chunk of one direction is due; pure, so that it can be tested without waiting."""

    def __init__(self, weather: Weather, seed: int) -> None:
        self._weather, self._rng = weather, random.Random(seed)
        self._last = 0.0

    def due(self, now: float, size: int) -> float:
        """Time at which a chunk of `size` bytes, sent `now`, has arrived; never before the one sent earlier."""
        weather = self._weather
        due = now + weather.rtt_s / 2 + self._rng.uniform(0, weather.jitter_s)
        if self._rng.random() < weather.loss:
            due += weather.rtt_s + 0.2
        due = max(due, self._last)
        if weather.bytes_per_s:
            due += size / weather.bytes_per_s
        self._last = due
        return due


def _pump(source: socket.socket, sink: socket.socket, delay: Delay) -> None:
    """Carries one direction until either end closes."""
    line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def deliver() -> None:
        while True:
            due, data = line.get()
            time.sleep(max(due - time.monotonic(), 0.0))
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
            line.put((delay.due(time.monotonic(), len(data)), data))
    except OSError:
        pass  # closing below informs the other side
    line.put((delay.due(time.monotonic(), 0), b""))


def _close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be closed already
        sock.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Listens on loopback and carries every connection to `target` through the weather."""

    def __init__(self, target: tuple[str, int], weather: Weather, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        """Raises AddressError when `listen` cannot be bound."""
        self.target, self.weather = target, weather
        try:
            self._server = socket.create_server(listen)
        except OSError as error:
            raise AddressError(f"The proxy cannot listen on {listen[0]}:{listen[1]}: {error.strerror}.") from error
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        self._connections = 0

    def serve(self) -> None:
        """Carries connections until `close`."""
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
        seed = self.weather.seed * 1_000_003 + self._connections * 2
        self._start(_pump, client, upstream, Delay(self.weather, seed))
        self._start(_pump, upstream, client, Delay(self.weather, seed + 1))

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def cut(self) -> None:
        """Breaks every connection at once, as a cable pulled."""
        for sock in self._open:
            _close(sock)
        self._open.clear()

    def close(self) -> None:
        """Stops listening and breaks every connection."""
        _close(self._server)
        self._server.close()
        self.cut()


def main(argv: list[str] | None = None) -> int:
    """`python -m edgespec.wan --to HOST:PORT --rtt-ms 20`; prints the port that it listens on, then serves."""
    parser = argparse.ArgumentParser(prog="python -m edgespec.wan", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--jitter-ms", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    weather = Weather(options.rtt_ms / 1e3, options.jitter_ms / 1e3, options.loss, seed=options.seed)
    try:
        if not (0 <= weather.rtt_s <= 60 and 0 <= weather.jitter_s <= 60 and 0 <= weather.loss <= 1):  # NaN too
            raise ConfigError("--rtt-ms and --jitter-ms must be numbers from 0 to 60000, --loss one from 0 to 1.")
        proxy = Proxy(_address(options.to), weather, _address(options.listen))
    except EdgespecError as error:
        print(f"edgespec.wan: {error}", file=sys.stderr)
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
