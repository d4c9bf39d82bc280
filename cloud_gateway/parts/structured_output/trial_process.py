"""Compiles JSON schemas one after the other, to see whether that is possible. Run by cloud_gateway/models/grammar.py.

A separate program that imports nothing of this package, so that it starts in 0.1 s and may be killed at any time.
Reads one JSON object a line: `{"grammar": "..."}`; writes one a line: `{"fault": null}`, or a sentence
of the table below. The library's own texts quote the schema or a completion, and are not passed on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sys
from typing import Any

MAX_CPU_S = 0.5
"""Processor time for one schema. An object of 1000 properties takes 0.1 s, an ordinary schema a few ms."""
MAX_MEMORY = 512 << 20
"""Bytes of address space. The program itself takes 28 MB, with the largest schemas of the tests 73 MB."""
STEPS = 16
"""Tokens of a completion that are tried."""
NICENESS = 10
"""Of this process, so that the models have priority."""
KEYWORDS = frozenset(
    "additionalItems contains contentEncoding contentMediaType contentSchema dependencies dependentRequired"
    " dependentSchemas else if maxContains maxProperties minContains minProperties not propertyNames then"
    " unevaluatedItems unevaluatedProperties uniqueItems".split()
)
"""Of JSON Schema, and not supported by every version of the library: error messages repeat only these names."""
COMPLEX = "it is too complex; use fewer alternatives, or shorter patterns"
FAULTS = (
    ("Unsatisfiable schema", "no value satisfies the schema"),
    ("Resource ", "a '$ref' leads out of the schema"),
    ("Pointer ", "a '$ref' leads to nothing in the schema"),
    ("regex parse error", "a 'pattern' is no regular expression, or one with look-around or back references"),
    ("Unknown format", "a 'format' is not known"),
    ("oneOf constraints", "the choices of a 'oneOf' do not exclude each other; use 'anyOf'"),
    ("patternProperty", "the patterns of 'patternProperties' do not exclude each other"),
    ("Invalid type", "a 'type' is not one of JSON Schema (string, number, integer, boolean, object, array, null)"),
    ("schema too large", COMPLEX),
    ("fuel exhausted", COMPLEX),
    ("Unable to determine", COMPLEX),
    ("lexer error", COMPLEX),
    ("Parser Error", COMPLEX),
    ("NoExtensionBias", "it requires itself without end"),
    ("parser error: Too many items", "it requires itself without end, or is too complex"),
    ("unknown grammar", "it refers to a grammar that is not there"),
    ("no start rule", "its rules have no 'start'"),
)
OTHER = "it is no JSON schema, or has parts that cannot be followed"
NO_GRAMMAR = "it is no grammar in llguidance's notation of Lark ('start: ...'), or has parts that cannot be followed"
NO_PATTERN = "it is no regular expression, or one with look-around or back references"
PLACE = re.compile(r"(?:at )?\d+\(\d+\): (?P<pattern>invalid regex)?")
"""The beginning of an error in rules, with their line and column."""


def main() -> None:
    """Serves until the input ends."""
    _limit()
    from llguidance import LLTokenizer

    tokenizer = LLTokenizer("byte", slices=[])  # the cost of a schema depends little on the vocabulary
    with contextlib.suppress(OSError):  # a sandbox may forbid it; then it competes with the models for 0.5 s
        os.nice(NICENESS)
    _write({"ready": True})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # SIGPROF ends the process, also during native code
        fault = _fault(tokenizer, request["grammar"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write({"fault": fault})


def _fault(tokenizer: Any, grammar: str) -> str | None:
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    if not matcher.is_error():
        if not any(matcher.compute_bitmask()) and not matcher.is_error():
            return FAULTS[0][1]
        _begin_answer(matcher)
        if not matcher.is_error():
            return None
    return _sentence(matcher.get_error())


def _begin_answer(matcher: Any) -> None:
    """Consumes the lowest allowed tokens, since some grammars become too complex with the first ones."""
    for _ in range(STEPS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if not mask or matcher.is_stopped() or not matcher.try_consume_tokens([(mask & -mask).bit_length() - 1]):
            return


def _sentence(error: str) -> str:
    if error.startswith("Unimplemented keys"):
        named = sorted(KEYWORDS & set(re.findall(r"\w+", error)))
        listed = ", ".join(f"'{name}'" for name in named)
        return f"it has keywords that cannot be followed{': ' * bool(listed)}{listed}"
    place = PLACE.match(error)
    if place is not None:
        if place["pattern"]:
            return NO_PATTERN
        return NO_GRAMMAR
    return next((sentence for start, sentence in FAULTS if error.startswith(start)), OTHER)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold the schema
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the gateway, whose end closes the input


def _write(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
