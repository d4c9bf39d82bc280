"""The texts of the grammar's library, which quote the completion, are not passed on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from cloud_gateway.core.verify.interface import ConstraintError
from cloud_gateway.parts.structured_output.grammar import GrammarConstraint
from tests.support.canary import ANSWER, traces_of
from tests.support.tiny_tokenizer import EOS_ID, tiny_tokenizer

VOCAB = 280
ROOT = Path(__file__).parents[3]


@pytest.mark.claim("a-workers-close-reason-is-not-logged")
def test_a_grammar_that_is_too_complex_does_not_quote_the_completion() -> None:
    """llguidance names the tokens so far; its budget is made small here; a hostile schema would use it up."""
    tokenizer = Tokenizer.from_str(json.dumps(tiny_tokenizer(VOCAB).tokenizer_json()))
    tokens = LLTokenizer(tokenizer.to_str(), n_vocab=VOCAB, eos_token=[EOS_ID])
    counted = "^[a-z0-9 ]{19,200}$"  # each character is a state of its own
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "string", "pattern": counted}}})
    grammar = LLMatcher.grammar_from_json_schema(schema)
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=LLParserLimits(max_lexer_states=78))
    fresh = LLMatcher(tokens, grammar, log_level=0, limits=LLParserLimits(max_lexer_states=78))
    constraint = GrammarConstraint(matcher, lambda: fresh, VOCAB, frozenset({EOS_ID}))
    said = tokenizer.encode(f'{{"a": "{ANSWER}{ANSWER}', add_special_tokens=False).ids
    with pytest.raises(ConstraintError) as failure:
        for token in said:
            constraint(())
            constraint.committed([token])
    assert traces_of([ANSWER], matcher.get_error().replace("\u2027", "")), "the library quotes it"
    assert str(failure.value).startswith("The JSON schema cannot be followed any further")
    assert traces_of([ANSWER], str(failure.value).replace("\u2027", "")) == []
