"""`edgespec replay`: looks at traces that a gateway wrote (docs/traces.md).

Checks who signed a trace, asks its policy everything again, shows the request round by round, and tries other policies
on it. Of the text a trace holds a pattern only, unless the gateway wrote it with `traces.salt = false`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.core.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from edgespec.lab.replay.look import Looked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `edgespec replay`."""
    parser.set_defaults(run=run)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="files of a gateway's `traces.folder`")
    parser.add_argument("--key", metavar="KEY", help="refuse traces not signed by this gateway (key id or public key)")
    parser.add_argument(
        "--story", action=argparse.BooleanOptionalAction, help="tell every round (default: where one trace is given)"
    )
    several = "; may be given several times"
    parser.add_argument(
        "--html", type=Path, metavar="OUT", help="write the one trace as a page that plays it in any browser, offline"
    )
    parser.add_argument("--policy", action="append", metavar="NAME", help=f"try this policy on the answer{several}")
    parser.add_argument("--phi", action="append", metavar="NATS", help=f"with this phi, or learnt{several}")
    parser.add_argument("--k", action="append", type=int, metavar="TOKENS", help=f"with this k{several}")
    parser.add_argument("--rtt-ms", action="append", type=float, metavar="MS", help=f"at this round trip{several}")
    parser.add_argument("--seed", type=int, default=1, help="what fills the positions that the trace leaves open")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Returns 0, or 1 where a policy decides otherwise than it did. Raises TraceError, ConfigError."""
    from edgespec.lab.replay import look
    from edgespec.lab.replay.compare import compare

    chosen = _policies(options)
    looked = [look.look(path, _read(path), options.key) for path in options.traces]
    if options.html:
        _write(options.html, looked)
    compared = [compare(one, chosen, options.seed) for one in looked] if chosen else []
    if options.json:
        rows = [one.row() for one in looked]
        print(json.dumps({"traces": rows, "compared": [table.row() for table in compared]}, indent=1))
    else:
        _show(looked, options.story)
        if options.html:
            print(f"written: {options.html}, for a browser")
        for table in compared:
            table.show()
    return 1 if any(one.check.differences for one in looked) else 0


def _write(path: Path, looked: Sequence[Looked]) -> None:
    """Raises ConfigError where there are several traces, no part makes pages, or the file cannot be written."""
    from cloud_gateway.parts import all_parts

    if len(looked) > 1:
        raise ConfigError("`--html` shows one trace; name one.")
    pages = [part.page for part in all_parts() if part.page is not None]
    if not pages:
        raise ConfigError("`--html` needs a part of the gateway that makes pages, and this one has none.")
    try:
        path.write_text(pages[0](looked[0].trace), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"`--html {path}` cannot be written ({error.strerror or error}).") from None


def _show(looked: Sequence[Looked], story: bool | None) -> None:
    from rich.console import Console

    from edgespec.lab.replay.look import tell

    console = Console(markup=False)
    for one in looked:
        one.show(console)
        if story or (story is None and len(looked) == 1):
            tell(one.trace, console)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror or error}).") from None


def _policies(options: argparse.Namespace) -> list[dict[str, object]]:
    """Every combination asked for; none where no other policy or parameter is named. Raises ConfigError."""
    from cloud_gateway.core.policies.registry import POLICIES
    from cloud_gateway.core.policies.settings import MAX_K

    asked = (options.policy, options.phi, options.k, options.rtt_ms)
    if not any(asked):
        return []
    for name in options.policy or []:
        if name not in POLICIES:
            raise ConfigError(f"`--policy {name}`: there is no such policy; there are {', '.join(sorted(POLICIES))}.")
    if any(not 1 <= k <= MAX_K for k in options.k or []):
        raise ConfigError(f"`--k` takes whole numbers from 1 to {MAX_K}.")
    if any(not 0 <= rtt <= 60_000 for rtt in options.rtt_ms or []):
        raise ConfigError("`--rtt-ms` takes milliseconds from 0 to 60000.")
    policies, phis, ks, rtts = (values or [None] for values in asked)
    phis = [None if phi is None else _phi(phi) for phi in phis]
    return [
        {"policy": policy, "phi": phi, "k": k, "rtt_ms": rtt}
        for rtt in rtts for policy in policies for k in ks for phi in phis
    ]  # fmt: skip


def _phi(text: str) -> float | str:
    """Nats, or `learnt`. Raises ConfigError."""
    from cloud_gateway.core.policies.settings import PHI

    try:
        if text == "learnt" or float(text) in PHI:
            return text if text == "learnt" else float(text)
    except ValueError:
        pass
    raise ConfigError("`--phi` takes nats from 0 to 100, or learnt.")
