"""What a part brings to the worker, and the seams that it may fill.

`edgespec.parts.PARTS` lists the parts of this program. The command line and the loading of the configuration take that
list. The worker's other files get what they need of it, and name no part.
"""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable
from dataclasses import dataclass

from edgespec.shared import command
from edgespec.shared.part import Part

CONFIGURATION = "worker.toml"


def no_arguments(parser: ArgumentParser) -> None:
    """The arguments of a verb that has none of its own."""


@dataclass(frozen=True, slots=True)
class WorkerVerb:
    """A verb of `edgespec` with the options that all have: `--config`, `--set`, `--json`."""

    name: str
    run: command.Command
    """Runs the verb and returns its exit code; it imports the verb's code."""
    help: str
    arguments: Callable[[ArgumentParser], None] = no_arguments
    """Adds the verb's own arguments to its parser."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds the verb to the command line."""
        parser = command.add_verb(CONFIGURATION, verbs, self.name, self.run, self.help)
        self.arguments(parser)


@dataclass(frozen=True, eq=False)
class WorkerPart(Part):
    """A part of the worker."""
