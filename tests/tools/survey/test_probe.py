"""One request: its times are those that the endpoint really took, and every failure has its name."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from edgespec.core.errors import ConfigError
from tests.support.echo import EchoEngine, echo_gateway
from tests.support.sockets import reserved
from tools.doubles.chat_endpoint import ChatEndpoint, Reply, serving
from tools.survey.answer import Answer
from tools.survey.config import EndpointSection, RequestSection
from tools.survey.probe import Prober, _rate, refused, retry_after
from tools.survey.sample import Sample

SECRET = "sk-very-secret"
PROMPT = "Count from one to nine."


async def ask(base_url: str, key: str = "", timeout_s: float = 10.0, **endpoint: object) -> Sample:
    section = EndpointSection(name="e", base_url=base_url, model="m", **endpoint)  # type: ignore[arg-type]
    return await Prober(section, RequestSection(prompt=PROMPT, timeout_s=timeout_s), "here", key).sample(
        1_700_000_000.0
    )


async def ask_one(reply: Reply, **options: object) -> Sample:
    server = ChatEndpoint(lambda: reply)
    async with serving(server):
        return await ask(server.base_url, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("wait_s", [0.0, 0.06, 0.15])
async def test_the_time_to_the_first_token_is_the_one_that_the_endpoint_took(wait_s: float) -> None:
    server = ChatEndpoint(lambda: Reply(wait_s=wait_s, tokens=5, step_s=0.01))
    async with serving(server):
        samples = [await ask(server.base_url) for _ in range(7)]
    assert {sample.outcome for sample in samples} == {"ok"}
    excess_ms = [sample.ttft_ms - 1e3 * true_s for sample, true_s in zip(samples, server.waits_s)]
    assert min(excess_ms) >= -0.5, "a request cannot take less time than its server took"
    assert median(excess_ms) < 15 + median(sample.stalled_ms for sample in samples)
    for sample, true_s in zip(samples, server.waits_s):
        assert sample.connect_ms is not None
        assert sample.total_ms >= 1e3 * true_s + 4 * 10 - 0.5
        assert (sample.chunks, sample.tokens, sample.tls_ms, sample.dns_ms) == (5, 5, None, None)
        # A reader that was held up sees the tokens closer together than they were sent, but not for longer than all.
        assert sample.tokens_per_s * (sample.total_ms - sample.ttft_ms) / 1e3 >= 4 - 0.01


def test_the_rate_counts_from_the_first_token_on_to_the_last() -> None:
    answer = Answer()
    for at, text in ((10.00, "a"), (10.01, ""), (10.02, "b"), (10.03, "c"), (10.04, "d"), (99.0, "")):
        answer.feed(f'data: {{"choices": [{{"delta": {{"content": "{text}"}}}}]}}\n\n'.encode(), at)
    assert _rate(4, answer) == pytest.approx(3 / 0.04)
    assert _rate(5, answer) == pytest.approx(4 / 0.04), "by the server's own count, where it has one"
    assert _rate(1, answer) is None and _rate(5, Answer()) is None


async def test_the_connect_time_is_that_of_the_tcp_handshake() -> None:
    """A full queue of connections makes the kernel drop the handshake's first packet, which is repeated after 1 s."""
    with socket.socket() as listener, socket.socket() as filler:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        listener.setblocking(False)
        filler.connect(listener.getsockname())
        began = time.monotonic()
        asking = asyncio.ensure_future(ask(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", timeout_s=4))
        await asyncio.sleep(0.3)
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        with accepted:
            sample = await asking
    assert sample.outcome == "timeout", "no process reads what the kernel has accepted"
    assert sample.connect_ms is not None
    assert sample.connect_ms >= 900  # on a machine that stood still it is the packet after 3 s that gets through
    assert sample.ttft_ms is None
    assert 3900 <= sample.connect_ms + sample.total_ms <= 1e3 * (time.monotonic() - began)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(status=401), "unauthorised"),
        (Reply(status=403), "unauthorised"),
        (Reply(status=404), "http-error"),
        (Reply(status=302), "http-error"),
        (Reply(status=500), "server-error"),
        (Reply(content_type="application/json", raw=b"{}"), "not-a-stream"),
        (Reply(raw=b"data: what?\n\n"), "not-a-stream"),
        (Reply(raw=b'data: {"error": {"message": "no"}}\n\n'), "stream-error"),
        (Reply(raw=b""), "broken"),
        (Reply(break_after=0), "broken"),
        (Reply(break_after=3), "broken"),
        (Reply(raw=b"data: [DONE]\n\n"), "empty"),
    ],
)
async def test_each_failure_of_an_endpoint_has_its_name(reply: Reply, outcome: str) -> None:
    sample = await ask_one(reply)
    assert (sample.outcome, sample.status) == (outcome, reply.status)
    assert sample.connect_ms is not None, "the network was measured all the same"


async def test_a_rate_limit_is_reported_with_its_retry_time() -> None:
    sample = await ask_one(Reply(status=429, retry_after="7"))
    assert (sample.outcome, sample.retry_after_s, refused(sample)) == ("rate-limited", 7.0, True)
    busy = await ask_one(Reply(status=503, retry_after="2"))
    assert (busy.outcome, busy.retry_after_s, refused(busy)) == ("server-error", 2.0, True)
    assert not refused(await ask_one(Reply(status=503)))
    assert not refused(await ask_one(Reply()))


def test_retry_after_is_read_in_both_its_forms() -> None:
    now = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC).timestamp()
    assert retry_after("120", now) == 120.0
    assert retry_after("Mon, 02 Mar 2026 12:01:30 GMT", now) == 90.0
    assert retry_after("Mon, 02 Mar 2026 11:00:00 GMT", now) == 0.0
    assert retry_after("999999999", now) == 7 * 86_400
    assert [retry_after(text, now) for text in (None, "", "soon", "-1", "１２")] == [None] * 5


async def test_a_timed_out_request_counts_with_the_time_waited() -> None:
    began = time.monotonic()
    sample = await ask_one(Reply(wait_s=3), timeout_s=1.0)
    assert (sample.outcome, sample.ttft_ms) == ("timeout", None)
    assert 800 <= sample.total_ms <= 1e3 * (time.monotonic() - began)


async def test_an_absent_or_unnamed_server_is_reported() -> None:
    with reserved() as port:
        sample = await ask(f"http://127.0.0.1:{port}/v1")
    assert (sample.outcome, sample.connect_ms, sample.total_ms) == ("refused", None, None)


async def test_a_name_that_cannot_be_resolved_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # no test asks a name server
    assert (await ask("http://no.such.host.invalid/v1")).outcome == "dns"


async def test_a_server_of_another_protocol_is_reported() -> None:
    async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(banner, "127.0.0.1", 0)
    async with server:
        sample = await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    assert sample.outcome in ("not-a-stream", "broken")


async def test_a_tiny_streaming_request_is_sent_and_the_key_only_there() -> None:
    server = ChatEndpoint(Reply)
    async with serving(server):
        sample = await ask(server.base_url, key=SECRET)
        await ask(server.base_url, limit_field="max_completion_tokens", ask_usage=False)
    (first, second), headers = server.requests, server.headers[0]
    assert first["messages"] == [{"role": "user", "content": PROMPT}]
    assert (first["stream"], first["max_tokens"], first["stream_options"]) == (True, 16, {"include_usage": True})
    assert (second["max_completion_tokens"], "max_tokens" in second, "stream_options" in second) == (16, False, False)
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert "Authorization" not in server.headers[1]
    assert SECRET not in repr(sample)
    assert PROMPT not in repr(sample)


@pytest.mark.claim("keys-and-prompts-are-in-no-sample")
async def test_a_redirection_does_not_carry_the_key_away() -> None:
    other = ChatEndpoint(Reply)
    async with serving(other):

        async def elsewhere(_: web.Request) -> web.Response:
            return web.Response(status=307, headers={"Location": f"{other.base_url}/chat/completions"})

        app = web.Application()
        app.router.add_post("/v1/chat/completions", elsewhere)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        sample = await ask(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", key=SECRET)
        await runner.cleanup()
    assert (sample.outcome, other.requests) == ("http-error", [])


async def test_the_projects_own_gateway_is_measured(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, engine=EchoEngine(step_s=0.05, per_event=4)) as echo:
        sample = await ask(echo.base_url, key=echo.key)
        assert (sample.outcome, sample.status) == ("http-error", 404), "that model is not served"
        section = EndpointSection(name="ours", base_url=echo.base_url, model="echo")
        prober = Prober(section, RequestSection(), "here", echo.key)
        sample = await prober.sample(0.0)
        assert (sample.outcome, sample.tokens, sample.chunks) == ("ok", 16, 4)
        assert sample.ttft_ms >= 49
        assert sample.total_ms >= 199
        assert (await Prober(section, RequestSection(), "here", "es-nothere0-x").sample(0.0)).outcome == "unauthorised"
        echo.engine.queue_limit = 0
        full = await prober.sample(0.0)
        assert (full.outcome, full.retry_after_s) == ("rate-limited", 3.0)


def certificate(folder: Path) -> Path:
    """A key and a self-signed certificate for localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, SHA256())
    )
    path = folder / "server.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + made.public_bytes(Encoding.PEM))
    return path


async def test_tls_time_is_separate_and_foreign_certificates_are_refused(tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = ChatEndpoint(lambda: Reply(wait_s=0.02))
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://localhost:{runner.addresses[0][1]}/v1"
    samples = [await ask(url, ca_file=str(pem)) for _ in range(5)]
    foreign = await ask(url)
    await runner.cleanup()
    sample = samples[0]
    assert sample.outcome == "ok"
    assert sample.dns_ms is not None
    assert sample.tls_ms is not None
    assert sample.connect_ms > 0
    shortest_tls_ms = min(one.tls_ms or 0.0 for one in samples)
    shortest_connect_ms = min(one.connect_ms or 0.0 for one in samples)
    assert shortest_tls_ms > shortest_connect_ms, "keys are exchanged in the one and nothing in the other"
    assert sample.ttft_ms >= 19.5
    assert foreign.outcome == "tls"


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("nothing")])
def test_a_file_without_certificates_is_a_mistake_in_the_configuration(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "ca.pem")
    section = EndpointSection(name="e", base_url="https://x/v1", model="m", ca_file=str(tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match="`ca_file` of endpoint e cannot be used"):
        Prober(section, RequestSection(), "here", "")


@pytest.fixture
def one_busy_core() -> Iterator[None]:
    """This process and one that never rests share a core."""
    cores = os.sched_getaffinity(0)
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(rival.pid, {min(cores)})
        os.sched_setaffinity(0, {min(cores)})
        yield
    finally:
        os.sched_setaffinity(0, cores)
        rival.kill()
        rival.wait()


@pytest.mark.usefixtures("one_busy_core")
async def test_a_machine_that_is_too_busy_to_look_is_noticed() -> None:
    def computed() -> Reply:
        """Needs the core itself for a while, so that it has to share it."""
        end = time.process_time() + 0.03
        while time.process_time() < end:
            pass
        return Reply(wait_s=0.0)

    server = ChatEndpoint(computed)
    async with serving(server):
        samples = [await ask(server.base_url) for _ in range(5)]
    assert max(sample.stalled_ms for sample in samples) > 0.1
