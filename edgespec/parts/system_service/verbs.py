"""`install-service` and `uninstall`, the verbs that each program has around its unit."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.shared import command

if TYPE_CHECKING:
    from edgespec.parts.system_service.unit import Unit


@dataclass(frozen=True, slots=True)
class Configured:
    """The values of a program's configuration that its service depends on."""

    models: Sequence[str]
    state_dir: str


@dataclass(frozen=True, slots=True)
class ServiceVerbs:
    """Both verbs of one program."""

    program: str
    """The word for the program in texts: gateway or worker."""
    configuration: str
    """The name of its configuration file."""
    unit: Callable[[], Unit]
    """Imports its unit."""
    configured: Callable[[Namespace], Configured]
    """Reads its configuration. Raises ConfigError."""

    def add(self, verbs: _SubParsersAction[ArgumentParser]) -> None:
        """Adds them to the command line."""
        self._add(verbs, "install-service", self._install, f"run the {self.program} as a systemd service")
        self._add(verbs, "uninstall", self._uninstall, "stop and remove the service; keeps the keys")

    def _add(self, verbs: _SubParsersAction[ArgumentParser], name: str, run: command.Command, text: str) -> None:
        parser = command.add_verb(self.configuration, verbs, name, run, text, json=False, sets=False)
        parser.add_argument("--user", action="store_true", help="a service of this user, not of the system")
        parser.add_argument("--dry-run", action="store_true", help="only show what would be done")

    def _install(self, args: Namespace) -> int:
        models = self.configured(args).models
        self.unit().install(args.config, models, user=args.user, dry_run=args.dry_run)
        return 0

    def _uninstall(self, args: Namespace) -> int:
        state_dir = self.configured(args).state_dir
        self.unit().uninstall(state_dir, user=args.user, dry_run=args.dry_run)
        return 0
