"""Traces of a gateway at a worker: `edgespec replay`, which is `cloud-gateway replay` (docs/traces.md).

The gateway's part of this name records and plays them, and takes the names of gateways from here.

Public, by module:

- `gateways`: `name_of`
"""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction

from edgespec.shared.command import add_forwarded_verb
from edgespec.worker.part import WorkerPart

TEXT = "look at traces of a gateway: who signed, and what was decided; the same as `cloud-gateway replay`"


class ReplayVerb:
    """The verb `replay`, which the gateway's program runs in this process's place."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds the verb to the command line."""
        add_forwarded_verb(verbs, "replay", TEXT, "cloud_gateway")


PART = WorkerPart("request_traces", verbs=[ReplayVerb()])
