"""Texts of peers and libraries are logged as labels: close reasons, `Bye`, undecodable frames, grammars."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from cloud_gateway.core.verify.interface import ConstraintError
from cloud_gateway.models.grammar import GrammarConstraint
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.handshake import REASONS, shown
from edgespec.core.protocol.session import Timers
from tests.support.canary import ANSWER, PROMPT, traces_of
from tests.support.links import client, serving
from tests.support.tiny_tokenizer import EOS_ID, tiny_tokenizer
from tests.support.until import until

VOCAB = 280
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@pytest.mark.claim("a-workers-close-reason-is-not-logged")
async def test_a_workers_close_reason_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, timers=Timers(handshake_s=5)) as gateway:
        async with client(gateway) as worker:
            await worker.ws.close(4400, PROMPT[:60])
        await until(lambda: gateway.seen.of("down"))
    assert "closed by the other side (4400 another reason)" in caplog.text
    assert traces_of([PROMPT], ours(caplog)) == []
    assert traces_of([PROMPT], str(gateway.seen.calls)) == []


def ours(caplog: pytest.LogCaptureFixture) -> str:
    """The records of our own loggers; of libraries' records the log shows no text (test_logs.py)."""
    return "\n".join(one.getMessage() for one in caplog.records if one.name.startswith(("edgespec", "cloud_gateway")))


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


def test_every_label_with_which_we_end_a_link_may_be_logged() -> None:
    """A label that is not in the list would be shown as "another reason" on the other side."""
    used = set()
    kinds = ("RemoteProtocolError", "Bye", "shape_error")
    sources = [path.read_text() for top in ("edgespec", "cloud_gateway") for path in (ROOT / top).rglob("*.py")]
    for source in (one for one in sources if any(kind in one for kind in kinds)):
        for node in ast.walk(ast.parse(source)):
            kind = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if kind in kinds:
                label = next(iter(node.args), None)  # type: ignore[attr-defined]
                if isinstance(label, ast.Constant) and isinstance(label.value, str):
                    used.add(f"shape-{label.value}" if kind == "shape_error" else label.value)
    used |= {f"shape-{kind}" for kind in m.Shape}
    assert len(used) > 20
    assert used <= REASONS
    assert {shown(label) for label in used} == used
    assert (shown(""), shown(PROMPT)) == ("no reason", "another reason")
