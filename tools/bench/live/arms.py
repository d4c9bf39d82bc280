"""The arms of the comparison: what each is, and in which order they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edgespec.core.errors import ConfigError
from edgespec_lab.demo.arms import CONTROL, LOCAL, PHI, rotated

T = TypeVar("T")

REMOTE: Mapping[str, Mapping[str, Any]] = {
    "wanspec": {"policy": "wanspec", "phi": PHI},
    "adaptive": {"policy": "adaptive", "prefer": "balanced"},
    "latency-first": {"policy": "adaptive", "prefer": "latency"},
}
PEER = "llama-server"
NGRAM_TYPES = ("simple", "map-k", "map-k4v", "mod", "cache")
"""llama-server's `--spec-type ngram-...`."""
ALONE = "alone"
"""The control of `adaptive`: the same gateway, policy and draft without a worker."""
WIDE = f"{ALONE}, 2 cores"
"""That gateway with a second core in the worker's place."""
FAMILIES = (
    "plain", "colocated", ALONE, "remote", *REMOTE, "ngram", PEER, f"{PEER}-draft", f"{PEER}-ngram",
)  # fmt: skip
"""What `--arms` takes; `remote` is all of REMOTE."""
BASE = "colocated k=2"
"""The papers' reference."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to complete a prompt."""

    name: str
    system: str
    """The process that serves it; a peer's has the arm's own name."""
    cores: int = 1
    """Cores of that process; a worker has a further one."""
    worker: bool = False
    asks: Mapping[str, Any] = field(default_factory=dict)
    """`edgespec` extension of our requests."""
    spec: Sequence[str] = ()
    """A peer's further arguments; DRAFT stands for the draft's file."""

    @property
    def peer(self) -> bool:
        return self.name.startswith(PEER)

    @property
    def shared(self) -> bool:
        """Whether a second core is left, which a neighbour may use."""
        return self.cores == 1 and not self.worker


DRAFT = "{draft}"


def chosen(
    families: Sequence[str], ks: Sequence[int], peer_ks: Sequence[int], types: Sequence[str], cores: Sequence[int]
) -> list[Arm]:
    """The arms of these families in a fixed order, each once."""
    made: dict[str, Arm] = {}
    for family in FAMILIES:
        if family in families:
            made |= {arm.name: arm for arm in _family(family, ks, peer_ks, types, cores)}
    return list(made.values())


def _family(
    family: str, ks: Sequence[int], peer_ks: Sequence[int], types: Sequence[str], cores: Sequence[int]
) -> list[Arm]:
    if family == "remote":
        return [_remote(name) for name in REMOTE]
    if family in REMOTE:
        return [_remote(family)]
    if family == "colocated":
        return [Arm(f"colocated k={k}", "gateway", asks={"policy": "colocated", "k": k}) for k in ks]
    if family == "plain":
        asks = {"policy": "plain"}
        return [Arm("plain", "gateway", asks=asks), Arm("plain, 2 cores", WIDE, cores=2, asks=asks)]
    if family == ALONE:
        return [Arm(ALONE, "gateway", asks=LOCAL[CONTROL]), Arm(WIDE, WIDE, cores=2, asks=LOCAL[CONTROL])]
    if family == "ngram":
        return [Arm("ngram", "ngram")]

    specs = {"": ()} if family == PEER else _draft(peer_ks) if family.endswith("draft") else _ngram(types)
    found = [(f"{PEER}{name}, {_cores(count)}", count, spec) for count in cores for name, spec in specs.items()]
    return [Arm(name, name, count, spec=spec) for name, count, spec in found]


def _remote(name: str) -> Arm:
    return Arm(name, "gateway", worker=True, asks=REMOTE[name])


def _draft(ks: Sequence[int]) -> dict[str, Sequence[str]]:
    base = ("--model-draft", DRAFT, "--spec-type", "draft-simple", "--spec-draft-n-max")
    return {f" draft k={k}": (*base, str(k)) for k in ks}


def _ngram(types: Sequence[str]) -> dict[str, Sequence[str]]:
    return {f" ngram-{name}": ("--spec-type", f"ngram-{name}") for name in types}


def _cores(count: int) -> str:
    if count == 1:
        return "1 core"
    return f"{count} cores"


def turns(arms: Sequence[T], number: int) -> list[T]:
    """The arms in the order of this prompt: each prompt begins with another one, and every other one goes backwards.

    So over two rounds no arm always follows the same other one.
    """
    order = rotated(arms, number)
    if number // max(len(arms), 1) % 2:
        return order[::-1]
    return order


def batches(prompts: Sequence[str], levels: Sequence[int], limit: int) -> list[tuple[int, list[str]]]:
    """For each level of clients, batches of so many different prompts, at least `limit` prompts in all a level.

    No prompt comes twice, at any level. Raises ConfigError where there are too few.
    """
    counts = [(level, -(-limit // level)) for level in levels]
    needed = sum(level * count for level, count in counts)
    if len(set(prompts)) < needed:
        raise ConfigError(
            f"The levels need {needed} different prompts and --prompts has {len(set(prompts))}: "
            "lower --limit or --levels, or name a longer file."
        )

    left = list(dict.fromkeys(prompts))
    made = []
    for level, count in counts:
        for _ in range(count):
            made.append((level, left[:level]))
            del left[:level]

    return made
