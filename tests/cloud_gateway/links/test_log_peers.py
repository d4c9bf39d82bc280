"""Texts of peers and libraries are logged as labels: close reasons, `Bye`, undecodable frames."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

from edgespec.core.protocol import messages as m
from edgespec.core.protocol.handshake import REASONS, shown
from edgespec.core.protocol.session import Timers
from tests.support.canary import PROMPT, traces_of
from tests.support.links import client, serving
from tests.support.until import until

VOCAB = 280
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@pytest.mark.claim("a-workers-close-reason-is-not-logged")
async def test_a_workers_close_reason_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, timers=Timers(handshake_s=5)) as gateway:
        async with client(gateway) as worker:
            await worker.ws.close(4400, PROMPT[:60])
        await until(lambda: gateway.seen.of("down"))
    assert "closed by the other side (4400 another reason)" in caplog.text
    assert traces_of([PROMPT], ours(caplog)) == []
    assert traces_of([PROMPT], str(gateway.seen.calls)) == []


def ours(caplog: pytest.LogCaptureFixture) -> str:
    """The records of our own loggers; of libraries' records the log shows no text (test_logs.py)."""
    return "\n".join(one.getMessage() for one in caplog.records if one.name.startswith(("edgespec", "cloud_gateway")))


def test_every_label_with_which_we_end_a_link_may_be_logged() -> None:
    """A label that is not in the list would be shown as "another reason" on the other side."""
    used = set()
    kinds = ("RemoteProtocolError", "Bye", "shape_error")
    sources = [path.read_text() for top in ("edgespec", "cloud_gateway") for path in (ROOT / top).rglob("*.py")]
    for source in (one for one in sources if any(kind in one for kind in kinds)):
        for node in ast.walk(ast.parse(source)):
            kind = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if kind in kinds:
                label = next(iter(node.args), None)  # type: ignore[attr-defined]
                if isinstance(label, ast.Constant) and isinstance(label.value, str):
                    used.add(f"shape-{label.value}" if kind == "shape_error" else label.value)
    used |= {f"shape-{kind}" for kind in m.Shape}
    assert len(used) > 20
    assert used <= REASONS
    assert {shown(label) for label in used} == used
    assert (shown(""), shown(PROMPT)) == ("no reason", "another reason")
