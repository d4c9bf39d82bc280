"""A trial of llama.cpp with a model before it is trusted: one batch against single steps, in a child process.

A library that was compiled wrongly, or for another processor, ends its process by a signal, hangs, or computes other
numbers in batches than in single steps. The child (child.py) meets that in our place.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgespec.core.errors import EdgespecError, LibraryError
from edgespec.shared.folders import cache_dir
from edgespec.shared.models import QUANTISED, dropped_name, model_digest, model_dir, requantised_name
from edgespec.shared.procstat import waited_s

CHILD = "edgespec.parts.known_answers.child"
ALPHABET = (81, 278, 265, 287, 297, 275, 310, 294, 2056)
"""Tokens of "a b c d e f g h i": the demo's models continue four or more of them so, by 1.3 and more of a logit."""
KNOWN_FROM = 3
"""Index of the first of them after which the next one is the likeliest."""
MAX_DIFFERENCE = 0.7
"""Root mean square between the logits of one row in a batch and alone, in standard deviations of the row's logits.

At most 0.28 in 13 formats, K-quants most, as their batches round otherwise. Unrelated logits differ by 1.4, zeros by 1.
"""
HANG_S = 30.0
"""Without progress, the time not counted in which the child waits for a core."""
INSTRUCTIONS = ("avx", "fma", "f16c", "amx", "asimd", "sve", "i8mm", "bf16")
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def require_known_answer(path: Path, gpu_layers: int = 0, *, again: bool = False, hang_s: float = HANG_S) -> bool:
    """Raises LibraryError if llama.cpp dies, hangs or computes wrongly with this model; it takes about a second.

    A trial that was passed is remembered for the same library, model, processor and `gpu_layers`, and then not run
    unless `again`. False if the model cannot be loaded: the program's own error names the cause.
    """
    found = find_spec("llama_cpp")
    if found is None or found.origin is None or not path.is_file():
        return False

    library = Path(found.origin).parent / "lib"
    passed = _passed(library, path, gpu_layers)
    if not again and passed.exists():
        return True

    fault = _fault(path, gpu_layers, hang_s)
    if fault is None:
        with suppress(OSError):  # a folder that cannot be written costs the next start a second
            passed.parent.mkdir(parents=True, exist_ok=True)
            passed.touch()
    elif fault:
        raise LibraryError(_sentence(path, gpu_layers, library, fault))
    return fault is None


def _passed(library: Path, path: Path, gpu_layers: int) -> Path:
    """An empty file that is there after a passed trial."""
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(library.glob("*"))]
    gpu_driver = Path("/proc/driver/nvidia/version")
    driver_version = ""
    if gpu_driver.exists():
        driver_version = gpu_driver.read_text()

    facts = [files, model_digest(path).hex(), processor(), gpu_layers, driver_version]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return cache_dir() / "known-answers" / digest[:32]


def _fault(path: Path, gpu_layers: int, hang_s: float) -> str | None:
    """The child's fault; None for nothing, "" for an error that the program will meet too.

    Raises EdgespecError if somebody else ended the child.
    """
    tokens = known_tokens(path)
    command = [sys.executable, "-P", "-m", CHILD, str(path), str(gpu_layers), *map(str, tokens[:-1])]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as child,
    ):
        try:
            output = _read(child, hang_s)
        except BaseException:
            child.kill()
            raise

        errors.seek(0)
        reason = errors.readline(200).decode(errors="replace").strip()

    if output is None:
        return f"makes no progress for {hang_s:g} s"

    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        if name in ("SIGKILL", "SIGTERM", "SIGINT"):
            raise EdgespecError(f"The trial of llama.cpp with {path.name} was ended by {name}; memory may be short.")
        if reason:
            return f"is killed by {name} ({reason})"
        return f"is killed by {name}"

    if child.returncode == 0:
        return _judged(json.loads(output.splitlines()[-1]), tokens)
    return ""


def known_tokens(path: Path) -> tuple[int, ...]:
    """ALPHABET for a model of the demo, whose greedy tokens are known; nothing for others."""
    file = QUANTISED.file
    of_demo = (file, requantised_name(file, "q4_0"), dropped_name(file, (10,)))
    if path.parent == model_dir() and path.name in of_demo:
        return ALPHABET
    return ()


def _read(child: subprocess.Popen[bytes], hang_s: float) -> bytes | None:
    """Everything that the child writes until it ends; None: it hung and was killed."""
    assert child.stdout is not None
    poll = select.poll()  # not select(), which is limited to 1024 descriptors
    poll.register(child.stdout)
    output = b""

    since = time.monotonic()
    waited = waited_s(child.pid)
    while True:
        if poll.poll(min(1.0, hang_s) * 1e3):
            data = os.read(child.stdout.fileno(), 65536)
            if not data:
                return output
            output += data
            since = time.monotonic()
            waited = waited_s(child.pid)
        elif time.monotonic() - since - (waited_s(child.pid) - waited) > hang_s:
            child.kill()
            return None


def _judged(answer: dict[str, Any], tokens: Sequence[int]) -> str | None:
    # NaN is not below the limit either.
    if not answer["difference"] <= MAX_DIFFERENCE:
        return f"computes other logits in a batch than in single steps (by {answer['difference']:.2f} of their spread)"
    if tokens and answer["after"][KNOWN_FROM:] != list(tokens[KNOWN_FROM + 1 :]):
        return "computes other tokens than those stored for this model"
    return None


def _sentence(path: Path, gpu_layers: int, library: Path, fault: str) -> str:
    """The error's text: fault, library and processor, and the command that compiles the library again."""
    package = f"llama-cpp-python=={version('llama-cpp-python')}"
    install = f"{sys.executable} -m pip install --force-reinstall --no-cache-dir --no-deps {package}"
    if platform.machine() == "x86_64":
        flags = f"-DCMAKE_C_FLAGS='{NO_AMX}' -DCMAKE_CXX_FLAGS='{NO_AMX}'"
        install = f'CMAKE_ARGS="-DLLAVA_BUILD=OFF {flags}" {install}'

    remedy = f"compile it again with `{install}`"
    if gpu_layers:
        remedy += ", or set `n_gpu_layers` to 0"

    file = (library / "libggml-cpu.so").resolve()
    cause = f"{file} ({package}) does not suit this processor ({processor()})"
    return f"llama.cpp {fault} in a trial with {path.name}: {cause}; {remedy}."


def processor() -> str:
    """Its name, and which of the instructions it has that llama.cpp is compiled for."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:
        return platform.machine()

    facts = {key.strip(): value.strip() for key, _, value in reversed(lines)}
    flags = facts.get("flags") or facts.get("Features") or ""
    known = [flag for flag in flags.split() if flag.startswith(INSTRUCTIONS)]
    return f"{facts.get('model name', platform.machine())}: {' '.join(known)}"
