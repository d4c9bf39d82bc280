"""The closed set of messages between vLLM's process and `cloud-gateway link`, and their frames (README.md).

A frame is the length of its message in four bytes, little-endian, and the message.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

VERSION = 2
MAX_FRAME_BYTES = 64 * 1024
MAX_TOKENS = 8192
"""Token ids in one message: at most 40 KB, since an id takes at most five bytes."""
MAX_CHAIN = 192
"""Tokens of one chain: committed ones that it repeats, and a worker's 64 levels."""
MESSAGE_NODES = 16
"""Decoding a message takes about as long as visiting so many nodes of a tree."""
PASS_NODES = 512
"""Nodes that the chains of one request may cost vLLM in one pass, each message counted as MESSAGE_NODES more. A worker
adds about thirty candidates for each committed token, in about ten chains of ten tokens: half of this bound."""

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Of a request on one board; none is used twice."""
Group = Annotated[str, Meta(min_length=1, max_length=64)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class BoardError(Exception):
    """The peer's bytes are no messages of this board: the connection ends."""


class Message(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Base of all messages."""


# --- from vLLM ---------------------------------------------------------------------------------------------------


class Hello(Message, tag="hello", frozen=True):
    """First message of a connection: an engine, and the bounds of its drafts."""

    version: int
    rank: U32
    """Of the engine among the data-parallel ones."""
    vocab_size: U32
    """Of the target, not of the tokenizer."""
    drafts: U32
    """`num_speculative_tokens`."""


class Opened(Message, tag="opened", frozen=True):
    """A request that allows offloading. Its tokens are not sent before `Want`."""

    request: Number
    groups: Annotated[list[Group], Meta(max_length=16)]
    """Workers of these may see it."""
    scope: Annotated[bytes, Meta(max_length=32)] = b""
    """Only requests of equal scope share what a worker keeps of a prefix; empty: this one shares with none."""
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    tag: Annotated[str, Meta(max_length=64)] = ""
    """By which a gateway before vLLM names the request; empty: there is none."""


class Tokens(Message, tag="tokens", frozen=True):
    """Committed tokens from position `start` on: a part of the prompt, or what the target has chosen.

    `left` more of those that were committed by then follow in further messages. `drafted` and `accepted` count the
    draft tokens of the request up to now.
    """

    request: Number
    start: U32
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MAX_TOKENS)]
    left: U32 = 0
    drafted: U32 = 0
    accepted: U32 = 0


class Closed(Message, tag="closed", frozen=True):
    """The request is over; counts as in `Tokens`."""

    request: Number
    drafted: U32 = 0
    accepted: U32 = 0


# --- from the link process ---------------------------------------------------------------------------------------


class Want(Message, tag="want", frozen=True):
    """A worker is to draft for the request: send its tokens from position `have` on, and then each as it comes."""

    request: Number
    have: U32


class Leave(Message, tag="leave", frozen=True):
    """No worker drafts for the request now: send no more of its tokens."""

    request: Number


class Chain(Message, tag="chain", frozen=True):
    """Candidates in a row from position `start` on, each after the one before."""

    request: Number
    start: U32
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MAX_CHAIN)]
    costs: Annotated[list[U32], Meta(min_length=1, max_length=MAX_CHAIN)]
    """Millinats of each, given those before it."""


def nodes_of(message: FromLink) -> int:
    """What taking in a message costs, in nodes of a tree."""
    return MESSAGE_NODES + (len(message.tokens) if isinstance(message, Chain) else 0)


FromEngine = Hello | Opened | Tokens | Closed
FromLink = Want | Leave | Chain

_encoder = msgspec.msgpack.Encoder()
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
decode_from_link = msgspec.msgpack.Decoder(FromLink).decode


def frame(message: FromEngine | FromLink) -> bytes:
    """The frame of one message."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


class Frames:
    """Cuts a stream of bytes into messages. It keeps at most one incomplete frame."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes. Raises BoardError for a length that no frame has."""
        found: list[bytes] = []
        data = self._rest + data
        at = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "little")
            if end - at - 4 > MAX_FRAME_BYTES:
                raise BoardError("a frame is too long")
            if end > len(data):
                break
            found.append(data[at + 4 : end])
            at = end
        self._rest = data[at:]
        return found
