"""A bounded run of the fuzz; `python -m integrations.vllm.tests.fuzz` sends a million messages."""

from __future__ import annotations

from integrations.vllm.tests.fuzz import run


def test_random_board_messages_never_fail_the_hook() -> None:
    found = run(20_000, seed=7)
    assert found["drafts"] > 1000
    assert found["malformed"] > 100
    assert found["connections"] > 100
