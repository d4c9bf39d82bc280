"""Grammars as masks of allowed tokens (docs/api.md, "JSON"), with llguidance underneath.

    schema = grammars.compile(Grammar({"type": "object", ...}, param), scope)   once per request; refuses what is not
                                                                                supported
    constraint = schema()                           once per completion, for `GenerationRequest.constraint` (masks.py)
    constraint = schema.constraint()                its slow twin, which computes each mask when it is asked for

The layout of JSON is fixed (`{"a": 1, "b": [2, 3]}`), as Python's `json.dumps` writes it: with free white space small
models indent without end, and each choice of white space would need a candidate.

A schema is checked twice before it is compiled here: `check_schema` counts its nodes and depth in linear time, and
`Trial` compiles it in a process that may be killed, since the time of a compilation has no bound. A grammar cannot be
passed from one process to another, so it is compiled again only if that succeeded, at the same cost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.api.grammars import LAYOUT, Grammar, Rules
from cloud_gateway.core.verify.interface import Constraint, ConstraintError
from cloud_gateway.parts.structured_output.masks import Lane, MasksBeside
from edgespec.core.errors import ClientError, EdgespecError, refusal
from edgespec.core.numbers import common_prefix
from edgespec.shared.log_text import Throttle

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


log = logging.getLogger("cloud_gateway.parts.structured_output")

PROGRAM = Path(__file__).with_name("trial_process.py")
MAX_WAIT_S = 30.0
"""For one schema, and so how long one may hold up others. Its processor time is limited in the process itself (0.5 s);
this is for a machine so busy that it does not get that much."""
MAX_START_S = 60.0
MAX_REPLY_BYTES = 4096
TOO_COMPLEX = "it is too complex; use fewer alternatives, or shorter patterns"


class TrialError(EdgespecError):
    """The process for schemas cannot be started; the installation is broken, or the machine has no memory."""


class Trial:
    """One such process, started at the first use, and again after it had to be killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._noted = Throttle()

    def fault(self, grammar: str) -> str | None:
        """The fault of a grammar, as the end of a sentence; None where it can be compiled.

        Raises ClientError 503 where the machine was too busy to find out, and TrialError.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._kill()  # it ended between two schemas, maybe killed by the operator
            process = self._process or self._start()
            line = json.dumps({"grammar": grammar}).encode() + b"\n"
            with suppress(OSError):  # it has ended: then there is no reply
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
            try:
                reply = _reply(process, MAX_WAIT_S)
            except TimeoutError:
                self._kill()
                sentence = "The gateway is too busy to compile a JSON schema just now; send the request again shortly."
                raise ClientError(sentence, status=503, code="overloaded", retry_after_s=MAX_WAIT_S) from None
            if reply is not None:
                return reply["fault"]
            self._kill()
            more = self._noted.admit(process.returncode, time.monotonic())  # any API key can provoke this line
            if more is not None:
                log.info("a JSON schema was refused: its compilation ended with status %d", process.returncode)
            return TOO_COMPLEX

    def close(self) -> None:
        """Ends the process at once, also during a compilation; the next schema would start another."""
        process = self._process
        if self._lock.acquire(blocking=False):
            self._kill()
            self._lock.release()
        elif process is not None:
            process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        """Isolated (-I): it uses nothing of the environment but the installed packages."""
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError as error:
            raise TrialError(f"The process that compiles JSON schemas does not start ({error.strerror}).") from error
        with suppress(TimeoutError):
            if _reply(process, MAX_START_S) is not None:
                return process
        self._kill()
        raise TrialError("The process that compiles JSON schemas does not start; reinstall the package llguidance.")

    def _kill(self) -> None:
        process = self._process
        self._process = None
        if process is not None:
            process.kill()
            process.communicate()


def _reply(process: subprocess.Popen[bytes], max_s: float) -> dict[str, Any] | None:
    """The next line; None where the process ends first. Raises TimeoutError after `max_s`."""
    assert process.stdout is not None
    data, waiting, ends_at = b"", select.poll(), time.monotonic() + max_s  # not select(): 1024 descriptors at most
    waiting.register(process.stdout, select.POLLIN)
    while not data.endswith(b"\n") and len(data) < MAX_REPLY_BYTES:
        if not waiting.poll(max(0.0, ends_at - time.monotonic()) * 1e3):
            raise TimeoutError
        chunk: bytes = process.stdout.read1(MAX_REPLY_BYTES)  # type: ignore[attr-defined]
        if not chunk:
            return None
        data += chunk
    reply: dict[str, Any] = json.loads(data)
    return reply


MAX_SCHEMA_BYTES = 64 * 1024
MAX_NODES = 1024
"""Objects and lists. An object of so many properties takes 0.15 s; llguidance supports about 500 optional ones."""
MAX_DEPTH = 64
"""Objects and lists within each other. llguidance reads 127 levels."""


def check_schema(schema: Any) -> str | None:
    """The bound that a schema exceeds, as the end of a sentence; None where it exceeds none."""
    nodes = 0
    level = [schema]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for node in level:
            inner += [part for part in _parts(node) if isinstance(part, Mapping | list)]
            if nodes + len(inner) > MAX_NODES:
                return f"the schema has more than {MAX_NODES} objects and lists; ask for less at once"
        if not inner:
            return None
        nodes = nodes + len(inner)
        level = inner

    return f"the schema is nested more than {MAX_DEPTH} levels deep; move inner parts to '$defs'"


def _parts(node: Any) -> Iterator[Any]:
    return iter(node.values() if isinstance(node, Mapping) else node)


MAX_KEPT = 64
"""Schemas whose compilations or faults are cached."""
MAX_KEPT_BYTES = 8 * MAX_SCHEMA_BYTES
"""Of all cached schemas together: their compilations take some 100 times as much, so 50 MB."""
MAX_SHARE = 4
"""One scope holds at most the fourth part of both, so that no key displaces all schemas of others."""
COMPLEX_ANSWER = (
    "The JSON schema cannot be followed any further: its grammar has become too complex; simplify its patterns."
)
FORBIDDEN_ANSWER = "The JSON schema does not allow this answer."


def library_version() -> str:
    """The grammar library's version, for `system_fingerprint`."""
    from llguidance import get_version

    return str(get_version())


class GuidedGrammars:
    """Compiles schemas for one tokenizer. Used from one thread at a time."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos: frozenset[int]) -> None:
        """`tokenizer` is transformers' fast one; `vocab_size` the model's, which may have more rows.

        Takes ~1 s for 50,000 tokens.
        """
        self._vocab_size = vocab_size
        self._eos = eos
        self._tokens = _ll_tokenizer(tokenizer, vocab_size, eos)
        self._trial = Trial()
        self._judged: dict[tuple[bytes, bytes], tuple[int, Schema | str]] = {}
        """Size and result of the latest schemas by scope and digest, in the order of their last use."""
        self._lanes: WeakValueDictionary[bytes, Lane] = WeakValueDictionary()
        """By scope, as long as a schema of it is kept or used."""

    def compile(self, grammar: Grammar, scope: bytes = b"") -> Schema:
        """Compiles the grammar, or finds it.

        Raises ClientError 400 naming its parameter if no text satisfies it, a keyword is not supported, or it is too
        large or too complex; 503 if the machine is too busy to find out.

        What was compiled or refused before is found within the same `scope` only: the time would show it to others.
        """
        large = oversize(grammar)
        if large is not None:
            raise refusal(grammar.param, large)

        text = written(grammar)
        name = scope, hashlib.sha256(text.encode()).digest()
        if name not in self._judged:
            self._judged[name] = (len(text), self._compiled(text, scope, grammar.param))
            self._make_room([one for one in self._judged if one[0] == scope], MAX_SHARE)
            self._make_room(list(self._judged), 1)
        self._judged[name] = self._judged.pop(name)  # moves it to the end: the first ones are dropped first
        _, compiled = self._judged[name]
        if isinstance(compiled, str):
            raise refusal(grammar.param, compiled)

        return compiled

    def _make_room(self, names: Sequence[tuple[bytes, bytes]], share: int) -> None:
        """Drops the first of these schemas while they hold more than one `share`-th of what may be kept."""
        size = sum(self._judged[name][0] for name in names)
        for number, name in enumerate(names[:-1]):
            if len(names) - number <= MAX_KEPT // share and size <= MAX_KEPT_BYTES // share:
                break
            size -= self._judged.pop(name)[0]

    def close(self) -> None:
        """Ends the process in which schemas are compiled first."""
        self._trial.close()

    def _compiled(self, text: str, scope: bytes, param: str) -> Schema | str:
        """The schema, or a sentence about its fault; never the library's texts, which quote the schema."""
        from llguidance import LLMatcher

        tokens = self._tokens
        if tokens is None:
            raise ClientError(
                "This model's tokenizer cannot be constrained by a grammar.", param=param, code="unsupported_model"
            )

        fault = self._trial.fault(text)
        if fault is not None:
            return fault

        make = partial(LLMatcher, tokens, text, log_level=0)
        matcher = make()
        if not _mask(matcher, self._vocab_size).any():
            if matcher.is_error():
                return TOO_COMPLEX
            return "no value satisfies the schema"

        lane = self._lanes.setdefault(scope, Lane())
        return Schema(matcher, make, lane, self._vocab_size, self._eos)


def oversize(grammar: Grammar) -> str | None:
    """The bound that a grammar exceeds, as the end of a sentence; None if it exceeds none."""
    if isinstance(grammar.root, str):
        schemas: Any = [rules for rules in grammar.named.values() if not isinstance(rules, str)]
    else:
        schemas = grammar.root
    large = check_schema(schemas)
    if large is not None:
        return large

    if len(json.dumps(schemas)) > MAX_SCHEMA_BYTES:
        return f"the schema has more than {MAX_SCHEMA_BYTES} bytes"
    return None


def written(grammar: Grammar) -> str:
    """The grammar in llguidance's notation; the first of the list is what a completion follows."""
    name = "start" if isinstance(grammar.root, str) else "json"
    listed = [_listed(name, grammar.root)]
    for name, rules in grammar.named.items():
        listed.append(_listed(name, rules))
    return json.dumps({"grammars": listed})


def _listed(name: str, rules: Rules) -> dict[str, Any]:
    if isinstance(rules, str):
        return {"name": name, "lark_grammar": rules}
    return {"name": name, "json_schema": {**rules, "x-guidance": LAYOUT}}


def _ll_tokenizer(tokenizer: Any, vocab_size: int, eos: frozenset[int]) -> LLTokenizer | None:
    """None where the tokenizer cannot be constrained."""
    from llguidance import LLTokenizer

    try:
        return LLTokenizer(tokenizer.backend_tokenizer.to_str(), n_vocab=vocab_size, eos_token=sorted(eos))
    except (AttributeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Schema:
    """A compiled schema, for any number of completions at a time."""

    _matcher: LLMatcher
    _make: Callable[[], LLMatcher]
    _lane: Lane
    _vocab_size: int
    _eos: frozenset[int]

    def constraint(self) -> GrammarConstraint:
        """A new constraint for one completion."""
        return GrammarConstraint(self._matcher.deep_copy(), self._make, self._vocab_size, self._eos)

    def __call__(self) -> MasksBeside:
        """The same, computed on the thread of the schema's scope. Copies of a matcher share a lock, so that none of
        them may be used elsewhere meanwhile."""
        return MasksBeside(self.constraint, self._lane)


class GrammarConstraint(Constraint):
    """One completion's position in its grammar, for any node of the candidate tree.

    A grammar may become too complex by what candidates explored. Then a fresh matcher takes over, which saw the
    committed tokens only: so whether a completion ends with that error depends on its own tokens alone.
    """

    def __init__(self, matcher: LLMatcher, make: Callable[[], LLMatcher], vocab_size: int, eos: frozenset[int]) -> None:
        """`make` compiles the grammar again."""
        self._matcher = matcher
        self._make = make
        self._vocab_size = vocab_size
        self._eos = eos
        self._tokens: list[int] = []
        """Committed, without an end of sequence."""
        self._ahead: list[int] = []
        """Tokens after the committed ones that the matcher has consumed; `_go_to` rolls them back."""

    def __call__(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """The tokens that may follow the committed ones and `path`; end of sequence where the grammar accepts.

        Raises ConstraintError where the grammar does not allow `path`, or has grown too complex.
        """
        self._go_to(path)
        allowed = _mask(self._matcher, self._vocab_size)
        if self._matcher.is_error():
            self._go_to(path)
            allowed = _mask(self._matcher, self._vocab_size)
        if not allowed.any():
            raise ConstraintError(self._fault())

        return allowed

    def allowed(self, path: Sequence[int]) -> int:
        """How many tokens of `path`, in a row, may follow the committed ones; it stops before an end of sequence.

        A candidate for the end saves no pass: the completion ends with the pass that chooses it.
        """
        self._go_to(())
        end = next((i for i, token in enumerate(path) if token in self._eos), len(path))
        return int(self._matcher.validate_tokens(list(path[:end])))

    def forced(self, path: Sequence[int]) -> Sequence[int]:
        """The tokens, split as a tokenizer would, of the only text that the grammar allows after `path`."""
        if self.allowed(path) < len(path):
            return ()
        self._go_to(path)
        return self._matcher.compute_ff_tokens()

    def committed(self, tokens: Sequence[int]) -> None:
        """Moves on by committed tokens. Raises ConstraintError where the grammar does not allow them."""
        ended = bool(tokens) and tokens[-1] in self._eos  # a matcher at its end does not consume it
        self._go_to(tokens[:-1] if ended else tokens)
        self._tokens += self._ahead
        self._ahead.clear()

    def _go_to(self, path: Sequence[int]) -> None:
        if self._matcher.is_error():
            self._matcher = self._make()
            self._ahead = []
            self._matcher.try_consume_tokens(self._tokens)
        common = common_prefix(self._ahead, list(path))
        back = len(self._ahead) - common
        if back:
            self._matcher.rollback(back)
            del self._ahead[common:]
        fresh = list(path[common:])
        taken = self._matcher.try_consume_tokens(fresh) if fresh else 0
        self._ahead += fresh[:taken]
        if taken < len(fresh):
            raise ConstraintError(self._fault())

    def _fault(self) -> str:
        """One of two fixed texts: the library's own quotes the completion."""
        if self._matcher.is_error():
            return COMPLEX_ANSWER
        return FORBIDDEN_ANSWER


def _mask(matcher: LLMatcher, vocab_size: int) -> NDArray[np.bool_]:
    if matcher.is_error():
        return np.zeros(vocab_size, bool)
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    if matcher.is_error():  # its limits may be reached while the mask is computed
        return np.zeros(vocab_size, bool)
    return np.unpackbits(bits, count=vocab_size, bitorder="little").astype(bool)
