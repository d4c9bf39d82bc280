"""The logging policy: messages of our packages are printed, of all others only the kind and the place."""

import asyncio
import importlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec.core.errors import ClientError, ModelError
from edgespec.shared import logs
from edgespec.shared.log_text import LimitedLog, Throttle

CANARY = "canary-7f3a"
ROOT = Path(logs.__file__).parents[2]


def planted(source: str, *, ours: bool = True, of: str = "edgespec", **names: object) -> Callable[[], object]:
    """A function `f` compiled as if it were in one of our files, of that package, or in a library's."""
    file = ROOT / of / "planted.py" if ours else Path("/usr/lib/library/planted.py")
    scope: dict[str, object] = {"log": logging.getLogger(f"{of}.planted"), "CANARY": CANARY, **names}
    exec(compile(source, str(file), "exec"), scope)
    function = scope["f"]
    assert callable(function)
    return function


def ran(*command: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """A process that ends with this status."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    with logs.policy("debug", stream):
        yield stream


@pytest.mark.parametrize("of", ["edgespec", "cloud_gateway"])
def test_our_own_sentences_are_printed(out: io.StringIO, of: str) -> None:
    importlib.import_module(of)
    planted("def f(): log.info('draft model %s: %d tokens, %.1f s', 'm.gguf', 5, 0.25)", of=of)()
    assert f"INFO    {of}.planted: draft model m.gguf: 5 tokens, 0.2 s\n" in out.getvalue()


@pytest.mark.parametrize("parent", ["checkout/integrations/vllm", "venv/lib/python3.11/site-packages"])
def test_the_integration_is_ours_wherever_it_is_imported_from(tmp_path: Path, parent: str) -> None:
    source = "import logging\nlogging.getLogger(__name__).warning('said by %s', __name__)\n"
    for name in ("edgespec_vllm", "edgespec_vllm_other"):
        folder = tmp_path / parent / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "speaks.py").write_text(source)
    program = """
from edgespec.shared import logs
with logs.policy("info"):
    import edgespec_vllm.speaks, edgespec_vllm_other.speaks
"""
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / parent}:{ROOT}"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    ours, foreign = done.stderr.splitlines()
    assert ours.endswith("WARNING edgespec_vllm.speaks: said by edgespec_vllm.speaks")
    assert "text withheld" in foreign and "said by" not in foreign


def test_a_line_of_json_has_the_figures_of_our_own_lines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.JSON, "1")
    stream = io.StringIO()
    with logs.policy("info", stream):
        planted("def f(): log.info('made %d\\n', 5, extra={'figures': {'tokens': 5, 'finish': ['stop']}})")()
        planted("def f(): log.error(CANARY, extra={'figures': {'text': CANARY}})", ours=False)()
    ours, foreign = map(json.loads, stream.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", ours.pop("time"))
    shown = {"level": "info", "logger": "edgespec.planted", "text": "made 5?"}
    assert ours == shown | {"tokens": 5, "finish": ["stop"]}
    assert foreign["level"] == "error" and CANARY not in stream.getvalue()


@pytest.mark.claim("of-a-library-only-level-logger-and-place-are-printed")
def test_of_a_library_only_level_logger_and_place_are_printed(out: io.StringIO) -> None:
    library = logging.getLogger("aiohttp.server")
    planted("def f(): library.error('bad header %r', CANARY)", ours=False, library=library)()
    assert "ERROR   aiohttp.server: reported by library/planted.py:1; text withheld" in out.getvalue()
    assert CANARY not in out.getvalue()


def test_a_library_that_logs_under_one_of_our_names_is_still_foreign(out: io.StringIO) -> None:
    planted("def f(): log.warning('got %s', CANARY)", ours=False)()
    lent = logging.getLogger("edgespec.worker.link.websockets")
    planted("def f(): lent.critical('< TEXT %s', CANARY)", lent=lent)()
    assert out.getvalue().count("text withheld") == 2
    assert CANARY not in out.getvalue()


@pytest.mark.claim("of-a-library-only-level-logger-and-place-are-printed")
@pytest.mark.parametrize("level", ["debug", "error"])
def test_an_exception_is_printed_as_types_and_places_without_its_text(level: str) -> None:
    stream = io.StringIO()
    source = """
def g():
    try:
        {}[CANARY]
    except KeyError as error:
        raise ValueError(f"no {CANARY}") from error
def f():
    try:
        g()
    except ValueError as error:
        log.exception('a pass failed: %s', error)
"""
    with logs.policy(level, stream):
        planted(source)()
    line = stream.getvalue()
    assert (
        "a pass failed: ValueError [ValueError; ValueError at edgespec/planted.py:9:f > edgespec/planted.py:6:g" in line
    )
    assert "; caused by KeyError at edgespec/planted.py:4:g" in line
    assert line.count("\n") == 1
    assert CANARY not in line


def test_our_own_errors_keep_their_sentence_but_not_one_made_for_a_client(out: io.StringIO) -> None:
    planted("def f(): log.error('%s', error)", error=ModelError("The model file is gone."))()
    planted("def f(): log.error('%s', error)", error=ClientError(f"No model '{CANARY}'.", status=404, code="gone"))()
    assert "The model file is gone." in out.getvalue()
    assert "ClientError 404 gone" in out.getvalue()
    assert CANARY not in out.getvalue()


def test_a_line_that_cannot_be_formatted_shows_no_argument(capfd: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    file = str(ROOT / "edgespec" / "planted.py")
    record = logging.LogRecord("edgespec.planted", logging.ERROR, file, 1, "%d and %d", (CANARY,), None)
    logs.PolicyHandler(out).emit(record)
    assert "a log line of edgespec/planted.py:1 cannot be printed" in out.getvalue()
    assert CANARY not in out.getvalue() + "".join(capfd.readouterr())


def test_control_characters_do_not_reach_the_terminal(out: io.StringIO) -> None:
    planted(r"def f(): log.info('a\x1b[2Jb\nc\u202ed %s', 'e\rf')")()
    assert "a?[2Jb?c?d e?f\n" in out.getvalue()


def test_each_place_of_a_library_speaks_at_most_once_a_minute(out: io.StringIO) -> None:
    library = logging.getLogger("asyncio")
    tell = planted("def f(): library.warning('socket.send() raised %s', CANARY)", ours=False, library=library)
    for _ in range(1000):
        tell()
    assert out.getvalue().count("\n") == 1


def test_a_failing_loop_prints_its_traceback_once_a_minute(out: io.StringIO) -> None:
    source = (
        "def f():\n    try:\n        raise ValueError(CANARY)\n    except ValueError:\n        log.exception('again')"
    )
    tell = planted(source)
    for _ in range(3):
        tell()
    assert out.getvalue().count("planted.py:3:f") == 1
    assert out.getvalue().count("again [ValueError; places as before]") == 2


def test_throttled_kinds_are_counted_and_bounded() -> None:
    throttle = Throttle(every_s=60, kinds=2)
    assert [throttle.admit("a", now) for now in (0, 1, 59, 60)] == [0, None, None, 2]
    assert throttle.admit("b", 61) == 0
    assert [throttle.admit(f"more {n}", 62) for n in range(100)].count(0) == 1
    assert throttle.admit("b", 121) == 0
    assert throttle.admit("another", 120.5) is None, "two kinds are remembered, and the third line is shared"


@pytest.mark.claim("each-kind-has-one-line-a-minute-and-the-rest-is-counted")
def test_each_kind_has_one_line_a_minute_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    lines = LimitedLog(logging.getLogger("tests.logs"), clock=lambda: now[0])
    for now[0] in (0.0, 1.0, 59.9, 60.1):
        lines.warning("stale", "an old frame")
    lines.warning("padding", "bad padding")
    assert [record.getMessage() for record in caplog.records] == [
        "an old frame",
        "an old frame (and 2 more like it)",
        "bad padding",
    ]


async def test_the_event_loops_failures_are_types_and_places(out: io.StringIO) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(logs.loop_failed)

    def fail() -> None:
        raise OSError(24, CANARY)

    for _ in range(500):
        loop.call_soon(fail)
    await asyncio.sleep(0.01)
    assert out.getvalue().count("asyncio: a callback failed (OSError EMFILE; OSError EMFILE at ") == 1
    assert CANARY not in out.getvalue()


def test_threads_warnings_and_destructors_print_no_text(out: io.StringIO) -> None:
    def fail() -> None:
        raise ValueError(CANARY)

    class Broken:
        def __del__(self) -> None:
            raise ValueError(CANARY)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    Broken()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning(CANARY, UserWarning, "/some/library/file.py", 7)
    assert "a thread ended by a fault (ValueError; ValueError at threading.py:" in out.getvalue().replace(
        "python3.11/", ""
    )
    assert "an exception had nowhere to go (ValueError;" in out.getvalue()
    assert "UserWarning at library/file.py:7" in out.getvalue()
    assert CANARY not in out.getvalue()


def test_the_policy_leaves_everything_as_it_was() -> None:
    before = sys.excepthook, threading.excepthook, warnings.showwarning, logging.getLogger().level
    with logs.policy("debug", io.StringIO()), logs.policy("error"):
        assert logging.getLogger().level == logging.ERROR
    assert before == (sys.excepthook, threading.excepthook, warnings.showwarning, logging.getLogger().level)


SERVING = """
import logging, os, sys
from edgespec.shared import logs
with logs.policy():  # a command's; a daemon it runs has its own
    with logs.policy("info"):
        os.write(2, b"loading\\n")
        logs.serving()
        os.write(2, b"a panic quotes CANARY\\n")
        print("a library prints CANARY", file=sys.stderr)
        os.system("echo a child prints CANARY >&2")
        logging.getLogger("edgespec.shared.x").info("foreign, since it stands in no file of ours: CANARY")
        logging.getLogger("x").warning("CANARY")
    print("this worker was revoked", file=sys.stderr)
"""


@pytest.mark.claim("kept-warnings-are-those-that-were-printed")
def test_the_latest_warnings_are_kept_as_they_were_printed(out: io.StringIO) -> None:
    planted("def f(): log.info('well'); log.warning('passes stall (%d ms)', 86608)")()
    library = logging.getLogger("aiohttp.server")
    planted("def f(): library.error('bad header %r', CANARY)", ours=False, library=library)()
    texts = [str(one["text"]) for one in logs.latest_warnings()]
    assert texts[0] == "edgespec.planted: passes stall (86608 ms)"
    assert "text withheld" in texts[1] and CANARY not in texts[1] and len(texts) == 2


@pytest.mark.claim("of-a-library-only-level-logger-and-place-are-printed")
def test_what_libraries_write_to_standard_error_is_withheld_while_serving() -> None:
    done = ran(sys.executable, "-c", SERVING)
    lines = done.stderr.splitlines()
    assert (lines[0], lines[-1]) == ("loading", "this worker was revoked")
    assert any("a library wrote" in line for line in lines)
    assert any("WARNING x: reported by" in line for line in lines)
    assert "CANARY" not in done.stderr


ENDING = """
from edgespec.shared import logs
class Broken:
    def __del__(self):
        raise ValueError("CANARY")
with logs.policy("info"):
    pass
kept = Broken()
"""


def test_what_fails_while_the_process_ends_prints_no_text_either() -> None:
    done = ran(sys.executable, "-c", ENDING)
    assert "an exception had nowhere to go (ValueError; ValueError at " in done.stderr
    assert "CANARY" not in done.stderr


@pytest.mark.parametrize("close", ["2>&-", "2>/dev/full"])
def test_a_standard_error_that_takes_nothing_ends_nothing(close: str) -> None:
    work = "import logging\nfrom edgespec.shared import logs\nwith logs.policy():\n    logs.serving()\n"
    work += "    logging.getLogger('edgespec').error('%d', 'x')\n    print('done')"
    assert ran("/bin/sh", "-c", f'"{sys.executable}" -c "$1" {close}', "sh", work).stdout == "done\n"


COMMAND = """
import argparse, os
from edgespec.shared import command, logs
def verb(_):
    BEFORE
    os.abort()
parser = argparse.ArgumentParser()
parser.set_defaults(run=verb)
command.run("program", lambda: parser, [])
"""


@pytest.mark.claim("a-native-crash-shows-its-places")
@pytest.mark.parametrize("before", ["'it loads its models'", "with logs.policy(): logs.serving()  # and has ended"])
def test_a_native_crash_of_a_command_names_the_place(before: str) -> None:
    done = ran(sys.executable, "-c", COMMAND.replace("BEFORE", before), status=-6)
    assert 'File "<string>", line 6 in verb' in done.stderr
