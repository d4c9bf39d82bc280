"""The board over a real Unix socket: nothing lost, nothing sent that is not wanted, nothing that waits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from edgespec_vllm import messages
from edgespec_vllm.board import Board, Terms
from edgespec_vllm.line import MAX_UNSENT_BYTES, RETRY_S, Line
from edgespec_vllm.messages import Closed, Hello, Leave, Opened, Tokens, Want

from integrations.vllm.tests.boards import DRAFTS, VOCAB, Link
from integrations.vllm.tests.fuzz import run


@pytest.fixture
def link(tmp_path: Path) -> Link:
    return Link(tmp_path)


@pytest.fixture
def board(link: Link) -> Board:
    return Board(Line(link.path), 3, VOCAB, DRAFTS)


def open_and_want(link: Link, board: Board, tokens: list[int]) -> None:
    """Opens request 1 with these tokens, which the link process wants from the first one on."""
    board.open("a", tokens, Terms(["default"]))
    board.send(0)
    link.received()
    link.send(Want(1, 0))
    board.receive()


def test_tokens_go_out_only_when_they_are_wanted(link: Link, board: Board) -> None:
    tokens = [1, 2, 3]
    board.open("a", tokens, Terms(["default"]))
    board.send(0)
    assert link.received() == [Hello(2, 3, VOCAB, DRAFTS), Opened(1, ["default"])]
    tokens.append(4)
    board.send(0)
    assert link.received() == []
    link.send(Want(1, 0))
    board.receive()
    board.send(0)
    tokens.append(5)
    board.send(0)
    assert link.received() == [Tokens(1, 0, [1, 2, 3, 4]), Tokens(1, 4, [5])]
    link.send(Leave(1))
    board.receive()
    tokens.append(6)
    board.close("a")
    board.send(0)
    assert link.received() == [Closed(1)]


def test_want_names_the_position_to_go_on_from(link: Link, board: Board) -> None:
    board.open("a", [1, 2, 3], Terms(["default"]))
    board.send(0)
    link.received()
    for have, expected in ((2, [Tokens(1, 2, [3])]), (0, [Tokens(1, 0, [1, 2, 3])]), (99, [])):
        link.send(Want(1, have))
        board.receive()
        board.send(0)
        assert link.received() == expected


def test_a_slow_link_process_loses_nothing_and_memory_is_bounded(link: Link, board: Board) -> None:
    tokens = list(range(300_000))
    board.open("a", tokens, Terms(["default"]))
    board.send(0)
    received = link.received()
    link.send(Want(1, 0))
    board.receive()
    for _ in range(50):  # nobody reads
        board.send(0)
        tokens.append(7)
        assert board.line.room >= 0
    while more := link.received():
        received += more
        board.send(0)
    assert [token for one in received if isinstance(one, Tokens) for token in one.tokens] == tokens
    assert board.line.room == MAX_UNSENT_BYTES


def test_a_restarted_link_process_is_given_all_open_requests(link: Link, board: Board) -> None:
    board.open("a", [1, 2], Terms(["default"]))
    board.open("b", [3], Terms(["physics"], b"x", 0.5, 3, 0.9))
    board.send(0)
    link.received()
    link.send(Want(1, 0))
    board.receive()
    board.close("a")
    link.drop()
    board.receive()
    board.send(0.1)  # too early for another attempt
    assert not board.line.up
    board.send(RETRY_S)
    assert link.received() == [Hello(2, 3, VOCAB, DRAFTS), Opened(2, ["physics"], b"x", 0.5, 3, 0.9)]


def test_a_request_that_nobody_wants_since_a_restart_sends_no_token(link: Link, board: Board) -> None:
    tokens = [1, 2]
    open_and_want(link, board, tokens)
    board.send(0)
    link.drop()
    board.receive()
    tokens.append(3)
    board.send(RETRY_S)
    assert link.received() == [Hello(2, 3, VOCAB, DRAFTS), Opened(1, ["default"])]
    link.send(Want(1, 0))
    board.receive()
    board.send(RETRY_S)
    assert link.received() == [Tokens(1, 0, [1, 2, 3])]


def test_a_want_for_a_request_that_is_over_sends_nothing(link: Link, board: Board) -> None:
    tokens = [1, 2]
    open_and_want(link, board, tokens)
    board.close("a")
    link.send(Want(1, 0))
    board.receive()
    tokens.append(3)
    board.send(0)
    assert link.received() == [Closed(1)]
    assert not board._wanted


def test_a_number_is_never_used_for_two_requests(link: Link, board: Board) -> None:
    board.open("a", [1, 2], Terms(["default"]))
    board.close("a")
    board.open("a", [3], Terms(["physics"]))
    board.open("a", [4], Terms(["other"]))
    board.send(0)
    assert link.received() == [Hello(2, 3, VOCAB, DRAFTS), Opened(2, ["physics"])]


def test_a_line_takes_no_bytes_that_it_has_no_room_for(link: Link) -> None:
    line = Line(link.path)
    assert line.room == 0, "it is not connected"
    line.send(b"x")
    assert not line.unsent
    assert line.connect(0)
    line.send(b"x" * (MAX_UNSENT_BYTES - 1))
    assert line.room == 1
    line.send(b"yy")
    assert (len(line.unsent), line.room) == (MAX_UNSENT_BYTES - 1, 1)
    line.send(b"z")
    assert line.room == 0


def test_the_pause_between_attempts_grows_and_ends_with_an_answer(tmp_path: Path) -> None:
    line = Line(str(tmp_path / "board.sock"))
    attempts: list[float] = []
    for tenth in range(2000):
        before = line.why
        line.why = ""
        line.connect(tenth / 10)
        if line.why:
            attempts.append(tenth / 10)
        line.why = line.why or before
    assert attempts[:7] == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5]
    assert attempts[-1] - attempts[-2] == 30
    link = Link(tmp_path)
    assert line.connect(300)
    line.send(messages.frame(Hello(2, 3, VOCAB, DRAFTS)))
    line.flush()
    link.received()
    link.send(Want(1, 0))
    assert line.receive() is not None
    line.fail("over")
    assert not line.connect(300.1)
    assert line.connect(331)
    line.fail("over")
    assert line.connect(332)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x01\0\0\0\xc1", messages.frame(Closed(1)), b"\0\0\0\0"])
def test_bytes_that_are_no_message_end_the_connection_only(link: Link, board: Board, data: bytes) -> None:
    board.open("a", [1], Terms(["default"]))
    board.send(0)
    link.received()
    link.send(data)
    board.receive()
    assert not board.line.up
    board.send(9)
    assert board.line.up


def test_no_call_waits_for_a_link_process_that_accepts_nothing(link: Link) -> None:
    boards = [Board(Line(link.path), 0, VOCAB, DRAFTS) for _ in range(8)]
    began = time.monotonic()
    for board in boards:  # more than the backlog of the listening socket
        board.open("a", [1] * 100_000, Terms(["default"]))
        for now in range(20):
            board.send(now)
            board.receive()
    assert time.monotonic() - began < 5
    assert any("Resource temporarily unavailable" in board.line.why for board in boards)


def test_random_board_messages_never_fail_the_hook() -> None:
    found = run(20_000, seed=7)
    assert found["drafts"] > 1000
    assert min(found["malformed"], found["connections"]) > 100
