"""What `edgespec status` and `edgespec peers` print: words and units, no names of fields."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.__main__ import main
from edgespec.shared import control_client
from edgespec.worker import report

STATUS: dict[str, Any] = {
    "version": "0.1", "state": "drafting", "uptime_s": 3723, "model": "small.gguf", "name": "lab-7", "id": "ab12",
    "gateway": "gw", "linked": True, "address": "127.0.0.1:7443", "through": None, "rtt_ms": 3.24, "refused": None,
    "paused": None, "requests_open": 1, "requests": 53, "steps": 95, "nodes": 218, "frames": 38,
    "tokens_committed": 1302, "tokens_matched": 781, "step_ms": 6.31, "host_us_per_step": 130.0, "drafting_s": 597.0,
    "model_loaded": True, "warnings": [{"at": 1.0, "text": "edgespec.threads: passes stall"}],
    "owner": {"mode": "always", "state": "drafting", "because": None, "sources": {"input": "off: none"},
              "stepped_aside": [{"at": "2026-11-21T22:00:00+0000", "because": "it is busy", "for_s": 61.0}]},
}  # fmt: skip


def test_a_status_reads_as_words_and_units() -> None:
    assert report.text(STATUS).splitlines() == [
        "worker        lab-7 (ab12), edgespec 0.1, up 1:02:03",
        "state         drafting",
        "gateway       gw at 127.0.0.1:7443, round trip 3.2 ms",
        "draft model   small.gguf",
        "requests      1 open, 53 since the start",
        "drafting      95 steps in 0:09:57: 6.3 ms a step, and 0.1 ms beside the model",
        "sent          218 candidates in 38 frames",
        "acceptance    781 of 1302 tokens were drafted (60%)",
        "owner         drafting (`owner.mode` is always)",
        "  input       off: none",
        "  aside       2026-11-21T22:00:00+0000 for 0:01:01: it is busy",
        "warnings      edgespec.threads: passes stall",
    ]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"linked": False, "refused": None}, "gateway       gw, not linked"),
        ({"linked": False, "refused": "quarantined"}, "gateway       gw, not linked: quarantined"),
        ({"through": "desk-2"}, "gateway       gw at 127.0.0.1:7443 through the peer desk-2, round trip 3.2 ms"),
        (
            {"steps": 0, "step_ms": None, "host_us_per_step": None},
            "drafting      no step finished in 0:09:57 of drafting",
        ),
        ({"steps": 0, "step_ms": None, "drafting_s": 0.0}, "drafting      no step yet"),
        ({"tokens_committed": 0, "tokens_matched": 0}, "acceptance    0 of 0 tokens were drafted"),
        ({"paused": "exam week", "state": "paused"}, "state         paused: exam week"),
    ],
)
def test_each_state_has_its_sentence(changed: dict[str, Any], line: str) -> None:
    assert line in report.text(STATUS | changed).splitlines()


def test_a_worker_that_starts_says_what_it_does() -> None:
    starting = {"version": "0.1", "state": "starting", "doing": "timing draft steps", "doing_s": 12.3}
    assert report.text(starting) == "state         starting: timing draft steps (for 12 s)"


def test_peers_are_blocks_of_sentences() -> None:
    relayed = {"name": "a", "id": "1", "trust": "paired", "there": True, "because": "it reaches its gateway through us"}
    there = {"name": "b", "id": "2", "trust": "paired", "address": "10.0.0.2:1", "there": True, "interface": "eth0",
             "relays": True, "drafting_for": ["gw (3)"]}  # fmt: skip
    shown = report.peers({"peers": [relayed, there], "relaying": ["a"], "forwarded_bytes": 2_500_000})
    assert "state         there: it reaches its gateway through us" in shown
    assert "address       10.0.0.2:1, by interface eth0" in shown
    assert shown.endswith("relaying      for a; 2.5 MB forwarded so far")
    assert "True" not in shown and "False" not in shown


@pytest.mark.parametrize(("verb", "reason"), [("pause", "exam week"), ("resume", None)])
def test_pause_and_resume_print_whether_it_drafts(
    verb: str, reason: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_client, "call", lambda *_, **__: {"paused": reason})
    assert main([verb]) == 0
    assert capsys.readouterr().out.strip() == report.pause({"paused": reason})
    assert (f"paused: {reason}" == report.pause({"paused": reason})) is (reason is not None)
