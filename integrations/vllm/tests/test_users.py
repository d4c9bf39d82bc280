"""vLLM and the link process as two users, as in two containers that share a volume: closed unless it is opened."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  by `asyncio.to_thread`, too late in a child that may not read it
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from edgespec_vllm.board import Board
from edgespec_vllm.line import Line
from edgespec_vllm.link.server import BoardServer

from edgespec.core.errors import AddressError
from integrations.vllm.tests.boards import DRAFTS, VOCAB
from integrations.vllm.tests.test_worth import Link

LINK_USER = 20_001
VLLM_USER = 20_002
GROUP = 20_003
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A shared volume: both users reach it, and the link process may write there."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        os.chown(path, LINK_USER, GROUP)
        path.chmod(0o750)
        yield path


def as_user(user: int, groups: list[int], function: Callable[[], str]) -> str:
    """What `function` returns in a child process of another user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # nothing is imported from here on: the interpreter's files may be closed to that user
        try:
            os.setgroups(groups)
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            text = function()
        except BaseException as error:  # noqa: BLE001  the parent shows it
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


def wait_for(path: Path) -> None:
    """Returns once the file is there, or after 20 s."""
    for _ in range(1000):
        if path.exists():
            return
        time.sleep(0.02)


def serving(folder: Path, group: str, vllm: Callable[[str], str], vllm_user: int) -> tuple[str, str]:
    """What vLLM's side returns while the link process of LINK_USER serves its board, and what that logged."""

    def link() -> str:
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("edgespec_vllm.link.server")
        logger.setLevel("INFO")
        logger.addHandler(handler)

        async def serve() -> None:
            server = BoardServer(folder / "board.sock", Link().streams, VOCAB, group)
            await server.start()
            (folder / "ready").touch()
            await asyncio.to_thread(wait_for, folder / "done")
            await asyncio.sleep(0.1)
            await server.close()

        asyncio.run(serve())
        return "\n".join(lines)

    def both() -> str:
        wait_for(folder / "ready")
        return vllm(str(folder / "board.sock"))

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, as_user(LINK_USER, [GROUP], link).encode())
        os._exit(0)
    os.close(writing)
    said = as_user(vllm_user, [GROUP], both) if vllm_user else both()
    (folder / "done").touch()
    with os.fdopen(reading) as file:
        logged = file.read()
    os.waitpid(child, 0)
    return said, logged


def connect(path: str, user: int | None = None) -> str:
    """What a board of vLLM's finds: "connected", or why not."""
    board = Board(Line(path, user), 0, VOCAB, DRAFTS)
    board.send(0.0)
    board.receive()
    if board.line.up:
        return "connected"
    return board.line.why


@pytest.mark.claim("a-board-serves-no-other-user-unless-it-is-opened")
def test_a_vllm_of_another_user_may_not_connect_by_default(folder: Path) -> None:
    said, logged = serving(folder, "", connect, VLLM_USER)
    assert f"user {VLLM_USER} may not open it; start `cloud-gateway link` with `--board-group`" in said
    assert logged == ""


@pytest.mark.claim("a-board-serves-no-other-user-unless-it-is-opened")
@pytest.mark.parametrize("vllm_user", [VLLM_USER, 0])
def test_prompts_go_to_no_link_process_of_a_user_that_was_not_named(folder: Path, vllm_user: int) -> None:
    said, logged = serving(folder, str(GROUP), connect, vllm_user)
    assert f"it belongs to user {LINK_USER}" in said
    assert f"set EDGESPEC_BOARD_USER={LINK_USER} for vLLM" in said
    assert f"a process of user {vllm_user} connected to the board and left without a word" in logged
    assert f"EDGESPEC_BOARD_USER={LINK_USER}" in logged


@pytest.mark.parametrize("vllm_user", [VLLM_USER, 0])
def test_two_users_connect_by_the_group_and_the_named_user(folder: Path, vllm_user: int) -> None:
    said, logged = serving(folder, str(GROUP), lambda path: connect(path, LINK_USER), vllm_user)
    assert said == "connected"
    assert f"engine 0 of user {vllm_user} is connected, with up to {DRAFTS} drafts" in logged


async def test_the_socket_has_its_mode_before_it_has_its_name(tmp_path: Path) -> None:
    for group, mode in (("", 0o600), (str(GROUP), 0o660)):
        server = BoardServer(tmp_path / "board.sock", Link().streams, VOCAB, group)
        await server.start()
        status = server.path.stat()
        assert stat.S_IMODE(status.st_mode) == mode
        assert status.st_gid == (GROUP if group else os.getegid())
        await server.close()


async def test_a_group_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="There is no group no-such-group"):
        await BoardServer(tmp_path / "board.sock", Link().streams, VOCAB, "no-such-group").start()


def test_a_group_that_the_link_process_is_not_in_is_named(folder: Path) -> None:
    def start() -> str:
        asyncio.run(BoardServer(folder / "board.sock", Link().streams, VOCAB, str(GROUP)).start())
        return "started"

    said = as_user(LINK_USER, [], start)
    assert f"cannot be given to the group {GROUP}: run the link process as a member of it" in said
