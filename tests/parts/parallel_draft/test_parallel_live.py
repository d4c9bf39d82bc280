"""The gateway's own worker as a process: who it drafts for, and what happens if it or the gateway is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.test_gateway_live import Running, gateway
from tests.support.tiny_gguf import make_tiny_gguf

pytestmark = pytest.mark.live
NAMED = 'api.client_options=["ignore_eos", "usage"]'
MAX_WAIT_S = 60.0


@pytest.mark.claim("it-drafts-for-every-key-and-is-replaced-when-it-dies")
def test_it_drafts_for_every_key_and_is_replaced_when_it_dies(tmp_path: Path) -> None:
    draft = make_tiny_gguf(tmp_path / "draft.gguf", vocab=320)
    options = [f"local_draft.model={draft}", "local_draft.mode=async-local", "policy.name=amusd", NAMED]
    with gateway(tmp_path, *(part for one in options for part in ("--set", one))) as running:
        running.wait_ready()
        key = json.loads(running.command("keys", "create", "--name", "private", "--json"))["key"]
        until(lambda: linked(running))
        text, usage = complete(running, key)
        assert usage["workers"] == ["own worker"], "this key allows no offloading, and no prompt left the machine"

        first = until(lambda: child_of(running))
        os.kill(first, signal.SIGKILL)
        last = until(lambda: (pid := child_of(running)) != first and pid)
        until(lambda: linked(running))
        assert complete(running, key)[0] == text

        os.kill(running.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{last}").exists())


def complete(running: Running, key: str) -> tuple[str, dict[str, Any]]:
    with running.client(key) as client:
        answer = client.completions.create(
            model="tiny",
            prompt="hello",
            max_tokens=48,
            seed=3,
            extra_body={"edgespec": {"ignore_eos": True, "usage": True}},
        )
    assert answer.usage is not None
    return answer.choices[0].text, answer.usage.model_extra["edgespec"]


def linked(running: Running) -> bool:
    """Whether the gateway's own worker, the only one in its list, is linked."""
    (own,) = json.loads(running.command("workers", "list", "--json"))["workers"]
    assert own["groups"] == ["own"]
    return bool(own["linked"])


def child_of(running: Running) -> int:
    """The process id of the worker, the gateway's child that runs `edgespec`; 0 while there is none."""
    return next((one for one in children(running.pid) if "--end-with-input" in words(one)), 0)


def children(parent: int) -> list[int]:
    listed = (Path(f"/proc/{parent}/task") / str(parent) / "children").read_text()
    return [int(pid) for pid in listed.split()]


def words(pid: int) -> list[str]:
    """The command line of a process; empty if it has ended meanwhile."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return []


def until(found: Callable[[], Any]) -> Any:
    """The first true value. Fails after MAX_WAIT_S."""
    deadline = time.monotonic() + MAX_WAIT_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return value
