"""`edgespec replay`: looks at traces that a gateway wrote (docs/traces.md).

Checks who signed a trace, asks its policy everything again, and shows the request round by round. Of the text a trace
holds a pattern only, unless the gateway wrote it with `traces.salt = false`. `edgespec compare` of edgespec-lab tries
other policies on a trace, in the simulator.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.core.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from cloud_gateway.replay.look import Looked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `edgespec replay`."""
    parser.set_defaults(run=run)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="files of a gateway's `traces.folder`")
    parser.add_argument("--key", metavar="KEY", help="refuse traces not signed by this gateway (key id or public key)")
    parser.add_argument(
        "--story", action=argparse.BooleanOptionalAction, help="show every round (default: if one trace is given)"
    )
    parser.add_argument(
        "--html", type=Path, metavar="OUT", help="write the one trace as a page that plays it in any browser, offline"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Returns 0, or 1 if a policy decides otherwise than it did. Raises TraceError, ConfigError."""
    from cloud_gateway.replay import look

    looked = [look.look(path, read(path), options.key) for path in options.traces]
    if options.html:
        _write(options.html, looked)

    if options.json:
        print(json.dumps({"traces": [trace.row() for trace in looked]}, indent=1))
    else:
        _show(looked, options.story)
        if options.html:
            print(f"written: {options.html}, for a browser")
    return int(any(trace.check.differences for trace in looked))


def _write(path: Path, looked: Sequence[Looked]) -> None:
    """Raises ConfigError if there are several traces, no part makes pages, or the file cannot be written."""
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

    from cloud_gateway.replay.look import tell

    console = Console(markup=False)
    for looked_at in looked:
        looked_at.show(console)
        if story or (story is None and len(looked) == 1):
            tell(looked_at.trace, console)


def read(path: Path) -> bytes:
    """The content of a trace's file. Raises TraceError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror or error}).") from None
