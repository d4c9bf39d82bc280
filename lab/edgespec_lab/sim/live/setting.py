"""What the processes of a live replay must agree on; it travels between them as one JSON file."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import msgspec

from cloud_gateway.core.policies.settings import PolicySettings
from edgespec.core.errors import ConfigError
from edgespec_lab.sim.experiment import Arm, Kind
from edgespec_lab.sim.process import TokenProcess
from edgespec_lab.sim.tokens import Iid, Recorded
from edgespec_lab.sim.world import Curve, Steps

VOCABULARY = 1 << 21
"""Above every token id of either process (process.FILLER)."""


class Setting(msgspec.Struct, frozen=True):
    """Step times, token process and the arm's parameters. Milliseconds by rows, as in sim/configs."""

    verify_ms: dict[int, float]
    draft_ms: dict[int, float]
    tokens: dict[str, Any]
    """Of the synthetic process; unused where `draft` names a recording."""
    draft: str
    """A draft of the shipped recording; "": the synthetic process."""
    length: int
    """Tokens of an answer."""
    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    policy: PolicySettings = PolicySettings(name="colocated")
    rule: str = "algorithm2"
    branching: int = 1
    theta: float = 0.0
    sequences: int = 1
    workers: int = 1
    """Workers that share each answer."""
    worker_ms: dict[int, float] = {}
    """A worker's step; empty: as `draft_ms`."""
    prefill_ms: float = 0.0
    """What reading a prompt takes, however long it is."""

    @property
    def kind(self) -> Kind:
        """Where answers come from."""
        if self.draft:
            return Recorded(self.draft)
        return Iid(**self.tokens)

    @property
    def steps(self) -> Steps:
        """Seconds by rows."""
        verify, draft, worker = (
            Curve({rows: ms / 1000 for rows, ms in curve.items()})
            for curve in (self.verify_ms, self.draft_ms, self.worker_ms or self.draft_ms)
        )
        return Steps(verify, draft, worker, catch_up_s=0.0)  # engines that sleep read for nothing

    @property
    def digest(self) -> bytes:
        """Stands for tokenizer and model in the handshake."""
        return hashlib.sha256(msgspec.json.encode([self.tokens, self.draft, self.length])).digest()

    def process(self, seed: int) -> TokenProcess:
        """One answer."""
        return _made(self.kind, seed, self.length)

    def prompt(self, seed: int) -> list[int]:
        """The prompt by which both engines know which answer is wanted."""
        return [seed, self.process(seed).targets[0]]

    def of_arm(self, arm: Arm, rtt_ms: float, jitter_ms: float) -> Setting:
        """The same engines under another policy, at another round trip.

        The worker receives the prompt half a round trip after the request came. Reading it takes the target as long, so
        that both begin at the same moment, as in the simulator.
        """
        worker = arm.worker
        if worker is None:
            raise ConfigError(f"Policy {arm.policy} uses no worker; `replay-live` measures those that do.")

        return msgspec.structs.replace(
            self,
            rtt_ms=rtt_ms, jitter_ms=jitter_ms, prefill_ms=rtt_ms / 2, policy=arm.settings,
            rule=worker.rule, branching=worker.branching, theta=worker.theta, sequences=worker.sequences,
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """For `read` in another process."""
        path.write_bytes(msgspec.json.encode(self))


@functools.lru_cache(maxsize=256)
def _made(kind: Kind, seed: int, length: int) -> TokenProcess:
    return kind.make(seed, length)


def read(path: Path) -> Setting:
    """What `write` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Setting)
