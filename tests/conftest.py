"""What every test starts from: one thread per model, no network for Hugging Face, and nobody's own settings."""

from __future__ import annotations

import gc
import os
import signal
import tempfile

# Read by libraries when they are first imported, so set before any test module is.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"  # threads that wait for each other would spin on the cores of other tests
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

from edgespec.shared import models
from tests.support.driven import DrivenLoop

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Jobs that a shell starts in the background ignore it, and so would the commands on which tests press Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each run draws other cases; `make fuzz` and `make test-busy` draw many.
settings.register_profile("edgespec", deadline=None, print_blob=True, max_examples=30)
settings.load_profile("edgespec")


def _no_exec(*arguments: object) -> NoReturn:
    """A verb that hands over to another program would end the tests with that program's exit code, mostly 0."""
    raise AssertionError(f"this test would have replaced the process of all tests: {arguments}")


for _name in ("execv", "execve", "execvp", "execvpe"):
    setattr(os, _name, _no_exec)  # children are started without these
gc.disable()  # hardly anything of what is imported and collected is ever freed


def pytest_collection_finish() -> None:
    """From here on the collector passes over modules and collected tests, half a million objects."""
    gc.freeze()
    gc.enable()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop that a coroutine runs in."""
    return {"loop": DrivenLoop if item.get_closest_marker("driven") else asyncio.new_event_loop}


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keys, settings and state of the person who runs the tests are out of reach; the model cache is shared."""
    cache = models.model_dir().parent.parent
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        patch.setenv("HOME", str(home))
        for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "CREDENTIALS_DIRECTORY"):
            patch.delenv(variable, raising=False)
        for variable in [name for name in os.environ if name.startswith(("EDGESPEC_", "CLOUD_GATEWAY_"))]:
            patch.delenv(variable)
        yield


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for sockets, whose paths may have 103 bytes: a test's own has more if several processes test."""
    with tempfile.TemporaryDirectory(prefix="edgespec-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def quantised_model() -> Path:
    """The real model's GGUF; `make setup` puts it there."""
    return models.quantised()


@pytest.fixture(scope="session")
def dropped_model() -> Path:
    """The real model without layer 10; `make setup` makes it."""
    return models.dropped()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GGUF model of some tens of kilobytes."""
    from tests.support.tiny_gguf import make_tiny_gguf

    return make_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")
