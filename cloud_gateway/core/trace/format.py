"""Traces: everything that one request's controller saw and decided, as a signed file (docs/traces.md).

    file    =  MAGIC ‖ public key(32) ‖ signature(64) ‖ zlib(msgpack(Trace))
    signed  =  b"edgespec/1 trace\\0" + public key + everything after the signature

An event is one call of the candidate tree or of the controller, in the order in which they happened: making the
same calls again gives the same tree and the same decisions. Times are the gateway's monotonic clock, kept to the
last bit, because sums of them are compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from cloud_gateway.core.policies.actions import MAX_REMAINING
from cloud_gateway.core.policies.settings import PolicySettings
from edgespec.core.errors import RemoteProtocolError, TraceError
from edgespec.core.protocol.signing import SIGNATURE_BYTES, SigningKey, check_public_key, verify

MAGIC = b"edgespec-trace/1\n"
KIND = "trace"
KEY_BYTES = 32
MAX_BYTES = 64 * 1024 * 1024
"""Of a trace's content; a longer one is not unpacked."""


# --- what the controller decided -------------------------------------------------------------------------------


class Act(Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """Base of the decisions as a trace keeps them: nodes by their ids."""


class Verified(Act, tag="verify", frozen=True):
    """A pass of the target over these candidates; with none a plain step."""

    nodes: list[int]


class Drafted(Act, tag="draft", frozen=True):
    """A pass of the local draft over these leaves, up to `width` children each."""

    leaves: list[int]
    width: int


class CaughtUp(Act, tag="catch-up", frozen=True):
    """A batch of the local draft's catch-up; `tokens`: most to read, 0 for a full batch."""

    tokens: int = 0


class Waited(Act, tag="wait", frozen=True):
    """Nothing before `until`, unless a frame arrives."""

    until: float


AnyAct = Verified | Drafted | CaughtUp | Waited


# --- what happened ---------------------------------------------------------------------------------------------


class Event(Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """Base of the events."""


class Frame(Event, tag="frame", frozen=True):
    """A worker's frame is merged; `on_path`: its prefix hash was that of a committed prefix. Costs in millinats."""

    worker: int
    """Index into the header's `workers`."""
    epoch: int
    prefix_len: int
    on_path: bool
    first: int
    parents: list[int]
    tokens: list[int]
    costs: list[int]
    entropies: list[int]


class Received(Event, tag="received", frozen=True):
    """The controller received the frame before."""

    now: float


class Local(Event, tag="local", frozen=True):
    """A candidate of the local draft under the node `leaf`. Nats."""

    leaf: int
    token: int
    cost: float
    entropy: float


class Committed(Event, tag="committed", frozen=True):
    """The target chose these tokens; the entropies (nats) are those of its distributions for them."""

    tokens: list[int]
    entropies: list[float]


class RoundEnded(Event, tag="told", frozen=True):
    """The controller received the outcome of a pass (`Outcome`)."""

    now: float
    depth: int
    at_leaf: bool


class Forgotten(Event, tag="forgotten", frozen=True):
    """The request was taken from its worker: the epoch's numbering ends."""

    epoch: int


class Discarded(Event, tag="discarded", frozen=True):
    """The worker is gone: its candidates are dropped."""

    worker: int


class PassCosts(Event, tag="pass-costs", frozen=True):
    """Points of the target's cost curve that are new: rows -> seconds."""

    points: dict[int, float]


class DraftCosts(Event, tag="draft-costs", frozen=True):
    """What the local draft costs from here on; `step_s` None: there is none."""

    step_s: float | None
    backlog_s: float
    batch_s: float
    leaves: int
    points: tuple[tuple[int, float], ...] = ()
    token_s: float = 0.0
    other_rows: int = 0
    remaining: int = MAX_REMAINING


class Link(Event, tag="link", frozen=True):
    """The worker that drafts, as the controller sees it from here on."""

    rtt_s: float
    rtt_high_s: float
    step_s: float
    ready: bool
    points: tuple[tuple[int, float], ...] = ()


class Unlinked(Event, tag="unlinked", frozen=True):
    """No worker drafts from here on."""


class Decided(Event, tag="decided", frozen=True):
    """The controller was asked. `size`: candidates in the tree, which distinguishes a rebuilt tree."""

    now: float
    size: int
    act: AnyAct


Inside = Local | Committed | Forgotten | Discarded
"""What changes the tree, besides frames."""
Seen = PassCosts | DraftCosts | Link | Unlinked
"""What the controller can see besides the tree."""
AnyEvent = Frame | Received | RoundEnded | Decided | Inside | Seen


class Header(Struct, forbid_unknown_fields=True, frozen=True):
    """What is known of the request as a whole."""

    edgespec: str
    """Version that made the trace."""
    made_at: int
    """Unix seconds when the request came."""
    request: int
    policy: str
    settings: PolicySettings
    prompt_len: int
    salted: bool
    """Token ids are replaced by numbers in the order of their first appearance."""
    workers: list[str]
    """Key ids of the workers that sent frames."""
    finish: str
    complete: bool
    """False where the trace reached its limit, so that the end of the answer is missing."""


class Trace(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One request."""

    header: Header
    events: list[AnyEvent]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Trace).decode


def seal(trace: Trace, key: SigningKey) -> bytes:
    """The trace as a signed file."""
    body = zlib.compress(_encode(trace), 9)
    return b"".join((MAGIC, key.public, key.sign(KIND, key.public + body), body))


def unseal(data: bytes) -> tuple[Trace, bytes]:
    """A file's trace, and the public key that signed it. Raises TraceError for anything but what `seal` made."""
    start = len(MAGIC) + KEY_BYTES + SIGNATURE_BYTES
    if not data.startswith(MAGIC) or len(data) <= start:
        raise TraceError("it is no trace of edgespec, or its first bytes were altered.")
    public, body = data[len(MAGIC) : len(MAGIC) + KEY_BYTES], data[start:]
    try:
        check_public_key(public)
        verify(public, KIND, public + body, data[len(MAGIC) + KEY_BYTES : start])
    except RemoteProtocolError:
        raise TraceError("it was altered after the gateway signed it; its signature does not verify.") from None
    try:
        return _decode(_unpack(body)), public
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"its content cannot be read ({error}); another version of edgespec made it.") from None


def _unpack(body: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(body, MAX_BYTES)
    if unpacker.unconsumed_tail:
        raise zlib.error(f"more than {MAX_BYTES} bytes")
    return content


def salted(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """The events with every token id replaced by the number of its first appearance.

    Equal tokens stay equal, so that trees and decisions do too. There is no key that could undo it.
    """
    numbers: dict[int, int] = {}

    def number(token: int) -> int:
        return numbers.setdefault(token, len(numbers) + 1)

    return [_renamed(event, number) for event in events]


def _renamed(event: AnyEvent, name: Callable[[int], int]) -> AnyEvent:
    if isinstance(event, Frame | Committed):
        return msgspec.structs.replace(event, tokens=[name(token) for token in event.tokens])
    if isinstance(event, Local):
        return msgspec.structs.replace(event, token=name(event.token))
    return event


def emitted(events: Sequence[AnyEvent]) -> int:
    """Tokens of the answer that a trace holds."""
    return sum(len(event.tokens) for event in events if isinstance(event, Committed))
