"""The closed set of wire messages of protocol `edgespec/2`, decoded and validated once (docs/protocol.md).

Every message is a msgpack array whose first element is the tag. After the handshake they travel in a `Frame`, which
binds them to one session and one place in the sequence: those of several requests share one. Costs and entropies
travel as whole millinats: they rank nodes and never decide acceptance, so that precision is ample.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import count, pairwise
from operator import ge
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from edgespec.core.errors import UNDECODABLE, RemoteProtocolError
from edgespec.core.protocol import ranges
from edgespec.core.protocol.names import MAX_NAME, NAME_PATTERN

PROTOCOL = "edgespec/2"
VERSION = 2
"""The same as a number that two sides can compare."""
Version = Annotated[int, Meta(ge=1, le=65535)]
MAX_FRAME_BYTES = 64 * 1024
MAX_TREE_BYTES = 16 * 1024
MAX_PARTS = 64
"""Messages in one frame."""
FRAME_NODES = 448
"""New nodes in a frame to which a worker adds no tree: with 64 more, in `MAX_PARTS` trees, they fit into it."""
MAX_NODES = 64
"""New nodes in one `Tree`."""
MAX_DEPTH = 64
"""Levels that a node may lie below the frame's prefix. A worker delivers at most so many tokens in a round trip and a
pass, so that 16 cost time from 50 ms on."""
MAX_TOKENS_PER_FRAME = 8192
"""Token ids in one `Open` or `Commit`; a longer prompt follows in further `Commit`s."""
MAX_COST = 200_000
"""Millinats of one node's cost: about that of 16 tokens in a row drawn uniformly from 2**18, the largest vocabulary in
use (16 ln 2**18 = 199.6 nats). Costlier nodes are never verified, so a sender clips costs to this."""
MAX_MICROS = 60_000_000
"""Microseconds of a stated time; a machine may sleep, and what takes longer than a minute is of no use."""
MAX_POINTS = 8
"""Points of a worker's curve of step times: 1, 2, 4, 8, 16 leaves and its maximum are six."""
MAX_LEAVES = 1024
"""Leaves of one draft step."""
MAX_SHARES = 8
"""Workers that draft for one request at once."""
ENTROPY_SLACK = 50
"""Millinats by which an entropy may exceed ln(vocabulary): rounding, float32 sums, and the unused entries by which a
draft's vocabulary may be larger than the target's (51,200 for 50,257 is 19 millinats)."""
ROOT = 0
"""Parent id that stands for the end of the frame's prefix; node ids begin at 1."""

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Millinats = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Micros = Annotated[int, Meta(ge=0, le=MAX_MICROS)]
Token = Annotated[int, Meta(ge=0, le=ranges.MAX_ID)]
Tokens = Annotated[list[Token], Meta(max_length=MAX_TOKENS_PER_FRAME)]
Id16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Scope = Annotated[bytes, Meta(max_length=32)]
Bytes64 = Annotated[bytes, Meta(min_length=64, max_length=64)]
MAX_TOKENIZER_BYTES, MAX_PIECE_BYTES = 32 * 1024 * 1024, 65_300  # a frame holds a piece
Text = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*\Z")]
"""One line for people and logs: no control characters, no line or direction marks."""
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=NAME_PATTERN)]
_Nodes = Meta(min_length=1)
"""Their greatest number is checked in `check_tree_shape`, where it has a label of its own."""


class Message(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Base of all messages. Subclasses repeat `frozen`, which type checkers do not inherit."""


# --- handshake -------------------------------------------------------------------------------------------------


class Hello(Message, tag="hello", frozen=True):
    """Worker to gateway, first message: who it is and what it drafts with."""

    protocol: Text
    worker_key: Bytes32
    nonce: Bytes32
    tokenizer_digest: Bytes32
    model_digest: Bytes32
    vocab_size: Annotated[int, Meta(ge=1, le=ranges.MAX_ID)]
    sequences: Annotated[int, Meta(ge=1, le=MAX_LEAVES)]
    """`s`: leaves that one draft step can evaluate."""
    name: Name


class Challenge(Message, tag="challenge", frozen=True):
    """Gateway to worker: its identity, nonce and TLS key, signed over the transcript (session.py)."""

    gateway_key: Bytes32
    nonce: Bytes32
    spki_hash: Bytes32
    tokenizer_digest: Bytes32
    signature: Bytes64


class Proof(Message, tag="proof", frozen=True):
    """Worker to gateway: possession of the worker key, signed over the same transcript."""

    signature: Bytes64


class Rotation(Message, tag="rotation", frozen=True):
    """The new key takes the place of the old one; both signed that (handshake.py)."""

    old_key: Bytes32
    new_key: Bytes32
    old_signature: Bytes64
    new_signature: Bytes64


class RotatedProof(Message, tag="rotated-proof", frozen=True):
    """`Proof` of a worker whose key was rotated, with its latest statements, oldest first."""

    signature: Bytes64
    rotations: Annotated[list[Rotation], Meta(min_length=1, max_length=4)]


RefuseReason = Literal["version", "tokenizer"]


class Refuse(Message, tag="refuse", frozen=True):
    """Gateway to worker instead of `Challenge`: why it is refused. Signed, because the worker then ends."""

    reason: RefuseReason
    message: Text
    signature: Bytes64


# --- gateway to worker -----------------------------------------------------------------------------------------


class Sampling(Message, tag="sampling", frozen=True):
    """How the target chooses tokens; the worker ranks its draft tokens by the same rule (docs/numerics.md)."""

    temperature: Annotated[float, ranges.TEMPERATURE.meta] = 0.0
    top_k: Annotated[int, ranges.TOP_K.meta] = 0
    top_p: Annotated[float, ranges.TOP_P.meta] = 1.0
    min_p: Annotated[float, ranges.MIN_P.meta] = 0.0
    repetition_penalty: Annotated[float, ranges.REPETITION_PENALTY.meta] = 1.0
    presence_penalty: Annotated[float, ranges.PENALTY.meta] = 0.0
    frequency_penalty: Annotated[float, ranges.PENALTY.meta] = 0.0
    logit_bias: Annotated[dict[Token, Annotated[float, ranges.BIAS.meta]], Meta(max_length=ranges.MAX_BIASES)] = {}
    seed: U63 | None = None
    """Seed of the shared noise; None where the operator does not share it: then plain ranking."""


class Welcome(Message, tag="welcome", frozen=True):
    """First frame of the gateway: the worker is accepted."""

    gateway: Name
    branching: Annotated[int, Meta(ge=1, le=64)]
    """Maximum number of children of one node."""


class Open(Message, tag="open", frozen=True):
    """Draft for this request. Drafting begins when `prompt_len` tokens have arrived."""

    request: U63
    epoch: U32
    prompt_len: U32
    tokens: Tokens
    sampling: Sampling
    cache_scope: Scope = b""
    """Only requests of equal scope share what the worker keeps of a prefix; empty: this one shares with none."""


class Commit(Message, tag="commit", frozen=True):
    """The prefix of `prefix_len` tokens grows by `tokens`; `prefix_hash` is that of the grown prefix."""

    request: U63
    epoch: U32
    prefix_len: U32
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MAX_TOKENS_PER_FRAME)]
    prefix_hash: Bytes32
    period_us: Micros = 0
    """From the end of the pass before to the end of the one that chose these tokens; 0: there was none before."""
    pass_us: Micros = 0
    """Of that, the pass itself; in the rest the gateway waited for candidates or drafted."""
    depth: Annotated[int, Meta(ge=0, le=MAX_DEPTH)] = 0
    """Levels of candidates that the pass verified."""


class Share(Message, tag="share", frozen=True):
    """`count` workers draft for this request, and this one is the `index`-th: it leaves the others' branches to them.

    Without one a worker drafts everything.
    """

    request: U63
    epoch: U32
    index: Annotated[int, Meta(ge=0, le=MAX_SHARES - 1)]
    count: Annotated[int, Meta(ge=1, le=MAX_SHARES)]


class Close(Message, tag="close", frozen=True):
    """The request ended or was assigned elsewhere; its state can be dropped."""

    request: U63
    epoch: U32
    reason: Text


class Books(Message, tag="books", frozen=True):
    """The gateway's figures of this worker since the gateway started, over the requests that have ended.

    It is sent only to a worker whose upgrade names the feature `books`.
    """

    tokens: U63
    """Tokens of completions while the worker drafted for them."""
    accepted: U63
    """Those of them that were its candidates."""
    verified: U63
    """Its candidates that a pass verified."""
    frames: U63
    late: U63
    """Those of its frames of which nothing could be used."""


class WorkerTimes(Message, tag="times", frozen=True):
    """Times of the tokens in the latest `Books`, in milliseconds.

    It is sent only to a worker whose upgrade names the feature `times`, after `Books`.
    """

    spent: U63
    """Duration of the rounds in which the worker drafted."""
    alone: U63
    """What the gateway alone is estimated to take for the same tokens."""


class Piece(Message, tag="piece", frozen=True):
    """A piece of the target's tokenizer, as a file (docs/protocol.md), which has `size` bytes and this SHA-256."""

    digest: Bytes32
    size: Annotated[int, Meta(ge=1, le=MAX_TOKENIZER_BYTES)]
    data: Annotated[bytes, Meta(min_length=1, max_length=MAX_PIECE_BYTES)]


class Extra(Message, tag="extra", frozen=True):
    """A message of a part, which decodes `data`; sent only to a worker whose upgrade names the feature `kind`."""

    kind: Name
    data: Annotated[bytes, Meta(max_length=MAX_PIECE_BYTES)]


# --- worker to gateway -----------------------------------------------------------------------------------------


class Fetch(Message, tag="fetch", frozen=True):
    """Asks for the piece of the target's tokenizer that begins at byte `at`: a worker without a tokenizer does."""

    at: Annotated[int, Meta(ge=0, lt=MAX_TOKENIZER_BYTES)]


class Tree(Message, tag="tree", frozen=True):
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
    """Millinats of -log q(token | path), q being the draft's processed distribution; at most `MAX_COST`."""
    entropies: Annotated[list[Millinats], _Nodes]
    """Entropy in millinats of the draft's distribution that the node was taken from; at most `max_entropy`."""


class StepTimes(Message, tag="step-times", frozen=True):
    """What a draft step takes at the worker now, by its leaves; sent after `Welcome` and when it has changed.

    It helps to decide when candidates are worth waiting for. A worker that lies costs time, never a token.
    """

    leaves: Annotated[list[Annotated[int, Meta(ge=1, le=MAX_LEAVES)]], Meta(min_length=1, max_length=MAX_POINTS)]
    """Ascending, the first is 1."""
    micros: Annotated[list[Annotated[int, Meta(ge=1, le=MAX_MICROS)]], Meta(min_length=1, max_length=MAX_POINTS)]


class Pause(Message, tag="pause", frozen=True):
    """The worker stops drafting (its owner is back, or its admin paused it); its requests are assigned elsewhere."""

    reason: Text


class Resume(Message, tag="resume", frozen=True):
    """The worker drafts again."""


class Decline(Message, tag="decline", frozen=True):
    """The worker cannot draft for this request (too long for its context, too many at once, or drafting failed)."""

    request: U63
    epoch: U32
    reason: Text


# --- both ways -------------------------------------------------------------------------------------------------


class Ping(Message, tag="ping", frozen=True):
    """Answered at once by `Pong` with the same stamp (microseconds of the sender's own clock)."""

    stamp: U63


class Pong(Message, tag="pong", frozen=True):
    """Answer to `Ping`; also feeds the round-trip estimate."""

    stamp: U63


class Bye(Message, tag="bye", frozen=True):
    """Orderly end of the link; nothing follows."""

    reason: Text


ToWorker = Open | Commit | Share | Close
"""What a gateway sends of its requests."""
WorkerBody = Fetch | Tree | StepTimes | Pause | Resume | Decline | Ping | Pong | Bye
TOGETHER = frozenset({Open, Commit, Share, Close, Tree, Decline})
"""What may share a frame with others: messages about requests. So no frame holds a thousand pings to be answered."""
AnyBody = Welcome | Books | WorkerTimes | Piece | Extra | ToWorker | WorkerBody
Handshake = Hello | Challenge | Proof | RotatedProof | Refuse

Body = TypeVar("Body")
T = TypeVar("T")


class Frame(Struct, Generic[Body], array_like=True, forbid_unknown_fields=True, frozen=True):
    """Signed messages in their session. `seq` starts at 1 in each direction and rises by exactly 1."""

    session: Id16
    seq: U63
    bodies: Annotated[list[Body], Meta(min_length=1, max_length=MAX_PARTS)]


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_frame = msgspec.msgpack.Decoder(Frame[AnyBody]).decode
"""Decodes the bodies of both directions; the tables in session.py define which is allowed when."""
decode_handshake = msgspec.msgpack.Decoder(Handshake).decode


def decoded(decode: Callable[[bytes], T], data: bytes, what: str) -> T:
    """A message off the wire. Raises RemoteProtocolError (`malformed`), whatever the bytes are."""
    try:
        return decode(data)
    except UNDECODABLE as error:
        kind = type(error).__name__  # its text may quote the peer
        raise RemoteProtocolError("malformed", f"not {what} ({kind})") from None


class Shape(enum.StrEnum):
    """What can be wrong with the shape of a `Tree` or of `StepTimes`; each is a test and a metric label."""

    NODES = "nodes"
    COLUMNS = "columns"
    PARENT = "parent"
    DUPLICATE = "duplicate-sibling"
    VOCABULARY = "vocabulary"
    COST = "cost"
    ENTROPY = "entropy"
    STEPS = "steps"


def check_tree_shape(tree: Tree, vocab_size: int) -> None:
    """Checks one `Tree` as far as that needs no state of the request; depth is checked in `merge.py`.

    Raises RemoteProtocolError (reason `shape-…`): more than 64 nodes, columns of unequal length, a parent that is
    not an earlier node, duplicate siblings, a token outside the vocabulary, a cost beyond `MAX_COST`, or an entropy
    that no distribution over the vocabulary has. The text names no token.
    """
    n = len(tree.tokens)
    if n > MAX_NODES:
        raise shape_error(Shape.NODES, f"{n} nodes in one frame, more than {MAX_NODES}")
    if not len(tree.parents) == len(tree.costs) == len(tree.entropies) == n:
        raise shape_error(Shape.COLUMNS, "columns of unequal length")
    if len(set(zip(tree.parents, tree.tokens, strict=True))) != n:
        raise shape_error(Shape.DUPLICATE, "the same token twice under one parent")
    if any(map(ge, tree.parents, count(tree.first))):
        raise shape_error(Shape.PARENT, "a node names a parent that is not earlier")
    if max(tree.tokens) >= vocab_size:
        raise shape_error(Shape.VOCABULARY, f"a token is outside the vocabulary of {vocab_size}")
    if max(tree.costs) > MAX_COST:
        raise shape_error(Shape.COST, f"a cost exceeds {MAX_COST} millinats")
    if max(tree.entropies) > max_entropy(vocab_size):
        raise shape_error(Shape.ENTROPY, f"an entropy exceeds that of {vocab_size} equally likely tokens")


def levels(tree: Tree) -> int:
    """Nodes on the longest path within one `Tree` of checked shape."""
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(1 + (depths[parent - tree.first] if parent >= tree.first else 0))
    return max(depths)


def step_curve(times: StepTimes) -> tuple[tuple[int, float], ...]:
    """Leaves and seconds of a draft step, by rising leaves. Raises RemoteProtocolError (`shape-steps`)."""
    leaves = times.leaves
    if len(leaves) != len(times.micros) or leaves[0] != 1 or any(a >= b for a, b in pairwise(leaves)):
        error = "step times need one time for each number of leaves, ascending from 1"
        raise RemoteProtocolError(f"shape-{Shape.STEPS}", error)
    return tuple((count, micros / 1e6) for count, micros in zip(leaves, times.micros, strict=True))


@lru_cache(maxsize=8)
def max_entropy(vocab_size: int) -> int:
    """Millinats of the largest entropy that a `Tree` may state: ln(vocab_size), rounded up, and `ENTROPY_SLACK`."""
    return math.ceil(math.log(vocab_size) * 1000) + ENTROPY_SLACK


def shape_error(kind: Shape | str, message: str) -> RemoteProtocolError:
    """The error for a tree of a forbidden shape; `kind` becomes part of the metric label."""
    return RemoteProtocolError(f"shape-{kind}", f"speculation tree refused: {message}")
