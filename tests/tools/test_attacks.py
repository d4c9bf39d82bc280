"""The attack rig: what it concludes from a client's events, its command line, and a real attacking process."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from edgespec.lab.rig import Processes, module
from tools.attacks import __main__ as command
from tools.attacks.aim import SOURCE, Aim
from tools.attacks.attacker import Orders
from tools.attacks.floods import all_floods
from tools.attacks.measure import MAX_RATIO, Event, Outcome, Window, row
from tools.attacks.runner import ROOT


def steady(start: float, end: float, gap_s: float) -> list[Event]:
    return [Event("gap", start + i * gap_s, gap_s) for i in range(int((end - start) / gap_s))]


def outcome(flood_gap_s: float = 0.1, **changes: object) -> Outcome:
    windows = [Window("control", 0, 10, log_bytes=300), Window("flood", 20, 30, log_bytes=800)]
    events = [*steady(0, 10, 0.1), *steady(12, 18, 5.0), *steady(20, 30, flood_gap_s)]
    return Outcome("some", "key", windows, events, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (outcome(0.1 * MAX_RATIO + 0.01), "p99"),
        (outcome(100.0), "p99"),
        (outcome(workers_lost=1), "worker"),
        (outcome(gateway_ended=True), "ended"),
        (outcome(pairing="refused"), "paired"),
        (outcome(error="no gateway"), "no gateway"),
    ],
)
def test_each_bound_that_is_broken_is_named(made: Outcome, words: str) -> None:
    (broken,) = row(made)["broken"]
    assert words in broken


def test_a_stall_that_ends_in_a_failure_is_a_gap_and_a_failure() -> None:
    made = outcome()
    made.events.append(Event("fail", 22.0, 6.0, "TimeoutError"))
    made.windows[1].log_bytes = 10_500
    found = row(made)
    assert found["under_flood"]["max_ms"] == 6000
    assert [text.split()[0] for text in found["broken"]] == ["completions", "more"]


def test_the_list_names_every_flood_and_a_wrong_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(all_floods())
    with pytest.raises(SystemExit):
        command.main(["nonsense"])
    assert "no flood is called nonsense" in capsys.readouterr().err


async def test_an_attacking_process_floods_until_it_is_stopped_and_counts(tmp_path: Path) -> None:
    sources: Counter[str] = Counter()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sources[writer.get_extra_info("peername")[0]] += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    aim = Aim(server.sockets[0].getsockname()[1], 0, "m", "key", "")
    orders = Orders("wrong-keys", True, str(ROOT), 0.0, [0], 20.0, asdict(aim))
    processes = Processes(tmp_path)
    processes.start("attacker", module("tools.attacks.attacker"), piped=True)
    processes.say("attacker", orders.line())
    async with asyncio.timeout(20):
        while sources[SOURCE] < 20:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
    output = await asyncio.to_thread(processes.stop, "attacker", None)
    server.close()
    assert set(sources) == {SOURCE}
    assert 10 <= json.loads(output.splitlines()[-1])["count"]["status 401"] <= sources[SOURCE]
