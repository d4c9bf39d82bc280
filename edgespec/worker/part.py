"""What a part brings to the worker, and the seams that it may fill.

`edgespec.parts.PARTS` lists the parts of this program. The command line and the loading of the configuration take that
list. The worker's other files get what they need of it, and name no part.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgespec.shared.command import ConfiguredVerb
from edgespec.shared.part import Lines, Part, Settings, no_lines

if TYPE_CHECKING:  # commands import this file, and start without WebSockets and keys
    from edgespec.core.pairing.messages import Code
    from edgespec.core.protocol.messages import ToWorker
    from edgespec.shared.address import Address, Tunnelled
    from edgespec.shared.control import Handler
    from edgespec.shared.guards import MakeGuards
    from edgespec.shared.keystore import KeyStore
    from edgespec.shared.nearby import Nearby
    from edgespec.shared.paired import PairedGateway
    from edgespec.worker.config import WorkerSettings
    from edgespec.worker.link import TakeExtra
    from edgespec.worker.step_timer import MakeStepTimer
    from edgespec.worker.tokens import MakeTargetTokens


class WorkerVerb(ConfiguredVerb):
    """A verb of `edgespec`."""

    configuration = "worker.toml"


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether the worker may draft now."""

    drafting: bool
    reason: str = ""
    """Why it may not, as the gateway gets it; it says nothing about this machine."""
    because: str = ""
    """Why it may not, for the worker's admin."""
    remedy: str = ""
    """A remedy that the admin has."""
    keeps_model: bool = True
    """Whether the draft model stays in memory."""


MAY_DRAFT = Permission(drafting=True)


class Presence:
    """Decides whether the worker may draft now. This one, the core's, always permits it.

    The service makes one for each part and asks all of them: the worker drafts if each permits it.
    """

    @property
    def permission(self) -> Permission:
        """The present permission. The service reads it on the event loop, at any time."""
        return MAY_DRAFT

    async def run(self) -> None:
        """Looks for changes until it is cancelled. The service starts it once; an error ends the worker."""

    def status(self) -> Mapping[str, object]:
        """Fields that it adds to the worker's status; JSON types."""
        return {}


class MakePresence(Protocol):
    """Makes what decides. The service calls it once, before it links with a gateway."""

    def __call__(self, settings: Settings, changed: Callable[[], None]) -> Presence:
        """`changed` is to be called on the event loop after each change of the permission."""


def always(settings: Settings, changed: Callable[[], None]) -> Presence:
    """A worker that may draft at any time."""
    return Presence()


@dataclass(frozen=True)
class WorkerProcess:
    """The worker as its parts see it, with its model loaded, before it looks for its gateway."""

    settings: WorkerSettings
    state_dir: Path
    gateway_key: Callable[[], bytes]
    """The Ed25519 key that the gateway of this worker has at present; the gateway may rotate it."""
    linked_at: Callable[[], Address | None]
    """The address of the link; None while there is none."""
    guards: MakeGuards
    """Loads what guards a port that a part opens."""
    nearby: Nearby
    """Finds machines of a part's own kind, and announces this one as such."""
    may_draft: Callable[[], bool]
    """Whether it may draft now: neither its admin nor a `Presence` forbids it, and the model is loaded."""


class RunningPart:
    """A part in one worker process, on the event loop. Each method does nothing until a part overrides it."""

    async def start(self) -> None:
        """Called once, before the worker looks for its gateway. Raises AddressError, KeyStoreError."""

    async def ways(self) -> Sequence[Tunnelled]:
        """The present ways to the gateway through other machines, best first. Called before each round of dialling.

        The worker dials direct addresses before them. Raises KeyStoreError.
        """
        return ()

    def handlers(self) -> Mapping[str, Handler]:
        """Handlers of the control socket, by name: those of `WorkerPart.handlers`. Called once."""
        return {}

    def extras(self) -> Mapping[str, TakeExtra]:
        """What takes the gateway's messages `Extra`, by their kinds, which are features of the link. Called once.

        Each is called on the event loop with the data of such a message; RemoteProtocolError ends the link.
        """
        return {}

    def on_request(self, message: ToWorker | None) -> None:
        """A message of the gateway that nobody has checked yet; None: all requests have ended with the link. Called on
        the event loop, before the drafting thread gets it."""

    async def close(self) -> None:
        """The worker stops: its link has ended."""


class StartRunning(Protocol):
    """Makes what a part runs. The service calls it once, when the model is loaded."""

    def __call__(self, worker: WorkerProcess) -> RunningPart:
        """Raises KeyStoreError. It imports what is heavy only if the worker needs it."""


def nothing_beside(worker: WorkerProcess) -> RunningPart:
    """A part without anything of its own in the process that drafts."""
    return RunningPart()


class PairThere(Protocol):
    """Pairs with the gateway that shows a code, at a place that a part finds."""

    def __call__(self, keys: KeyStore, name: str, code: Code) -> Coroutine[Any, Any, PairedGateway]:
        """`name`: this worker's. Raises NoGatewayError, PairingError, KeyStoreError."""


@dataclass(frozen=True, slots=True)
class PairingOption:
    """An option of `edgespec pair`, which then neither dials an address nor searches for a gateway."""

    flag: str
    help: str
    pair: PairThere
    """Called by the verb, once, if the option is given."""


@dataclass(frozen=True, eq=False)
class WorkerPart(Part):
    """A part of the worker; each field is empty if the part has nothing of that kind."""

    presence: MakePresence = always
    target_tokens: MakeTargetTokens | None = None
    """Drafts for targets whose tokenizer is not the draft model's (`edgespec/worker/tokens.py`). The first part that
    has one is asked."""
    timer: MakeStepTimer | None = None
    """Times draft steps while the worker is idle (`edgespec/worker/step_timer.py`)."""
    start: StartRunning = nothing_beside
    handlers: Sequence[str] = ()
    """The names of the control socket's handlers that it brings: while the worker starts, each says that it does."""
    pairing: Sequence[PairingOption] = ()
    report: Callable[[Mapping[str, Any]], Lines] = no_lines
    """The lines of `edgespec status` about the fields that the part adds to a running worker's status.

    A worker that was started by `edgespec run --always` has none of them.
    """
