"""JSON schemas as masks of allowed tokens (docs/api.md, "JSON"), with llguidance underneath.

    schema = grammars.compile({"type": "object", ...})      once per request; refuses what is not supported
    constraint = schema.constraint()                        once per completion, for `GenerationRequest.constraint`

The layout is fixed (`{"a": 1, "b": [2, 3]}`), as Python's `json.dumps` writes it: with free white space small models
indent without end, and each choice of white space would need a candidate.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.interface import ConstraintError
from cloud_gateway.models.schema_limits import MAX_SCHEMA_BYTES, check_size, finite
from cloud_gateway.models.trial import TOO_COMPLEX, Trial
from edgespec.core.errors import ClientError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_KEPT = 64
"""Schemas whose compilations or faults are cached."""
MAX_KEPT_BYTES = 8 * MAX_SCHEMA_BYTES
"""Of all cached schemas together: their compilations take some 100 times as much, so 50 MB."""
_LAYOUT = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,  # unsupported keywords are refused, also where the schema's own x-guidance would allow them
    "coerce_one_of": False,
}
COMPLEX_ANSWER = (
    "The JSON schema cannot be followed any further: its grammar has become too complex; simplify its patterns."
)
FORBIDDEN_ANSWER = "The JSON schema does not allow this answer."


def version() -> str:
    """The grammar library's version, for `system_fingerprint`."""
    from llguidance import get_version

    return str(get_version())


class Grammars:
    """Compiles schemas for one tokenizer. Used from one thread at a time."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos: frozenset[int]) -> None:
        """`tokenizer` is transformers' fast one; `vocab_size` the model's, which may have more rows."""
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, eos
        self._trial = Trial(_LAYOUT)
        self._judged: dict[bytes, tuple[int, Schema | str]] = {}
        """Size and result of the latest schemas by their digest, in the order of their last use."""

    def compile(self, schema: Mapping[str, Any], param: str = "response_format") -> Schema:
        """Raises ClientError 400 naming `param` where no value satisfies the schema, a keyword is not supported, or the
        schema is too large or too complex; 503 where the machine is too busy to find out."""
        large = check_size(schema)
        if large is not None:
            raise _refusal(param, large)
        text = json.dumps(schema)
        if len(text) > MAX_SCHEMA_BYTES:
            raise _refusal(param, f"the schema has more than {MAX_SCHEMA_BYTES} bytes")
        digest = hashlib.sha256(text.encode()).digest()
        if digest not in self._judged:
            self._judged[digest] = (len(text), self._compiled(text, schema, param))
            while len(self._judged) > MAX_KEPT or sum(size for size, _ in self._judged.values()) > MAX_KEPT_BYTES:
                self._judged.pop(next(iter(self._judged)))
        self._judged[digest] = self._judged.pop(digest)  # moves it to the end: the first ones are dropped first
        _, compiled = self._judged[digest]
        if isinstance(compiled, str):
            raise _refusal(param, compiled)
        return compiled

    def close(self) -> None:
        """Ends the process in which schemas are compiled first."""
        self._trial.close()

    def _compiled(self, text: str, schema: Mapping[str, Any], param: str) -> Schema | str:
        """The schema, or a sentence about its fault; never the library's texts, which quote the schema."""
        from llguidance import LLMatcher

        if not finite(schema):
            return "no finite value satisfies the schema, which requires itself"
        tokens, fault = self._tokens(param), self._trial.fault(text)
        if fault is not None:
            return fault
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=_LAYOUT)  # type: ignore[arg-type]
        matcher = LLMatcher(tokens, grammar, log_level=0)
        if not _mask(matcher, self._vocab_size).any():
            return TOO_COMPLEX if matcher.is_error() else "no value satisfies the schema"
        return Schema(matcher, self._vocab_size, self._eos)

    def _tokens(self, param: str) -> LLTokenizer:
        try:
            return self._ll_tokenizer
        except (AttributeError, ValueError):
            raise ClientError(
                "This model's tokenizer cannot be constrained by a grammar.", param=param, code="unsupported_model"
            ) from None

    @functools.cached_property
    def _ll_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        backend = self._tokenizer.backend_tokenizer.to_str()  # ~0.5 s for 50,000 tokens, so only when first asked
        return LLTokenizer(backend, n_vocab=self._vocab_size, eos_token=sorted(self._eos))


class Schema:
    """A compiled schema, for any number of completions at a time."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos: frozenset[int]) -> None:
        self._matcher, self._vocab_size, self._eos = matcher, vocab_size, eos

    def constraint(self) -> GrammarConstraint:
        """A new constraint for one completion."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocab_size, self._eos)


class GrammarConstraint:
    """One completion's position in its grammar, for any node of the candidate tree (`core.request.Constraint`)."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos: frozenset[int]) -> None:
        self._matcher, self._vocab_size, self._eos = matcher, vocab_size, eos
        self._ahead: list[int] = []
        """Tokens after the committed ones that the matcher has consumed; `_go_to` rolls them back."""

    def __call__(self, path: Sequence[int]) -> NDArray[np.bool_]:
        """The tokens that may follow the committed ones and `path`; end of sequence where the grammar accepts.

        Raises ConstraintError where the grammar does not allow `path`, or has grown too complex.
        """
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
        self._ahead.clear()

    def _go_to(self, path: Sequence[int]) -> None:
        common = _common(self._ahead, path)
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
        return COMPLEX_ANSWER if self._matcher.is_error() else FORBIDDEN_ANSWER


def _mask(matcher: LLMatcher, vocab_size: int) -> NDArray[np.bool_]:
    if matcher.is_error():
        return np.zeros(vocab_size, bool)
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    if matcher.is_error():  # its limits may be reached while the mask is computed
        return np.zeros(vocab_size, bool)
    return np.unpackbits(bits, count=vocab_size, bitorder="little").astype(bool)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for n, (a, b) in enumerate(zip(left, right)):
        if a != b:
            return n
    return min(len(left), len(right))


def _refusal(param: str, why: str) -> ClientError:
    return ClientError(f"Invalid '{param}': {why}.", param=param, code="invalid_value")
