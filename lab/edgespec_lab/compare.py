"""`edgespec compare`: tries policies on a gateway's traces, in the simulator.

The simulated passes and link are those that a trace shows.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.core.errors import ConfigError

if TYPE_CHECKING:
    from cloud_gateway.core.policies.settings import Phi

MAX_RTT_MS = 60_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `edgespec compare`."""
    parser.set_defaults(run=run_command)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="files of a gateway's `traces.folder`")
    several = "; may be given several times"
    parser.add_argument("--policy", action="append", metavar="NAME", help=f"try this policy{several}")
    parser.add_argument("--phi", action="append", metavar="NATS", help=f"with this phi, or learnt{several}")
    parser.add_argument("--k", action="append", type=int, metavar="TOKENS", help=f"with this k{several}")
    parser.add_argument("--rtt-ms", action="append", type=float, metavar="MS", help=f"at this round trip{several}")
    parser.add_argument("--seed", type=int, default=1, help="what fills the positions that the trace leaves open")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_command(options: argparse.Namespace) -> int:
    """Prints a table for each trace. Raises TraceError, ConfigError."""
    from cloud_gateway.parts.request_traces.look import look, read
    from edgespec_lab.choices import gateway_choices
    from edgespec_lab.comparison import compare

    policies = gateway_choices(*(options.policy or ())).policies
    tried = _tried(options)
    compared = [compare(look(path, read(path), None, policies), tried, options.seed) for path in options.traces]

    if options.json:
        print(json.dumps({"compared": [table.row() for table in compared]}, indent=1))
    else:
        for table in compared:
            table.show()
    return 0


def _tried(options: argparse.Namespace) -> list[dict[str, object]]:
    """Every combination of the policies and parameters that are given. Raises ConfigError."""
    from cloud_gateway.core.policies.settings import MAX_K

    if any(not 1 <= k <= MAX_K for k in options.k or ()):
        raise ConfigError(f"`--k` takes whole numbers from 1 to {MAX_K}.")
    if any(not 0 <= rtt_ms <= MAX_RTT_MS for rtt_ms in options.rtt_ms or ()):
        raise ConfigError(f"`--rtt-ms` takes milliseconds from 0 to {MAX_RTT_MS}.")

    # What is not given stays as it was recorded.
    phis: list[Phi | None] = [_phi(text) for text in options.phi or ()]
    combinations = itertools.product(
        options.rtt_ms or [None], options.policy or [None], options.k or [None], phis or [None]
    )
    return [{"policy": policy, "phi": phi, "k": k, "rtt_ms": rtt_ms} for rtt_ms, policy, k, phi in combinations]


def _phi(text: str) -> Phi:
    """Nats, or `learnt`. Raises ConfigError."""
    from cloud_gateway.core.policies.settings import PHI

    if text == "learnt":
        return "learnt"

    try:
        nats = float(text)
    except ValueError:
        nats = -1.0
    if nats not in PHI:
        raise ConfigError("`--phi` takes nats from 0 to 100, or learnt.")

    return nats
