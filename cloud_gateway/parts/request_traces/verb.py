"""`cloud-gateway replay`: looks at traces that a gateway wrote (docs/traces.md).

Checks who signed a trace, asks its policy everything again, and shows the request round by round. Of the text a trace
holds a pattern only, unless the gateway wrote it with `traces.salt = false`. `edgespec compare` of edgespec-lab tries
other policies on a trace, in the simulator.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, BooleanOptionalAction, Namespace, _SubParsersAction
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart, choices_of
from edgespec.core.errors import ConfigError

if TYPE_CHECKING:
    from cloud_gateway.parts.request_traces.look import Looked


class ReplayVerb:
    """The verb `replay`, which reads no configuration: traces are looked at on any machine."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds the verb to the command line."""
        text = "look at traces of a gateway: who signed, and what was decided"
        parser = verbs.add_parser("replay", help=text, description=__doc__)
        parser.set_defaults(run=replay)
        parser.add_argument(
            "traces", nargs="+", type=Path, metavar="TRACE", help="files of a gateway's `traces.folder`"
        )
        parser.add_argument(
            "--key", metavar="KEY", help="refuse traces not signed by this gateway (key id or public key)"
        )
        parser.add_argument(
            "--story", action=BooleanOptionalAction, help="show every round (default: if one trace is given)"
        )
        parser.add_argument(
            "--html",
            type=Path,
            metavar="OUT",
            help="write the one trace as a page that plays it in any browser, offline",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")


def replay(options: Namespace) -> int:
    """Returns 0, or 1 if a policy decides otherwise than it did. Raises TraceError, ConfigError."""
    from cloud_gateway.parts.request_traces.look import look, read

    policies = choices_of(options.parts).policies
    looked = [look(path, read(path), options.key, policies) for path in options.traces]
    if options.html:
        _write(options.html, looked, options.parts)

    if options.json:
        print(json.dumps({"traces": [trace.row() for trace in looked]}, indent=1))
    else:
        _show(looked, options.story)
        if options.html:
            print(f"written: {options.html}, for a browser")
    return int(any(trace.check.differences for trace in looked))


def _write(path: Path, looked: Sequence[Looked], parts: Sequence[GatewayPart]) -> None:
    """Raises ConfigError if there are several traces, no part makes pages, or the file cannot be written."""
    from cloud_gateway.parts.request_traces.play import past

    if len(looked) > 1:
        raise ConfigError("`--html` shows one trace; name one.")

    pages = [part.page for part in parts if part.page is not None]
    if not pages:
        raise ConfigError("`--html` needs a part of the gateway that makes pages, and this one has none.")

    try:
        path.write_text(pages[0](past(looked[0].trace, looked[0].policies)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"`--html {path}` cannot be written ({error.strerror or error}).") from None


def _show(looked: Sequence[Looked], story: bool | None) -> None:
    from rich.console import Console

    from cloud_gateway.parts.request_traces.story import tell

    console = Console(markup=False)
    for looked_at in looked:
        looked_at.show(console)
        if story or (story is None and len(looked) == 1):
            tell(looked_at, console)
