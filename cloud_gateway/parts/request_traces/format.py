"""A trace: what one request's state machine was given and what its policy decided, each with its time (docs/traces.md).

    file    =  MAGIC ‖ public key(32) ‖ signature(64) ‖ zlib(msgpack(Trace))
    signed  =  b"edgespec/1 trace\\0" + public key + everything after the signature

An event is the machine's own (core/requests/events.py), in the order in which they happened: the same machine, given
the same again, decides the same. Those that hold nodes, rows or a prefix have a form of their own here, as have
decisions. Nodes are named by their ids. Times are seconds of the gateway's monotonic clock, kept to the last bit,
because sums of them are compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from cloud_gateway.core.policies import policy
from cloud_gateway.core.policies.policy import Costs, LinkView
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.events import Admitted, Ended, Failed, Preempted, Read, WorkerChanged
from edgespec.core.errors import UNDECODABLE, EdgespecError, RemoteProtocolError
from edgespec.core.protocol.messages import Text
from edgespec.core.protocol.signing import SIGNATURE_BYTES, SigningKey, StoredKind, check_public_key, verify

FAMILY = b"edgespec-trace/"
MAGIC = FAMILY + b"3\n"
KIND = StoredKind("trace")
KEY_BYTES = 32
MAX_BYTES = 64 * 1024 * 1024
"""Of a trace's content; a longer one is not unpacked."""
MAX_PROMPT = 1 << 20
"""Tokens, as many as a slot of the target can have (`target.context`)."""
MAX_EVENTS = 1 << 16
"""Of one request. A token takes two or three, and the longest completion has 16,384 tokens by default. Playing so many
takes half a second."""
MAX_TIME_S = 2.0**32
"""136 years of a monotonic clock: a float of this size still resolves a microsecond."""


class TraceError(EdgespecError):
    """A trace was altered after it was signed, by another gateway than asked for, or is no trace (docs/traces.md)."""

    exit_code = 65


class Event(Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False, tag=True):
    """Base of what has a form of its own in a trace."""


class Act(Event, frozen=True, tag=False):
    """What the policy decided (core/policies/policy.py)."""

    kind: Literal["verify", "draft", "catch-up", "wait"]
    nodes: list[int] = []
    """Candidates to verify (none: a plain decoding step), or leaves to draft at."""
    value: int | float = 0
    """Children of each leaf, tokens to read, or the time to wait for."""


class Decided(Event, frozen=True):
    """The policy was asked, with what it saw besides the tree."""

    link: LinkView | None
    costs: Costs
    """Without the target's curve."""
    curve: dict[int, float]
    """Points of the target's curve that are new: rows -> seconds. The first one is the whole curve."""
    size: int
    """Candidates in the tree, which shows a tree that is rebuilt otherwise."""
    act: Act


class Frame(Event, frozen=True):
    """An assigned worker sent a tree; `on_path`: its prefix hash was that of a committed prefix. Costs in millinats.

    Frames that belong to another worker or epoch are not in a trace: the machine takes nothing from them.
    """

    worker: Text
    prefix_len: int
    on_path: bool
    first: int
    parents: list[int]
    tokens: list[int]
    costs: list[int]
    entropies: list[int]


class Drafted(Event, frozen=True):
    """The local draft has made its proposals below these leaves: tokens, their costs, the entropy (nats)."""

    leaves: list[int]
    proposals: list[tuple[list[int], list[float], float]]


class Guided(Event, frozen=True):
    """The constraint took these candidates out of the next pass, and added these tokens to its best path."""

    left_out: list[int]
    forced: list[int]


class Suggested(Event, frozen=True):
    """A source without a draft model put these candidates into the tree: indices of their parents in this list (-1: the
    last committed token), tokens, and the probability of each given its parent."""

    source: Text
    parents: list[int]
    tokens: list[int]
    chances: list[float]


class Verified(Event, frozen=True):
    """A pass over what was decided on last: the tokens that the target chose, the entropies (nats) of its choices."""

    tokens: list[int]
    entropies: list[float]
    forced: list[int]
    """Tokens that the constraint then proposed."""


AnyEvent = (
    Admitted | Read | WorkerChanged | Preempted | Failed | Ended
    | Decided | Frame | Drafted | Guided | Suggested | Verified
)  # fmt: skip
Entry = tuple[Annotated[float, Meta(ge=0, le=MAX_TIME_S)], AnyEvent]
"""When, and what."""


class Header(Struct, forbid_unknown_fields=True, frozen=True):
    """What is known of the request as a whole. Texts are one line: anybody can sign a trace, and `replay` prints it."""

    edgespec: Text
    """Version that made the trace."""
    made_at: int
    """Unix seconds when the request came."""
    request: int
    settings: PolicySettings
    prompt_len: Annotated[int, Meta(ge=0, le=MAX_PROMPT)]
    max_tokens: int
    context: int
    """Most tokens that a slot of the target can hold."""
    offload: bool
    """Whether workers were allowed to draft for it."""
    salted: bool
    """Token ids are replaced by numbers in the order of their first appearance."""
    eos: list[int]
    """Tokens that end the completion, of those that appear; none where they were to be ignored."""
    workers: list[Text]
    """Key ids of the workers that were assigned."""
    finish: Text
    complete: bool
    """False where the trace reached its limit, so that the end of the completion is missing."""
    policy_state: dict[str, Any] | None = None
    """What the policy carried over from earlier completions; None: nothing."""


class Trace(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    header: Header
    entries: Annotated[list[Entry], Meta(max_length=MAX_EVENTS)]


def _without_curve(_: object) -> None:
    """The target's curve is a function; its points are in `Decided.curve`."""


def _no_curve(kind: object, value: object) -> Callable[[int], float]:
    return lambda rows: 0.0


encode = msgspec.msgpack.Encoder(enc_hook=_without_curve).encode
_decode = msgspec.msgpack.Decoder(Trace, dec_hook=_no_curve).decode


def seal(trace: Trace, key: SigningKey) -> bytes:
    body = zlib.compress(encode(trace), 9)
    return b"".join((MAGIC, key.public, key.sign(KIND, key.public + body), body))


def unseal(data: bytes) -> tuple[Trace, bytes]:
    """A file's trace, and the public key that signed it. Raises TraceError for anything but what `seal` made."""
    start = len(MAGIC) + KEY_BYTES + SIGNATURE_BYTES
    if data.startswith(FAMILY) and not data.startswith(MAGIC):
        name = MAGIC.decode().strip()
        raise TraceError(
            f"it is not of the format `{name}`: another version of edgespec made it, which can replay it, "
            "or it was altered. Record the request again with this version."
        )
    if not data.startswith(MAGIC) or len(data) <= start:
        raise TraceError("it is not an edgespec trace, or its header is corrupt.")

    public = data[len(MAGIC) : len(MAGIC) + KEY_BYTES]
    body = data[start:]
    try:
        check_public_key(public)
        verify(public, KIND, public + body, data[len(MAGIC) + KEY_BYTES : start])
    except RemoteProtocolError:
        raise TraceError("it was altered after the gateway signed it; its signature does not verify.") from None
    try:
        trace = _decode(_unpack(body))
    except (zlib.error, *UNDECODABLE) as error:
        raise TraceError(f"its content cannot be read ({error}); another version of edgespec made it.") from None

    return trace, public


def _unpack(body: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(body, MAX_BYTES)
    if unpacker.unconsumed_tail:
        raise zlib.error(f"more than {MAX_BYTES} bytes")
    return content


def emitted(entries: Iterable[Entry]) -> int:
    """Tokens of the completion that a trace holds."""
    return sum(len(event.tokens) for _, event in entries if isinstance(event, Verified))


def act_of(action: policy.Action) -> Act:
    """A decision as a trace keeps it."""
    match action:
        case policy.Verify(nodes):
            return Act("verify", [node.id for node in nodes])
        case policy.Draft(leaves, width):
            return Act("draft", [leaf.id for leaf in leaves], width)
        case policy.CatchUp(tokens):
            return Act("catch-up", [], tokens)
        case policy.Wait(until):
            return Act("wait", [], until)
