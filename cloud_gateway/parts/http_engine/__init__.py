"""Targets that a server computes which nobody has changed: `target.engine = "http"`, `target.url`.

`engine` fills the seam of targets, `target` does what they do by the server's stream and by calls, `stream` reads the
one, and `server` makes both. `dialects` has the bodies, `draws` the method of verification that follows the server's
tokens, `tokens` the tokenizer that server and gateway must share. `attach` is the verb that tries a
server (docs/http.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart
from cloud_gateway.parts.http_engine.engine import METHOD, NAME, HttpEngine, HttpSection, http_conflicts
from cloud_gateway.parts.http_engine.verb import AttachVerb

if TYPE_CHECKING:
    from cloud_gateway.core.verify.verification import Method


def _draws() -> Method:
    from cloud_gateway.parts.http_engine.draws import DRAWS

    return DRAWS


PART = GatewayPart(
    "http_engine",
    {"target": HttpSection},
    check=http_conflicts,
    example=Path(__file__).with_name("gateway.toml"),
    engines={NAME: HttpEngine()},
    methods={METHOD: _draws},
    verbs=(AttachVerb(),),
)
