"""The seams of the gateway: what a part of it may bring, who calls that, when, and what it may do.

`cloud_gateway/__main__.py` takes the list of parts (`cloud_gateway/parts`) and passes it on: `process/config.py`
composes the settings, and `process/serve.py` starts each part and opens what it brings. A part starts in two steps, as
the gateway does: `Foundation` is there before the models are loaded, `Serving` from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from edgespec.shared.command import ConfiguredVerb
from edgespec.shared.part import Lines, Part, Settings, no_lines

if TYPE_CHECKING:  # commands import this file, and start without HTTP and numpy
    from cloud_gateway.api import ServedModel
    from cloud_gateway.api.admission import KeyAdmission
    from cloud_gateway.api.grammars import GrammarEngine
    from cloud_gateway.api.listener import OwnPort
    from cloud_gateway.api.observer import Observer
    from cloud_gateway.api.parameters import Parameter
    from cloud_gateway.api.routes import Route
    from cloud_gateway.api.service import TextCodec
    from cloud_gateway.auth import KeyRing
    from cloud_gateway.core.limits.rooms import RoomsMaker
    from cloud_gateway.core.policies.registry import PolicyMaker
    from cloud_gateway.core.requests.accounting import Stats
    from cloud_gateway.core.requests.choices import Choices
    from cloud_gateway.core.requests.events import Listener
    from cloud_gateway.core.requests.generation import Generation
    from cloud_gateway.core.requests.request import GenerationRequest
    from cloud_gateway.core.sources.interface import SourceMakers
    from cloud_gateway.core.verify.verification import Method
    from cloud_gateway.engine.exchange import Recording
    from cloud_gateway.engine.queue_work import MakeQueueWork
    from cloud_gateway.links.judge import Judge
    from cloud_gateway.links.link import TokenizerOffer, WorkerInfo
    from cloud_gateway.links.paired import PairedWorkers
    from cloud_gateway.models.drafts import IdlingDraft, MakeLocalDraft
    from cloud_gateway.models.headers import Need
    from cloud_gateway.models.target_model import Target
    from cloud_gateway.models.target_model.load import LoadedModel
    from edgespec.core.protocol.signing import SigningKey
    from edgespec.shared.address import Address
    from edgespec.shared.control import Handler
    from edgespec.shared.vocabfiles import Vocabulary

WorkerChange = Literal["quarantined", "lifted"]
"""A worker was put under quarantine, or released from it."""


class GatewayVerb(ConfiguredVerb):
    """A verb of `cloud-gateway`."""

    configuration = "gateway.toml"


@dataclass(frozen=True)
class LinkIdentity:
    """The link port as workers and their list see it, before it is open."""

    name: str
    spki_hash: bytes
    """Of the port's certificate."""
    paired: PairedWorkers


@dataclass(frozen=True)
class Foundation:
    """The gateway before its models are loaded, as parts see it."""

    settings: Settings
    keys: KeyRing
    signing_key: SigningKey
    """The gateway's identity."""
    state_dir: Path
    link: LinkIdentity


@dataclass(frozen=True)
class Serving:
    """The gateway whose models are loaded, right before its engine starts."""

    model: ServedModel
    text: TextCodec
    worker_rows: Callable[[], Sequence[dict[str, object]]]
    """All paired workers, as `cloud-gateway workers list` shows them."""


class EngineTotals(Protocol):
    """Figures of the engine; each may be read at any time, on any thread."""

    @property
    def stats(self) -> Stats: ...
    @property
    def queued(self) -> int: ...
    @property
    def active(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a part, such as a metric."""

    name: str
    """Words in lower case with `_`, the unit last; a part that shows it puts a prefix before."""
    help: str
    kind: Literal["counter", "gauge"]
    """A counter only rises while the process lives."""
    value: float


@dataclass(frozen=True)
class Operating:
    """The gateway whose engine runs and whose link port is open."""

    engine: EngineTotals
    workers: Callable[[], Iterable[WorkerInfo]]
    """The linked ones."""
    quarantined: Callable[[], int]
    """How many workers are quarantined."""
    traffic: Mapping[str, float]
    """Bytes of messages on the links, `sent` and `received`."""
    figures: Callable[[], Iterable[Figure]]
    """Returns those of all parts (`Running.figures`)."""


class PromptBook(Protocol):
    """Notes which workers are sent the prompts of requests."""

    def assigned(self, request: GenerationRequest, worker: str, name: str) -> None:
        """The prompt is sent to a worker, by its key id and name."""

    def released(self, request: GenerationRequest, worker: str, name: str, reason: str, frames: int) -> None:
        """Nothing more of the request is sent to the worker. `reason`: as of `events.Released`; `frames`: those of the
        worker that brought candidates.
        """


class Running:
    """A part in one gateway process, on the event loop. Each method does nothing until a part overrides it."""

    def routes(self) -> Sequence[Route]:
        """Routes of the chat API. Called once, before its port is opened; they are public or need a key."""
        return ()

    def ports(self) -> Sequence[OwnPort]:
        """Further ports. Called once, before any port is opened; they open with the API's and close after it."""
        return ()

    def observer(self) -> Observer | None:
        """Gets responses and completions of the API. Called once, before its port is opened."""
        return None

    def admission(self) -> KeyAdmission | None:
        """Says which requests of an API key may compute. Called once, before the API's port is opened."""
        return None

    def frame_refused(self, reason: str) -> None:
        """A frame of a worker was refused, and its link ends. Called on the event loop.

        `reason`: that of RemoteProtocolError, which a worker can choose.
        """

    def operates(self, gateway: Operating) -> None:
        """Called once, on the event loop, when engine and links run and before requests are accepted."""

    def figures(self) -> Iterable[Figure]:
        """Numbers of the part as they are now. Called on the event loop by a part that shows them, at any time after
        `operates`; it may not wait for anything.
        """
        return ()

    def handlers(self) -> Mapping[str, Handler]:
        """Handlers of the control socket, by name. Called once, before the socket is opened."""
        return {}

    def worker_changed(self, change: WorkerChange, worker: str, name: str, why: str) -> None:
        """Called on the event loop after each change. `worker`: key id; `why`: empty if it was lifted."""

    def recording(self, serving: Serving) -> Recording | None:
        """What listens to requests; None if nothing does.

        Called once, when the models are loaded; not if another program's engine serves the requests, as vLLM's.

        A listener is given each event and its effects on the engine's thread. It may not block or change them, and it
        is dropped from a request if it fails.
        """
        return None

    def sources(self, serving: Serving) -> SourceMakers:
        """Makers of the sources of candidates that the part names (`GatewayPart.sources`), by these names.

        Called once, when the models are loaded, after `recording`. A maker may use what the part keeps for the whole
        process: it is called for each request, and what a listener of `recording` stored is there by then. Both
        `SourceStart.scope` and `GenerationRequest.cache_scope` say for which API key.
        """
        return {}

    def default_sources(self) -> Sequence[str]:
        """Those of its sources that each completion has beside `policy.sources`, if its request names none.

        Called once, after `sources`. They serve policies with `Policy.uses_sources`.
        """
        return ()

    def queue_work(self, serving: Serving) -> MakeQueueWork | None:
        """Makes work on requests that wait for a slot. Called once, when the models are loaded; None if there is none.

        The engine has that of the first part which brings some.
        """
        return None

    def link_opened(self, address: Address) -> frozenset[str]:
        """The link port is open at this address of this machine. Called once, right before the API serves.

        Returns groups of workers that each request may use, whatever its API key allows. Raises KeyStoreError.
        """
        return frozenset()

    def book(self) -> PromptBook | None:
        """Called once by an engine without `Generation`, such as edgespec-vllm's, in the place of `recording`."""
        return None

    async def close(self) -> None:
        """The gateway stops: the engine has ended."""


class StartPart(Protocol):
    """Makes what a part runs. `serve` calls it once for each part of the list, before any port is opened."""

    def __call__(self, gateway: Foundation) -> Running:
        """Raises ConfigError, KeyStoreError. It imports what is heavy only if the settings ask for it."""


class Parameters(Protocol):
    """Loads a part's parameters of requests. `serve` calls it once, before the API opens."""

    def __call__(self) -> Sequence[Parameter]:
        """Parameters of the endpoints that complete."""


def no_parameters() -> Sequence[Parameter]:
    """A part that serves no parameter."""
    return ()


def nothing_runs(gateway: Foundation) -> Running:
    """A part without anything of its own in the process that serves."""
    return Running()


def no_draft_beside(settings: Settings) -> int:
    """A part that has the local draft serve no further requests."""
    return 0


class DraftMaker(Protocol):
    """Makes the local draft for a value of `local_draft.model` that names no file. `process/loading.py` calls it."""

    def check(self, engine: str) -> None:
        """Called before any model is loaded. Raises ModelError if a target in this engine cannot have the draft."""

    def make(self, target: Target, settings: Settings, requests: int) -> IdlingDraft:
        """Called once, in a thread, when the target is loaded. Raises ModelError.

        `requests`: how many requests the draft serves at once.
        """


class StateSources(Protocol):
    """Loads what computes with the target's states beside it, for sources that the part names. `process/` calls it."""

    def check(self, engine: str, settings: Settings) -> None:
        """Called before any model is loaded. Raises ModelError if a target in this engine does not show its states."""

    def need(self, settings: Settings) -> Need:
        """Memory that it takes beside the target's, for weights and for each token. Raises ModelError."""

    def load(self, target: Target, digest: bytes, settings: Settings) -> SourceMakers:
        """Called once, in a thread, when the target is loaded: a maker for each of these sources. Raises ModelError.

        `digest`: of the target's files. The sources that it makes are a `StateSource` each.
        """


class JudgeMaker(Protocol):
    """Makes what judges the workers of one process. `serve` and `link` call it once, before the link port opens."""

    def __call__(self, settings: Settings) -> Judge:
        """It imports what is heavy."""


@dataclass(frozen=True)
class Place:
    """Where a target is held."""

    on_gpu: bool = False
    free: int | None = None
    """Bytes that are free on the GPU; None if only the engine's library can tell."""


class TargetEngine(Protocol):
    """Computes targets; its name is a value of `target.engine`. `process/targets.py` calls it."""

    packages: Sequence[str]
    """Modules that it imports. `serve` looks for them first, and names the distribution if one is missing."""

    def suits(self, model: Path, settings: Settings) -> bool:
        """Whether `target.engine = "auto"` takes this engine for a model. The first one of the list is taken."""

    def check(self, model: Path, settings: Settings) -> None:
        """Called before any model is loaded. It reads headers only. Raises ModelError, ConfigError."""

    def vocabulary(self, model: Path) -> Vocabulary:
        """The tokenizer, which drafts must have too. Called before any model is loaded. Raises ModelError."""

    def need(self, model: Path, settings: Settings) -> Need:
        """Memory that the target takes. Raises ModelError."""

    def place(self, settings: Settings) -> Place:
        """Where the target takes that memory."""

    def load(self, model: Path, settings: Settings, kv_tokens: int) -> LoadedModel:
        """Called once, in a thread. Raises ModelError, LibraryError.

        `kv_tokens`: entries of the KV cache for all slots together.
        """


class OtherTokenizers(Protocol):
    """Lets drafts draft for a target with another tokenizer. `process/` asks that of the first part that has one."""

    def draft_class(
        self,
        target: Path,
        draft: Path,
    ) -> MakeLocalDraft:
        """Called before any model is loaded, as a check, and for the load of a local draft; both tokenizers differ.

        Raises ModelError if it cannot be; the text ends a sentence.
        """

    def describe(self, target: Path, draft: Path) -> str:
        """Called by `models check` for two GGUF files: how the draft writes the target's tokens. Raises ModelError."""

    def offer(self, target: Path) -> TokenizerOffer:
        """Called when the target is loaded: the tokenizer that workers may fetch. Raises ModelError."""


@dataclass(frozen=True, slots=True)
class PastRequest:
    """A request that has ended, as a file of a part holds it: what listens to requests can listen to it again."""

    made_at: int
    """Unix seconds when the request came."""
    policy: str
    """The name of the policy that decided."""
    salted: bool
    """Its tokens are numbered by first appearance, so that they are none of a model."""
    play: Callable[[Callable[[Generation], Listener]], None]
    """Makes a listener of the request and calls it for all that happened. Raises EdgespecError if it cannot be so."""


class ReadPast(Protocol):
    """Reads a file that holds a request. A part that shows requests calls it with such a file."""

    def __call__(self, data: bytes, parts: Sequence[GatewayPart]) -> PastRequest:
        """`parts`: all of the gateway, whose policies may have decided. Raises EdgespecError if it holds none."""


class PastPage(Protocol):
    """Shows a past request in a browser, without a gateway. A part that reads such requests calls it."""

    def __call__(self, request: PastRequest) -> str:
        """The text of an HTML file that needs no other. Raises EdgespecError."""


@dataclass(frozen=True, slots=True)
class PortSetting:
    """The setting `port` of a part's table, and its option of `cloud-gateway serve`, `--TABLE-port`."""

    table: str
    help: str


@dataclass(frozen=True, eq=False)
class GatewayPart(Part):
    """A part of the gateway; each field is empty if the part has nothing of that kind."""

    start: StartPart = nothing_runs
    methods: Mapping[str, Callable[[], Method]] = field(default_factory=dict)
    """Further methods of verification: `policy.verification` -> what loads it. `serve` calls each once, before the API
    opens, and gives the results to the engine and the API."""
    policies: Mapping[str, Callable[[], PolicyMaker]] = field(default_factory=dict)
    """Further policies: `policy.name` -> what loads its maker. Each is called once, before the API opens; so is it by
    what plays a trace or simulates."""
    sources: Sequence[str] = field(default_factory=tuple)
    """Further sources of candidates, by the names that `policy.sources` and requests give them. `Running.sources` or
    `state_sources` makes them; the names stand here because a configuration is checked before anything runs."""
    state_sources: StateSources | None = None
    """Makes those of `sources` that compute with the target's states."""
    rooms: RoomsMaker | None = None
    """Decides which requests have room in the KV cache, and which are preempted; that of the first part is used."""
    parameters: Parameters = no_parameters
    """Parameters of requests, and what they change in a completion and its response."""
    grammars: GrammarEngine | None = None
    """The compiler of grammars, which give completions a form; that of the first part which has one is used."""
    read_past: ReadPast | None = None
    """Reads files that hold requests; that of the first part which has one is used."""
    page: PastPage | None = None
    """Such a request as a page for a browser; that of the first part which has one is used."""
    drafts: Mapping[str, DraftMaker] = field(default_factory=dict)
    """Local drafts that are no model files, by the value of `local_draft.model`."""
    drafted_beside: Callable[[Settings], int] = no_draft_beside
    """How many requests it has the local draft serve at once beside those in slots (`Running.queue_work`). Called by
    `process/targets.py`, before the draft is loaded with room for them."""
    judge: JudgeMaker | None = None
    """May end a worker's link and refuse its next ones, by what the worker did."""
    engines: Mapping[str, TargetEngine] = field(default_factory=dict)
    """Further engines of the target, by the value of `target.engine`."""
    ports: Sequence[PortSetting] = ()
    """Settings of the ports that it opens (`Running.ports`). `process/config.py` refuses a number that is set twice."""
    report: Callable[[Mapping[str, Any]], Lines] = no_lines
    """The part's lines of `cloud-gateway status`, made of the status of a running gateway."""
    other_tokenizers: OtherTokenizers | None = None
    own_engine_only: Sequence[str] = ()
    """Settings, dotted, that have no effect if the target is another engine (edgespec-vllm); it refuses them."""


def choices_of(parts: Sequence[GatewayPart]) -> Choices:
    """What can be chosen by name: of the core and of these parts. Called once by each command that serves, plays past
    requests or simulates."""
    from cloud_gateway.core.policies.registry import POLICIES
    from cloud_gateway.core.policies.settings import SOURCES
    from cloud_gateway.core.requests.choices import Choices
    from cloud_gateway.core.verify.verification import BUILT_IN

    policies = dict(POLICIES)
    sources = list(SOURCES)
    methods = dict(BUILT_IN)
    for part in parts:
        sources += part.sources
        for name, load_policy in part.policies.items():
            policies[name] = load_policy()
        for name, load_method in part.methods.items():
            methods[name] = load_method()
    return Choices(policies, tuple(sources), methods)
