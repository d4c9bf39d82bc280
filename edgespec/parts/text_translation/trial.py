"""The child process in which a worker tries the target's tokenizer; its arguments: the target's and the draft's
file, processor time (s) and memory (bytes).

A gateway chose that file, and llama.cpp ends its process if it meets a vocabulary, or a text, that it does not expect.
So the worker loads the file only after a child with limits of memory and processor time has loaded it, and has cut
texts of every kind with it. The exit code is 0 then.
"""

from __future__ import annotations

import os
import random
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from edgespec.core.errors import EdgespecError
from edgespec.parts.text_translation.gguf import MAX_TEXT, translation
from edgespec.parts.text_translation.translation import Translator

CPU_S = 30
"""Processor time of the trial. It takes 3 s on a core with the largest vocabulary in use, of 262,144 entries."""
MEMORY_BYTES = 1 << 29
"""That the trial may take beyond what Python and its libraries take; the largest vocabulary in use takes 0.25 GB."""
LOWEST_NICE = 19
UNITS = (
    "a", "A", "aB", " ", "\n", "\t", "7", "7,", "!", "'s", " a", "a ", "a1", "\u00e9", "\u0301", "\u2003", "\u2581",
    "\u6c49", "\u05d0", "\U0001f600", "\U0010ffff", "\x00", "<|x|>", "\r\n",
)  # fmt: skip
"""Texts that are repeated: letters, digits, marks, white space of several kinds, scripts without spaces, controls."""
PIECES = 4096
"""Entries of the vocabulary that are joined to a text."""
ALONE = 256
"""Entries of it that are each a text: llama.cpp compiles some patterns again for each text, which takes 1 ms."""


def texts(pair: Translator) -> Iterator[bytes]:
    """Texts that patterns, merges and byte fallback treat differently; the last ones are of the target's entries."""
    every_byte = bytes(range(256))
    yield from (bytes([byte]) for byte in every_byte)
    yield from (every_byte, every_byte[::-1], b"A trial: 1 \xc3\xa9\n\n  \t<b>")
    for unit in UNITS:
        data = unit.encode()
        yield data * (MAX_TEXT // len(data))

    chosen = random.Random(1)
    yield from (chosen.randbytes(MAX_TEXT) for _ in range(8))
    pieces = [piece for piece in pair.target.pieces if piece]
    drawn = chosen.choices(pieces, k=PIECES) if pieces else []
    yield b"".join(drawn)
    yield from drawn[:ALONE]


def limit(cpu_s: int, memory_bytes: int) -> None:
    """Limits this process: no core file, processor time, and memory beyond what it has now."""
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_NICE)
    status = Path("/proc/self/status").read_text()
    (data_kb,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:")]
    memory = (data_kb << 10) + memory_bytes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))

    # The soft limit sends SIGXCPU, which ends the process.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def main() -> int:
    """Returns 0, or the exit code of an error that the worker would meet too."""
    target, draft, cpu_s, memory_bytes = sys.argv[1:]
    limit(int(cpu_s), int(memory_bytes))
    try:
        pair = translation(Path(target), Path(draft), b"")
        assert pair is not None
        for text in texts(pair):
            pair.target.encode(text)
    except EdgespecError as error:
        return error.exit_code

    return 0


if __name__ == "__main__":
    sys.exit(main())
