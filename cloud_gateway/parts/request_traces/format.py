"""A trace: what one request's state machine was given and what its policy decided, each with its time (docs/traces.md).

    file    =  MAGIC ‖ public key(32) ‖ signature(64) ‖ zlib(msgpack(Trace))
    signed  =  b"edgespec/1 trace\\0" + public key + everything after the signature

An event is the machine's own (core/requests/events.py), in the order in which they happened: the same machine, given
the same again, decides the same. Those that hold nodes, rows or a prefix have a form of their own here, as have
decisions. Nodes are named by their ids. Times are seconds of the gateway's monotonic clock, kept to the last bit,
because sums of them are compared.

`InputLog` listens at the machine's boundary (`events.Listener`) and writes it down as it happens.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from cloud_gateway.core.policies import policy
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.policy import Costs, LinkView
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.events import Admitted, Ended, Failed, Preempted, Read, WorkerChanged
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.sources.interface import Suggestion
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import UNDECODABLE, EdgespecError, RemoteProtocolError
from edgespec.core.protocol.messages import Text
from edgespec.core.protocol.signing import SIGNATURE_BYTES, SigningKey, check_public_key, verify

FAMILY = b"edgespec-trace/"
MAGIC = FAMILY + b"3\n"
KIND = "trace"
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


class InputLog(events.Listener):
    """One request's entries, up to a limit; the rest of the request goes unrecorded."""

    def __init__(
        self,
        generation: Generation,
        settings: PolicySettings,
        curve: StepCurve,
        made_at: int,
        limit_bytes: int,
        ended: Callable[[InputLog, str], None] = lambda log, finish: None,
        *,
        salt: bool = True,
    ) -> None:
        """`curve`: the one behind `Costs.verify_s`; `made_at`: Unix seconds; `ended` is called with the finish. `salt`:
        tokens are written as numbers in the order of their appearance, which no key could undo."""
        self.generation = generation
        self.settings = settings
        self.made_at = made_at
        self._policy_state = generation.policy.carried
        self._offload = generation.assignments.allowed
        self.entries: list[Entry] = []
        self.complete = True
        self.decisions = 0
        self._left = limit_bytes
        self._ended = ended
        self._numbers: dict[int, int] | None = {} if salt else None
        self._workers: dict[str, None] = {}
        self._now = 0.0
        self._curve = curve
        self._samples = -1
        self._points = dict[int, float]()

    # --- the machine's boundary ----------------------------------------------------------------------------------

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        """The machine took an event in. What changes nothing is not written."""
        self._now = now
        if (written := self._written(event, effects)) is not None:
            self._add(written)
        for effect in effects:
            if isinstance(effect, events.Finished):
                self._ended(self, effect.finish)

    def decided(self, link: policy.LinkView | None, costs: policy.Costs, now: float, action: policy.Action) -> None:
        """The policy was asked; what is new of the target's curve is written too."""
        self._now = now
        new: dict[int, float] = {}
        if self._curve.samples != self._samples:
            before = self._points
            self._samples = self._curve.samples
            self._points = self._curve.points()
            new = {rows: seconds for rows, seconds in self._points.items() if before.get(rows) != seconds}

        self._add(Decided(link, costs, new, len(self.generation.tree.tree), act_of(action)))
        self.decisions += 1

    def suggested(self, source: str, suggestions: Sequence[Suggestion], proposed: int, why: str | None) -> None:
        """A source without a draft model put candidates into the tree."""
        if not suggestions:
            return
        tokens = self._named([one.token for one in suggestions])
        parents = [one.parent for one in suggestions]
        chances = [one.chance for one in suggestions]
        self._add(Suggested(source, parents, tokens, chances))

    def guided(self, nodes: Sequence[Node], chosen: Sequence[Node]) -> None:
        """The completion's constraint made these candidates of those."""
        given = set(nodes)
        kept = set(chosen)
        left_out = [node.id for node in nodes if node not in kept]
        forced = self._named([node.token for node in chosen if node not in given])
        if left_out or forced:
            self._add(Guided(left_out, forced))

    def as_trace(self, version: str, finish: str) -> Trace:
        """What was written, as a trace; `version` of edgespec."""
        request = self.generation.request
        bounds = self.generation.bounds
        numbers = self._numbers
        eos = frozenset[int]() if request.ignore_eos else bounds.eos
        header = Header(
            version, self.made_at, self.generation.id, self.settings, len(request.tokens),
            request.max_tokens, bounds.context, self._offload, numbers is not None,
            sorted(eos if numbers is None else (numbers[token] for token in eos & numbers.keys())),
            list(self._workers), finish, self.complete, self._policy_state,
        )  # fmt: skip
        return Trace(header, self.entries)

    # --- entries -------------------------------------------------------------------------------------------------

    def _add(self, event: AnyEvent) -> None:
        entry = self._now, event
        self._left -= len(encode(entry))
        self.complete = self.complete and self._left >= 0 and len(self.entries) < MAX_EVENTS
        if self.complete:
            self.entries.append(entry)

    def _named(self, tokens: Sequence[int]) -> list[int]:
        """The tokens as they are written."""
        numbers = self._numbers
        if numbers is None:
            return list(tokens)
        return [numbers.setdefault(token, len(numbers) + 1) for token in tokens]

    def _written(self, event: events.Event, effects: Sequence[events.Effect]) -> AnyEvent | None:
        """The event as a trace has it: without texts, nodes and hashes. None where it changes nothing."""
        match event:
            case events.FrameArrived(worker, frame):
                given = self.generation.assignments.given.get(worker)
                taken = effects[0]
                if given is None or given.epoch != frame.epoch:
                    return None
                on_path = isinstance(taken, events.FrameTaken) and not taken.unknown_prefix
                tokens = self._named(frame.tokens)
                return Frame(
                    worker, frame.prefix_len, on_path, frame.first, frame.parents, tokens, frame.costs, frame.entropies
                )
            case events.Verified(_, rows):
                chosen = next((effect for effect in effects if isinstance(effect, events.Chosen)), None)
                if chosen is None:  # the constraint left no token
                    return events.Ended("error")
                entropies = [rows.entropy(row) for row in chosen.rows]
                tokens = self._named(chosen.tokens)
                return Verified(tokens, entropies, self._named([node.token for node in self.generation.forced]))
            case events.Drafted(leaves, proposals):
                found = [(self._named(one.tokens), list(one.costs), one.entropy) for one in proposals]
                return Drafted([leaf.id for leaf in leaves], found)
            case events.WorkerChanged(worker, why):
                if not effects:  # it is not about its worker
                    return None
                if why in ("assigned", "beside"):
                    self._workers[worker] = None
                return events.WorkerChanged(worker, why)
            case events.Failed(scope):
                return events.Failed(scope, "")
            case events.Ended(why):
                return events.Ended(why)
            case _:
                return event


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
