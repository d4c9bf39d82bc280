"""The recipes for nginx and Caddy, in the real ones: events pass at once, keys pass, a client may leave."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from cloud_gateway.api.listener import DROPPED_BYTES_PER_S
from edgespec_lab.rig import Processes, free_port
from tests.support.echo import CHAT, Echo, EchoEngine, echo_gateway
from tests.support.programs import require

pytestmark = pytest.mark.live
RECIPES = Path(__file__).parents[2] / "integrations" / "proxy"
START_S = 30.0


def nginx(folder: Path, port: int, api: int) -> list[str]:
    """Its command; the recipe as it is but for ports and places."""
    key = folder / "tls.key"
    certificate = folder / "tls.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=llm.example.org", "-days", "2"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    site = (RECIPES / "nginx.conf").read_text()
    for old, new in (
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/llm.example.org.pem", str(certificate)),
        ("/etc/ssl/llm.example.org.key", str(key)),
        ("127.0.0.1:8080", f"127.0.0.1:{api}"),
    ):
        assert old in site
        site = site.replace(old, new)
    paths = "".join(f"{one}_temp_path {folder};" for one in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    # Started by root, its workers would be `nobody`, who cannot write long bodies into the test's folder.
    process = f"user root; daemon off; pid {folder}/pid; error_log stderr; events {{}}"
    main = f"{process} http {{ access_log off; {paths} {site} }}"
    (folder / "nginx.conf").write_text(main)
    return ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int, api: int, recipe: str = "Caddyfile") -> list[str]:
    """Its command, with a certificate of its own for a name of this machine."""
    site = (RECIPES / recipe).read_text()
    assert "llm.example.org {\n" in site
    site = site.replace("llm.example.org {\n", f"https://localhost:{port} {{\n\ttls internal\n")
    site = site.replace("127.0.0.1:8080", f"127.0.0.1:{api}")
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n"
    (folder / "Caddyfile").write_text(options + site)
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


PROXIES = {"nginx": nginx, "caddy": caddy}


@asynccontextmanager
async def proxied(
    name: str, echo: Echo, folder: Path, other: Echo | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """A client's session with the proxy before the API, or with Caddy before two."""
    require(name)
    port = free_port()
    if other is None:
        command = PROXIES[name](folder, port, echo.listener.port)
        ready = "/v1/models"
    else:
        command = caddy(folder, port, echo.listener.port, "several.Caddyfile")
        ready = "/small/v1/models"
        site = folder / "Caddyfile"
        site.write_text(site.read_text().replace("127.0.0.1:8081", f"127.0.0.1:{other.listener.port}"))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the proxy's certificate is not what is tested
    own = {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with Processes(folder, environment=own) as processes:
        processes.start(name, command)
        headers = {"Authorization": f"Bearer {echo.key}"}
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(f"https://localhost:{port}", headers=headers, connector=connector) as session:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    async with session.get(ready) as response:
                        assert response.status == 200
                        break
                except aiohttp.ClientConnectorError:
                    if time.monotonic() > deadline or not processes.runs(name):
                        raise processes.failed(name) from None
                    await asyncio.sleep(0.2)
            yield session


@pytest.mark.parametrize("name", PROXIES)
async def test_a_stream_passes_the_proxy_event_by_event(name: str, tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, engine=EchoEngine(step_s=0.2)) as echo, proxied(name, echo, tmp_path) as session:
        arrived: list[float] = []
        async with session.post("/v1/chat/completions", json=CHAT | {"stream": True}) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            async for line in response.content:
                if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                    arrived.append(time.monotonic())
        assert len(arrived) > 3
        assert arrived[-1] - arrived[0] > 0.5, "collected by the proxy, and sent at once"


@pytest.mark.parametrize("name", PROXIES)
async def test_a_client_that_leaves_the_proxy_ends_its_completion(name: str, tmp_path: Path) -> None:
    engine = EchoEngine(step_s=0.1)
    async with echo_gateway(tmp_path, engine=engine) as echo, proxied(name, echo, tmp_path) as session:
        body = CHAT | {"stream": True, "max_tokens": 300, "edgespec": {"ignore_eos": True}}
        async with session.post("/v1/chat/completions", json=body) as response:
            await response.content.readline()
        for _ in range(100):
            if engine.cancelled:
                break
            await asyncio.sleep(0.1)
        assert len(engine.cancelled) == 1
        async with session.get("/v1/models", headers={"Authorization": "Bearer wrong"}) as refused:
            assert refused.status == 401


async def test_nginx_refuses_a_body_that_is_too_large_in_the_apis_shape(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path) as echo, proxied("nginx", echo, tmp_path) as session:
        async with session.post("/v1/chat/completions", data=bytes(5 * 2**20)) as refused:
            assert (refused.status, (await refused.json())["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("name", PROXIES)
async def test_the_refusal_of_a_long_body_passes_the_proxy(name: str, tmp_path: Path) -> None:
    async with echo_gateway(tmp_path) as echo, proxied(name, echo, tmp_path) as session:
        for size, key, status in ((3_900_000, "es-wrong", 401), (5_000_000, echo.key, 413)):
            headers = {"Authorization": f"Bearer {key}"}
            found = []
            for _ in range(12):
                async with session.post("/v1/chat/completions", data=bytes(size), headers=headers) as refused:
                    found.append(refused.status)
                await asyncio.sleep(size / DROPPED_BYTES_PER_S)  # all refusals of the port have one allowance
            assert found == [status] * 12


async def test_two_gateways_stand_behind_one_name(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path / "small") as small, echo_gateway(tmp_path / "large") as large:
        async with proxied("caddy", small, tmp_path, large) as session:
            asked = ("/small", small.key, 200), ("/large", large.key, 200), ("/small", large.key, 401)
            for path, key, status in asked:
                headers = {"Authorization": f"Bearer {key}"}
                async with session.post(f"{path}/v1/chat/completions", json=CHAT, headers=headers) as response:
                    assert response.status == status, path
                    assert ("chatcmpl-" in await response.text()) == (status == 200)
