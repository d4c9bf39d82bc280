"""Announcements of machines, for `python -m tools.fuzz`."""

from __future__ import annotations

import msgspec
from zeroconf import ServiceInfo

from edgespec.parts.mdns.records import TXT_VERSION, read_announcement, service_type
from edgespec.shared.nearby import GATEWAY
from tools.fuzz.decoder import MSGPACK, Decoder
from tools.fuzz.ends import HASH


def _txt() -> bytes:
    """A TXT record as on the wire."""
    texts = (f"v={TXT_VERSION}", f"path={GATEWAY.path}", f"kh={HASH.hex()[:16]}", f"th={HASH.hex()}")
    return b"".join(bytes([len(text)]) + text.encode() for text in texts)


def _announced(data: bytes) -> object:
    """What a library of mDNS has read of any record: a name, a port, the TXT record's bytes and addresses."""
    try:
        name, port, txt, addresses = msgspec.msgpack.decode(data, type=tuple[str, int, bytes, list[bytes]])
        service = service_type(GATEWAY)
        info = ServiceInfo(service, name, port & 0xFFFF, properties=txt, addresses=addresses[:20])
    except Exception:  # noqa: BLE001  the library's own type holds no such record
        return None
    return read_announcement(info)


SAMPLE = msgspec.msgpack.encode(["gw._edgespec._tcp.local.", 7443, _txt(), [bytes([10, 0, 0, 7]), bytes(15) + b"\1"]])
DECODERS = {"announcement": Decoder(_announced, [SAMPLE], codec=MSGPACK, cost=4)}
