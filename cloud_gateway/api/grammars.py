"""The seam of grammars: a parameter asks for one, the API has it compiled, and the engine asks its constraint.

    grammar = Grammar({"type": "object", ...}, "response_format")   by an `Option` (parameters.py), with each request
    grammar = Grammar("start: @a | @b", "tools", {"a": {...}, "b": {...}})   rules with schemas in them
    constraints = grammars.compile(grammar, scope)                  once for each request, on a thread of its own
    constraint = constraints()                                      once for each completion, on the event loop

`Constraint` (core/verify/interface.py) says what the engine asks of it. A gateway has at most one `GrammarEngine`,
which a part brings; without one every grammar is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cloud_gateway.core.verify.interface import Constraint

Rules = dict[str, Any] | str
"""A JSON schema, or rules in llguidance's notation of Lark, of which `start` is the text."""
Constraints = Callable[[], Constraint]
"""Makes the constraint of one more completion."""
LAYOUT = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,  # unsupported keywords are refused, also if the schema's own x-guidance would allow them
    "coerce_one_of": False,
}
"""The layout of JSON, that of Python's `json.dumps`: with free white space small models indent without end."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form that a completion must have."""

    root: Rules
    param: str
    """The parameter that asks for it, which errors name."""
    named: Mapping[str, Rules] = field(default_factory=dict)
    """Further rules, to which `root` refers as `@name`."""


class Grammars(Protocol):
    """Compiles grammars for one tokenizer. The API calls it on one thread, and `close` on the event loop."""

    def compile(self, grammar: Grammar, scope: bytes) -> Constraints:
        """Compiles a grammar, or finds it among those that were compiled for the same cache scope.

        Raises ClientError 400 that names the grammar's parameter, or 503 if the machine is too busy.
        """

    def close(self) -> None:
        """Ends compilations at once."""


class GrammarEngine(Protocol):
    """Makes the compiler of a gateway. `process/loading.py` calls it in a thread, once the tokenizer is loaded."""

    def version(self) -> str:
        """The version of the library, a part of `system_fingerprint`."""

    def make(self, tokenizer: Any, vocab_size: int, eos: frozenset[int]) -> Grammars:
        """`tokenizer`: transformers' fast one. `vocab_size`: of the model, which may have more rows than its tokenizer
        has tokens. `eos`: the tokens that end a completion.
        """
