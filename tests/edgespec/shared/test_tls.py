"""TLS of the link, over real sockets: version 1.3, the pin decides, no date matters, and records are counted."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.core.errors import KeyStoreError, RemoteProtocolError
from edgespec.shared import server_keys, tls
from edgespec.shared.server_keys import ServerKeyStore


def identity(folder: Path, pem: bytes) -> server_keys.ServerIdentity:
    path = folder / "tls.pem"
    path.write_bytes(pem)
    return server_keys.ServerIdentity(path, server_keys.certificate_spki(path, pem))


async def seen_pin(server: server_keys.ServerIdentity, client: ssl.SSLContext) -> bytes:
    """Connects once; returns the pin that the client sees."""
    listening = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0, ssl=server.context())
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="anything")
        connection = writer.get_extra_info("ssl_object")
        assert connection.version() == "TLSv1.3"
        writer.close()
        return tls.peer_spki_hash(connection)


def year(number: int) -> dt.datetime:
    return dt.datetime(number, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(("start", "end"), [(1990, 1991), (2090, 2091), (1951, 9999)])
async def test_the_dates_of_a_certificate_do_not_matter(tmp_path: Path, start: int, end: int) -> None:
    """A clock that is wrong by decades on either machine has no effect."""
    server = identity(tmp_path, server_keys.new_identity(year(start), year(end)))
    assert await seen_pin(server, tls.client_context()) == server.spki_hash


async def test_the_client_sees_the_pin_that_the_gateway_stores(tmp_path: Path) -> None:
    server = ServerKeyStore(tmp_path).tls_identity()
    assert server == ServerKeyStore(tmp_path).tls_identity()
    assert await seen_pin(server, tls.client_context()) == server.spki_hash
    other = ServerKeyStore(tmp_path / "other").tls_identity()
    assert await seen_pin(other, tls.client_context()) != server.spki_hash


async def test_older_tls_is_refused(tmp_path: Path) -> None:
    server = ServerKeyStore(tmp_path).tls_identity()
    old = tls.client_context()
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):
        await seen_pin(server, old)


@pytest.mark.claim("a-certificate-of-an-unknown-version-is-refused")
async def test_a_certificate_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    """OpenSSL takes it, and `cryptography` has an exception of its own for it."""
    key, certificate = server_keys.new_identity().split(b"-----BEGIN CERT")
    der = ssl.PEM_cert_to_DER_cert((b"-----BEGIN CERT" + certificate).decode())
    sixth = der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05", 1)
    (tmp_path / "tls.pem").write_bytes(key + ssl.DER_cert_to_PEM_cert(sixth).encode())
    with pytest.raises(RemoteProtocolError, match="no certificate that can be read"):
        await seen_pin(server_keys.ServerIdentity(tmp_path / "tls.pem", b""), tls.client_context())


@pytest.mark.claim("forged-statements-are-refused")
@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_any_bytes_in_the_extension_are_no_statements_or_are_read(data: bytes) -> None:
    key = server_keys.new_tls_key()
    name = x509.Name([])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(server_keys.NOT_BEFORE)
        .not_valid_after(server_keys.NOT_AFTER)
        .add_extension(x509.UnrecognizedExtension(tls.ROTATIONS, data), critical=False)
        .sign(key, SHA256())
    )
    assert tls.rotations_in(certificate) == () or data[0] & 0xF0 == 0x90


def test_a_file_with_a_certificate_but_another_key_is_reported(tmp_path: Path) -> None:
    one = server_keys.new_identity().decode()
    two = server_keys.new_identity().decode()
    mark = "-----BEGIN CERT"
    mixed = one.split(mark)[0] + mark + two.split(mark)[1]
    with pytest.raises(KeyStoreError, match="holds no TLS key with its certificate"):
        identity(tmp_path, mixed.encode()).context()


def test_a_connection_without_tls_has_no_pin() -> None:
    with pytest.raises(RemoteProtocolError) as error:
        tls.peer_spki_hash(None)
    assert error.value.reason == "tls"
