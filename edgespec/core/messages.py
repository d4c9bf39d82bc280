"""The closed set of wire messages of protocol `edgespec/1`, decoded and validated once (docs/protocol.md).

Every message is a msgpack array whose first element is the tag. After the handshake each one travels as the
`body` of a `Frame`, which binds it to one session and one place in the sequence. Costs and entropies
travel as whole millinats: they rank nodes and never decide acceptance, so that precision is ample.
"""

from __future__ import annotations

import enum
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from edgespec.core.errors import RemoteProtocolError

PROTOCOL = "edgespec/1"
MAX_FRAME_BYTES = 64 * 1024
MAX_TREE_BYTES = 16 * 1024
MAX_NODES = 64
"""New nodes in one `Tree`."""
MAX_DEPTH = 16
"""Levels that a node may lie below the frame's prefix."""
MAX_TOKENS_PER_FRAME = 8192
"""Token ids in one `Open` or `Commit`; a longer prompt follows in further `Commit`s."""
ROOT = 0
"""Parent id that stands for the end of the frame's prefix; node ids begin at 1."""

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Millinats = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Tokens = Annotated[list[Token], Meta(max_length=MAX_TOKENS_PER_FRAME)]
Id16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Bytes64 = Annotated[bytes, Meta(min_length=64, max_length=64)]
Text = Annotated[str, Meta(max_length=200)]
_Nodes = Meta(min_length=1, max_length=MAX_NODES)


class Message(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Base of all messages."""


# --- handshake -------------------------------------------------------------------------------------------------


class Hello(Message, tag="hello"):
    """Worker to gateway, first message: who it is and what it drafts with."""

    protocol: Text
    worker_key: Bytes32
    nonce: Bytes32
    tokenizer_digest: Bytes32
    model_digest: Bytes32
    vocab_size: U32
    sequences: Annotated[int, Meta(ge=1, le=1024)]
    """`s`: leaves that one draft step can evaluate."""
    name: Text


class Challenge(Message, tag="challenge"):
    """Gateway to worker: its identity, nonce and TLS key, signed over the transcript (session.py)."""

    gateway_key: Bytes32
    nonce: Bytes32
    spki_hash: Bytes32
    tokenizer_digest: Bytes32
    signature: Bytes64


class Proof(Message, tag="proof"):
    """Worker to gateway: possession of the worker key, signed over the same transcript."""

    signature: Bytes64


class Refuse(Message, tag="refuse"):
    """Gateway to worker instead of `Challenge` or `Welcome`: why this worker is not let in."""

    reason: Text
    """Closed label: `version`, `unpaired`, `revoked`, `tokenizer`, `busy`."""
    message: Text


# --- gateway to worker -----------------------------------------------------------------------------------------


class Sampling(Message, tag="sampling"):
    """How the target will choose tokens; the worker ranks its guesses by the same rule (design section 6)."""

    temperature: float = 0.0
    top_k: U32 = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[Token, float] = {}
    seed: U63 | None = None
    """Seed of the shared noise; None where the operator does not share it: then plain ranking."""


class Welcome(Message, tag="welcome"):
    """First frame of the gateway: the worker is let in."""

    gateway: Text
    branching: Annotated[int, Meta(ge=1, le=64)]
    """Most children of one node that the gateway wants."""


class Open(Message, tag="open"):
    """Draft for this request. Drafting begins when `prompt_len` tokens have arrived."""

    request: U63
    epoch: U32
    prompt_len: U32
    tokens: Tokens
    sampling: Sampling


class Commit(Message, tag="commit"):
    """The prefix of `prefix_len` tokens grows by `tokens`; `prefix_hash` is that of the grown prefix."""

    request: U63
    epoch: U32
    prefix_len: U32
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MAX_TOKENS_PER_FRAME)]
    prefix_hash: Bytes32


class Close(Message, tag="close"):
    """The request ended or moved elsewhere; its state can go."""

    request: U63
    epoch: U32
    reason: Text


# --- worker to gateway -----------------------------------------------------------------------------------------


class Tree(Message, tag="tree"):
    """New nodes of the speculation tree, in columns; node `i` has id `first + i`.

    A parent is `ROOT` or the id of an earlier node of this request and epoch, of this frame or a former one.
    """

    request: U63
    epoch: U32
    prefix_len: U32
    prefix_hash: Bytes32
    first: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    parents: Annotated[list[U32], _Nodes]
    tokens: Annotated[list[Token], _Nodes]
    costs: Annotated[list[Millinats], _Nodes]
    """Millinats of -log q(token | path), q being the draft's processed distribution."""
    entropies: Annotated[list[Millinats], _Nodes]
    """Entropy in millinats of the draft's distribution that the node was taken from."""


class Pause(Message, tag="pause"):
    """The worker stops drafting (its owner is back, or its admin said so); its requests move on."""

    reason: Text


class Resume(Message, tag="resume"):
    """The worker drafts again."""


class Decline(Message, tag="decline"):
    """The worker cannot draft for this request (too long for its context, too many at once)."""

    request: U63
    epoch: U32
    reason: Text


# --- both ways -------------------------------------------------------------------------------------------------


class Ping(Message, tag="ping"):
    """Answered at once by `Pong` with the same stamp (microseconds of the sender's own clock)."""

    stamp: U63


class Pong(Message, tag="pong"):
    """Answer to `Ping`; also feeds the round-trip estimate."""

    stamp: U63


class Bye(Message, tag="bye"):
    """Orderly end of the link; nothing follows."""

    reason: Text


GatewayBody = Welcome | Open | Commit | Close | Ping | Pong | Bye
WorkerBody = Tree | Pause | Resume | Decline | Ping | Pong | Bye
Handshake = Hello | Challenge | Proof | Refuse

Body = TypeVar("Body")


class Frame(Struct, Generic[Body], array_like=True, forbid_unknown_fields=True, frozen=True):
    """One signed message in its session. `seq` starts at 1 in each direction and rises by exactly 1."""

    session: Id16
    seq: U63
    body: Body


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_gateway_frame = msgspec.msgpack.Decoder(Frame[GatewayBody]).decode
decode_worker_frame = msgspec.msgpack.Decoder(Frame[WorkerBody]).decode
decode_handshake = msgspec.msgpack.Decoder(Handshake).decode


class Shape(enum.StrEnum):
    """What can be wrong with the shape of a `Tree`; each is a test and a metric label."""

    COLUMNS = "columns"
    PARENT = "parent"
    DUPLICATE = "duplicate-sibling"
    VOCABULARY = "vocabulary"


def check_tree_shape(tree: Tree, vocab_size: int) -> None:
    """Checks what can be said of one `Tree` without the request's state; depth is checked in `merge.py`.

    Raises RemoteProtocolError (reason `shape`): columns of unequal length, a parent that is not an earlier node,
    duplicate siblings, or a token outside the vocabulary.
    """
    n = len(tree.tokens)
    if not len(tree.parents) == len(tree.costs) == len(tree.entropies) == n:
        raise shape_error(Shape.COLUMNS, "columns of unequal length")
    siblings = set(zip(tree.parents, tree.tokens, strict=True))
    if len(siblings) != n:
        raise shape_error(Shape.DUPLICATE, "the same token twice under one parent")
    for i, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        if parent >= tree.first + i:
            raise shape_error(Shape.PARENT, f"node {tree.first + i} names parent {parent}, which is not earlier")
        if token >= vocab_size:
            raise shape_error(Shape.VOCABULARY, f"token {token} is outside the vocabulary of {vocab_size}")


def shape_error(kind: Shape | str, message: str) -> RemoteProtocolError:
    """The error for a tree of a forbidden shape; `kind` becomes part of the metric label."""
    return RemoteProtocolError(f"shape-{kind}", f"speculation tree refused: {message}")
