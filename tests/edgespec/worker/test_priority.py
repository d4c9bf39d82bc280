"""The priority of a worker that is started by hand, read back from the kernel in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.tiny_gguf import make_tiny_gguf

SCRIPT = """
import json, os, sys, threading
from pathlib import Path
from edgespec.worker import priority
from edgespec.llamacpp.drafter import Drafter
from edgespec.llamacpp.step_time import step_curve
priority.lower_process()
drafter = Drafter(Path(sys.argv[1]), context=256, sequences=2, threads=2)
step_curve(drafter)  # as the service does, on the main thread
def classes():
    return {int(t): os.sched_getscheduler(int(t)) for t in os.listdir("/proc/self/task")}
def nices():
    return [os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir("/proc/self/task")]
found = {}
def draft():
    before = set(os.listdir("/proc/self/task"))
    drafter.open("r", [1, 2, 3])
    drafter.step("r", [()], 1)
    found["drafting"] = os.sched_getscheduler(0)
    found["workers"] = [os.sched_getscheduler(int(t)) for t in set(os.listdir("/proc/self/task")) - before]
    found["nices"] = nices()
thread = threading.Thread(target=draft); thread.start(); thread.join()
found["main"] = os.sched_getscheduler(0)
print(json.dumps(found))
"""


def test_a_worker_started_by_hand_runs_at_idle_priority(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model)], capture_output=True, text=True, check=True, timeout=60
    )
    found = json.loads(done.stdout)
    assert set(found["nices"]) == {19}  # also the threads of llama.cpp that a step starts
    assert {found["drafting"], found["main"], *found["workers"]} == {os.SCHED_OTHER}  # a pause must not wait long
