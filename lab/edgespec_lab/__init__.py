"""Demo, rig, simulator, measurements and training around edgespec: a distribution of its own, which no program needs.

It may import everything; edgespec and cloud_gateway import nothing of it. Its verbs reach the command `edgespec` by
the entry point `lab` of the group `edgespec.parts`. The verbs' arguments are described by the modules `demo`, `plan`,
`tune` and `compare`, which load models and the gateway only when they run.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module

from edgespec.worker.part import WorkerPart


@dataclass(frozen=True)
class LabVerb:
    """A verb of `edgespec` that a module here describes, by its docstring and `add_arguments`."""

    name: str
    help: str

    def add(self, verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Adds the verb's parser."""
        module = import_module(f"edgespec_lab.{self.name}")
        module.add_arguments(verbs.add_parser(self.name, help=self.help, description=module.__doc__))


PART = WorkerPart(
    "lab",
    verbs=(
        LabVerb("compare", "try other policies on a gateway's traces, in the simulator"),
        LabVerb("demo", "show gateway and worker together on this machine"),
        LabVerb("plan", "say what a worker would bring, from the times of target, draft and link"),
        LabVerb("tune", "measure every source of drafts here, and recommend a gateway's settings"),
    ),
)
