"""Network namespaces, each of which stands in for a machine. Needs root and `ip` (iproute2)."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000


def within(namespace: str, work: Callable[[], T]) -> T:
    """Runs `work` in a thread that has moved to the network namespace."""
    results: list[T] = []

    def moved() -> None:
        with Path(f"/run/netns/{namespace}").open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        results.append(work())

    thread = threading.Thread(target=moved)
    thread.start()
    thread.join()
    if not results:
        raise SystemExit("the thread's error stands above")
    return results[0]


def ip(*arguments: str) -> None:
    """Runs `ip` with these arguments."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
