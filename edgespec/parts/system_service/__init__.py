"""Each program as a service of systemd: its unit, and the verbs that install and remove it (docs/service.md).

The gateway has a part of the same name, with a unit of its own and these verbs. Readiness and the watchdog are reported
by the core (`edgespec/shared/sdnotify.py`), for units of any origin.

Public, by module:

- `unit`: `Unit`
- `verbs`: `Configured`, `ServiceVerbs`
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from edgespec.parts.system_service.verbs import Configured, ServiceVerbs
from edgespec.worker import config
from edgespec.worker.part import WorkerPart, WorkerVerb

if TYPE_CHECKING:
    from edgespec.parts.system_service.unit import Unit


def _unit() -> Unit:
    from edgespec.parts.system_service.unit import WORKER

    return WORKER


def _configured(args: Namespace) -> Configured:
    settings = config.given(args)
    return Configured([settings.draft.model], settings.daemon.state_dir)


PART = WorkerPart("system_service", verbs=[ServiceVerbs("worker", WorkerVerb.configuration, _unit, _configured)])
