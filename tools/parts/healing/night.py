"""`python -m tools.parts.healing.night TARGET DRAFT`: nights between rounds of questions, from which a draft learns.

The target answers questions of three courses in rounds. Two students of `shell` (manual pages of commands) and two of
`python` (docstrings) consented to learning; `libc` (manual pages of functions) is the control: nothing is learnt from
it, and the draft of `shell` drafts for it. Each round shows how often the draft as it came and the one kept so far are
right on the new answers, before these are stored. Then the worker's trainer runs for a night: until both courses have
had a trial, or N minutes. In the middle night the owner comes back.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import inspect
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from edgespec.core.errors import ConfigError
from edgespec.parts.healing.collector import Collected
from edgespec.parts.healing.measuring import measured_both
from edgespec.parts.healing.prompts import divided
from edgespec.parts.healing.store import (
    DRAFT,
    MIN_TEXTS,
    KeptLimits,
    LearningStore,
    read_learnt,
    scope_name,
    texts_of,
)
from edgespec.parts.healing.target import Passage, Teacher
from edgespec.parts.healing.trainer import Trainer
from edgespec.shared.procstat import schedstat_s
from edgespec.shared.vocabfiles import gguf_vocabulary

LEARNING = ("shell", "python")
COURSES = (*LEARNING, "libc")
QUESTIONS = 16
"""Asked of a course in a round; two drafts are measured on MEASURED of them."""
MEASURED = 8
MODULES = (
    "os shutil json csv random re statistics string textwrap itertools functools collections pathlib datetime heapq"
)
MANY = "gcloud"
"""Commands of one program that has thousands of pages."""
NAME = re.compile(r'\.SH "?NAME"?\n(?:\.[^\n]*\n)*([^\n]+) \\?- ([^\n]+)')


def questions(course: str) -> Iterator[str]:
    """A question for each page or function that is installed here."""
    if course == "python":
        for module in map(import_module, MODULES.split()):
            for name, function in inspect.getmembers(module, callable):
                first = (inspect.getdoc(function) or "").partition("\n")[0]
                yield f"What does {module.__name__}.{name} do in Python, and how is it used? Its first line is: {first}"
        return

    section = {"shell": "1", "libc": "3"}[course]
    for path in sorted(Path(f"/usr/share/man/man{section}").glob(f"*.{section}.gz")):
        if path.name.startswith(MANY):
            continue

        page = gzip.decompress(path.read_bytes()).decode(errors="replace") if path.is_file() else ""
        if named := NAME.search(page):
            yield f"What is {named[1]} for, and how is it used? Its manual page says: {named[2]}".replace("\\", "")


class Night:
    """The courses, a target that answers, and a worker's store and trainer."""

    def __init__(self, folder: Path, target: Path, draft: Path, max_tokens: int) -> None:
        self.folder = folder
        self.draft = draft
        self.teacher = Teacher(target, together=QUESTIONS, max_tokens=max_tokens, threads=1)
        self.tokenizer = gguf_vocabulary(draft).digest
        self.store = LearningStore(folder, b"g" * 32, KeptLimits(2**26, 14))
        self.away = True
        self.trainer = Trainer(folder, lambda: draft, lambda: self.away, ThreadPoolExecutor(1))

    def answered(self, prompts: list[str]) -> list[Passage]:
        return self.teacher.complete([self.teacher.chat.tokens(prompt) for prompt in prompts])

    def right(self, course: str, passages: list[Passage]) -> tuple[float, float]:
        """How often the draft as it came, and the one that learnt, are right."""
        learnt = self.folder / scope_name(LEARNING[0] if course not in LEARNING else course) / DRAFT
        as_it_came, kept = measured_both(
            self.draft, learnt if learnt.exists() else self.draft, passages[:MEASURED], threads=1
        )
        return as_it_came.right, kept.right

    def keep(self, course: str, passages: list[Passage]) -> None:
        """Stores the texts of two students in turns."""
        for number, passage in enumerate(passages):
            key = f"{course:x<7}{number % 2}"
            text = Collected(key, course, passage.tokens.tolist(), len(passage.prompt))
            self.store.add(text, self.tokenizer)

    async def over(self, longest_s: float, *, interrupted: bool) -> None:
        """Ends when each course that has enough texts has had a trial, or after so many seconds."""
        began = time.time()
        scopes = [self.folder / scope_name(course) for course in LEARNING]
        due = [scope for scope in scopes if len(list(texts_of(scope))) >= MIN_TEXTS]
        while time.time() < began + longest_s and not all(tried_since(scope, began) for scope in due):
            await asyncio.sleep(0.5)
            if interrupted and self.trainer.pid is not None and schedstat_s(self.trainer.pid, 0) > 10:
                interrupted = False
                print(f"the owner is back: silent after {await self.silence():.2f} s", flush=True)

    async def silence(self) -> float:
        """Seconds from the owner's return until the process has computed for the last time."""
        pid = self.trainer.pid
        assert pid is not None
        back = silent = time.monotonic()
        computed = schedstat_s(pid, 0)
        self.away = False
        while self.trainer.pid == pid and time.monotonic() < back + 20:
            await asyncio.sleep(0.01)
            latest = schedstat_s(pid, 0)
            if latest > computed:
                computed = latest
                silent = time.monotonic()
        self.away = True
        return silent - back


def tried_since(scope: Path, began: float) -> bool:
    trial = read_learnt(scope)
    return trial is not None and trial.time >= int(began)


async def run(args: argparse.Namespace, folder: Path) -> None:
    """Prints a row for each round."""
    night = Night(folder, args.target, args.draft, args.max_tokens)
    count = args.rounds * QUESTIONS
    asked = {course: divided(list(dict.fromkeys(questions(course))), count, 1)[1] for course in COURSES}
    if min(map(len, asked.values())) < count:
        raise ConfigError("too few manual pages are installed here: install manpages-dev, or ask for fewer --rounds.")

    began = time.monotonic()
    training = asyncio.ensure_future(night.trainer.run())
    print("| minute | round |" + "".join(f" {course}, as it came | learnt |" for course in COURSES))
    print("| --- |" + " --- |" * (1 + 2 * len(COURSES)), flush=True)
    for number in range(args.rounds):
        row = f"| {(time.monotonic() - began) / 60:.1f} | {number + 1} |"
        for course in COURSES:
            prompts = asked[course][number * QUESTIONS : (number + 1) * QUESTIONS]
            passages = await asyncio.to_thread(night.answered, prompts)
            as_it_came, learnt = await asyncio.to_thread(night.right, course, passages)
            row += f" {as_it_came:.3f} | {learnt:.3f} |"
            if course in LEARNING:
                night.keep(course, passages)
        print(row, flush=True)
        if number + 1 < args.rounds:
            await night.over(60 * args.night, interrupted=number == args.rounds // 2)
    training.cancel()
    await asyncio.gather(training, return_exceptions=True)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--night", type=float, default=8.0, metavar="MINUTES", help="longest time between rounds")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(args, Path(folder) / "learning"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
