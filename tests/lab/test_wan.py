"""The emulated wide-area link: its model, which the simulator shares, and the proxy with its order and its delays."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from edgespec.core.errors import AddressError
from edgespec_lab.link_model import LinkModel, OneWay
from edgespec_lab.wan import Proxy, main

ROUND_TRIPS = 20


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            while data := peer.recv(65536):
                peer.sendall(data)
            peer.close()

    threading.Thread(target=answer, daemon=True).start()
    yield server.getsockname()
    server.close()


def connect(target: tuple[str, int], model: LinkModel) -> tuple[Proxy, socket.socket]:
    proxy = Proxy(target, model)
    threading.Thread(target=proxy.serve, daemon=True).start()
    return proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def test_a_round_trip_takes_what_was_asked_for(echo: tuple[str, int]) -> None:
    proxy, sock = connect(echo, LinkModel(rtt_s=0.04))
    sock.sendall(b"x")
    sock.recv(1)  # the connection to the far end is made
    took_s: list[float] = []
    for _ in range(ROUND_TRIPS):
        began = time.monotonic()
        sock.sendall(b"ping")
        assert sock.recv(4) == b"ping"
        took_s.append(time.monotonic() - began)
    # A busy machine adds to single trips, the proxy to each: the shortest shows what the proxy adds.
    assert 0.04 <= min(took_s) < 0.05
    proxy.close()


def test_bytes_arrive_complete_and_in_order_through_jitter_and_loss(echo: tuple[str, int]) -> None:
    proxy, sock = connect(echo, LinkModel(rtt_s=0.002, jitter_s=0.005, loss=0.2))
    sent = bytes(i % 251 for i in range(200_000))
    threading.Thread(target=lambda: (sock.sendall(sent), sock.shutdown(socket.SHUT_WR)), daemon=True).start()
    received = b""
    while data := sock.recv(65536):
        received += data
    assert received == sent
    proxy.close()


def test_a_cut_reaches_both_ends_at_once(echo: tuple[str, int]) -> None:
    proxy, sock = connect(echo, LinkModel())
    sock.sendall(b"x")
    assert sock.recv(1) == b"x"
    proxy.cut()
    with contextlib.suppress(ConnectionError):
        assert sock.recv(1) == b""
    proxy.close()


def test_an_address_in_use_is_a_sentence() -> None:
    first = Proxy(("127.0.0.1", 1), LinkModel())
    with pytest.raises(AddressError, match=f"127.0.0.1:{first.port}"):
        Proxy(("127.0.0.1", 1), LinkModel(), ("127.0.0.1", first.port))
    first.close()


@pytest.mark.parametrize("option", [["--rtt-ms", "-4"], ["--rtt-ms", "nan"], ["--jitter-ms", "1e9"], ["--loss", "1"]])
def test_a_link_that_cannot_be_is_refused_in_a_sentence(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--to", "127.0.0.1:1", *option]) == 78
    assert "must be numbers from 0 to 60000" in capsys.readouterr().err


def test_a_held_direction_delivers_nothing_until_it_heals(echo: tuple[str, int]) -> None:
    proxy, sock = connect(echo, LinkModel())
    sock.sendall(b"a")
    assert sock.recv(1) == b"a"
    for direction in ("up", "down"):
        proxy.hold(direction)
        sock.sendall(b"b")
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        proxy.heal()
        sock.settimeout(10)
        assert sock.recv(1) == b"b"
    proxy.close()


def test_another_path_holds_for_open_connections(echo: tuple[str, int]) -> None:
    proxy, sock = connect(echo, LinkModel())
    sock.sendall(b"a")
    sock.recv(1)
    proxy.change(LinkModel(rtt_s=0.05))
    began = time.monotonic()
    sock.sendall(b"b")
    assert sock.recv(1) == b"b" and time.monotonic() - began >= 0.05
    proxy.close()


def draws(model: LinkModel, count: int = 20_000) -> list[float]:
    rng = random.Random(1)
    return [model.delay(rng) for _ in range(count)]


def test_a_steady_link_takes_half_the_round_trip_each_way() -> None:
    assert OneWay(LinkModel(rtt_s=0.1), random.Random(1)).arrival(5.0, 10) == pytest.approx(5.05)


def test_jitter_is_the_mean_of_an_exponential_delay() -> None:
    extra = [delay - 0.05 for delay in draws(LinkModel(rtt_s=0.1, jitter_s=0.02))]
    assert min(extra) >= 0 and sum(extra) / len(extra) == pytest.approx(0.02, rel=0.05)
    beyond = sum(delay > 0.04 for delay in extra) / len(extra)
    assert beyond == pytest.approx(0.1353, rel=0.1), "exp(-2) of them lie beyond twice the mean"


def test_a_loss_costs_its_repair_as_often_as_it_happens_again() -> None:
    model = LinkModel(rtt_s=0.1, loss=0.3)
    assert model.repair_s == pytest.approx(0.129), "1.25 round trips and the gap to the next packet"
    repairs = [round((delay - 0.05) / model.repair_s) for delay in draws(model)]
    assert sum(repairs) / len(repairs) == pytest.approx(0.3 / 0.7, rel=0.05)


def test_nothing_overtakes_what_was_sent_before() -> None:
    rough = OneWay(LinkModel(rtt_s=0.1, jitter_s=0.5, loss=0.5), random.Random(1))
    times = [rough.arrival(i * 0.01, 10) for i in range(200)]
    assert times == sorted(times)


def test_bandwidth_is_shared_by_what_is_sent_at_once() -> None:
    slow = OneWay(LinkModel(bandwidth_bps=8000), random.Random(1))
    assert slow.arrival(0.0, 500) == pytest.approx(0.5) and slow.arrival(0.0, 500) == pytest.approx(1.0)
    assert slow.busy_until == pytest.approx(1.0)
    free = OneWay(LinkModel(bandwidth_bps=float("inf")), random.Random(1))
    assert free.arrival(1.0, 10**9) == 1.0
