"""One trace: who signed it, and whether its policy still decides what it decided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from cloud_gateway.core.policies.registry import Policies
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces import play as replay
from cloud_gateway.parts.request_traces.format import TraceError
from edgespec.core.errors import ConfigError
from edgespec.core.protocol.names import key_id
from edgespec.parts.request_traces.gateways import name_of
from edgespec.shared.log_text import clean

SHOWN = 5
"""Differences that are printed."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A trace that was signed and played."""

    path: Path
    trace: trace.Trace
    signer: bytes
    gateway: str | None
    """Its name, if this machine's worker is paired with it."""
    as_asked: bool
    """Whether `--key` names the signer."""
    check: replay.Check
    policies: Policies
    """Those with which it was played."""

    @property
    def rounds(self) -> int:
        """Passes of the target."""
        return sum(isinstance(event, trace.Verified) for _, event in self.trace.entries)

    def row(self) -> dict[str, Any]:
        header = self.trace.header
        return {
            "file": str(self.path),
            "signed_by": key_id(self.signer),
            "gateway": self.gateway,
            **{name: getattr(header, name) for name in ("edgespec", "request", "made_at")},
            "policy": header.settings.name,
            "settings": msgspec.structs.asdict(header.settings),
            **{name: getattr(header, name) for name in ("prompt_len", "salted", "workers", "finish", "complete")},
            "tokens": trace.emitted(self.trace.entries),
            "rounds": self.rounds,
            "decisions": self.check.decisions,
            "same": self.check.decisions - len(self.check.differences),
            "differences": [msgspec.to_builtins(one) for one in self.check.differences],
        }

    def show(self, console: Console) -> None:
        """Prints a few lines. No text of the trace is read as markup."""
        header = self.trace.header
        differences = self.check.differences
        policy = self.trace.header.settings
        console.print(
            Text.assemble((clean(str(self.path)), "bold"), f": signed by {self._who()}, unaltered\n"),
            f" request {header.request}, edgespec {header.edgespec}, policy {policy.name} (k = {policy.k}, "
            f"phi = {policy.phi}): {trace.emitted(self.trace.entries)} tokens after {header.prompt_len} "
            f"in {self.rounds} passes, {_finish(header)}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        asked = self.check.decisions
        if not differences:
            lines = [Text(f"  {asked} of {asked} decisions the same, bit for bit", "green")]
        else:
            lines = [Text(f"  {len(differences)} of {asked} decisions are not the recorded ones:", "red")]
            lines += [Text(f"    {describe(one)}") for one in differences[:SHOWN]]
            lines += [Text(f"    and {len(differences) - SHOWN} more")] * (len(differences) > SHOWN)
        console.print(*lines, sep="\n", highlight=False, soft_wrap=True)

    def _who(self) -> str:
        if self.gateway:
            return f"{self.gateway} ({key_id(self.signer)})"
        return f"{'gateway' if self.as_asked else 'an unknown key,'} {key_id(self.signer)}"


def read(path: Path) -> bytes:
    """The content of a trace's file. Raises TraceError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror or error}).") from None


def look(path: Path, data: bytes, key: str | None, policies: Policies) -> Looked:
    """Checks a file's signature and plays it with these policies.

    Raises TraceError with the file's name, ConfigError for a bad `key`.
    """
    try:
        recorded, signer = trace.unseal(data)
        if key is not None and not _means(key, signer):
            raise TraceError(f"it was signed by gateway {key_id(signer)}, not by {key}.")
        checked = replay.check(recorded, policies)
        return Looked(path, recorded, signer, name_of(signer), key is not None, checked, policies)
    except TraceError as error:
        raise TraceError(clean(f"{path}: {error}")) from None


def _means(key: str, signer: bytes) -> bool:
    """Whether `key` is the signer's key id or public key."""
    text = key.lower()
    if len(text) not in (16, 64) or any(digit not in "0123456789abcdef" for digit in text):
        raise ConfigError(f"`--key {key}`: write a key id (16 hexadecimal digits) or a public key (64).")
    return text in (key_id(signer), signer.hex())


def describe(difference: replay.Difference) -> str:
    """One line: what was decided, and what would be now."""
    then = spell(difference.then_act)
    now = spell(difference.now_act)
    return f"decision {difference.number} at {difference.now:.6f} s: was {then}, is {now}"


def spell(act: trace.Act | None) -> str:
    """A decision in words; nodes by their ids."""
    match act:
        case trace.Act("verify", nodes):
            if nodes:
                return f"verify {nodes}"
            return "a plain decoding step"
        case trace.Act("draft", leaves, width):
            return f"draft at {leaves}, {width} wide"
        case trace.Act("wait", _, until):
            return f"wait until {until!r}"
        case _:
            if act:
                return "catch up"
            return "nothing"


def _finish(header: trace.Header) -> str:
    end = f"ended by {header.finish}"
    if header.complete:
        return end
    return f"{end}; the trace was full before"
