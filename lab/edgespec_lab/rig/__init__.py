"""One way to put gateway, workers and a delayed link on one machine, for the demo, tests and measurements.

`Rig` (stage.py) runs the commands of an operator and an admin; `Processes` (processes.py) starts, reads and ends what
any rig consists of; a `Neighbour` drafts for nobody (neighbour.py).

Public, by module:

- `neighbour`: `Neighbour`
"""

from __future__ import annotations

from edgespec_lab.rig.processes import Processes, RigError, cpu_time_s, free_port, machine_time_s, module, waited_s
from edgespec_lab.rig.stage import LLAMACPP, TORCH, Rig

__all__ = [
    "LLAMACPP",
    "TORCH",
    "Processes",
    "Rig",
    "RigError",
    "cpu_time_s",
    "free_port",
    "machine_time_s",
    "module",
    "waited_s",
]
