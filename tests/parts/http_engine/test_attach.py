"""`cloud-gateway attach`: what it finds out of servers that can do everything, little, or nothing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from cloud_gateway.parts import http_engine
from cloud_gateway.parts.http_engine import HttpSection, attach
from cloud_gateway.parts.http_engine.attach import ServerReport, configuration, tried
from cloud_gateway.parts.http_engine.verb import AttachVerb, attach_command
from cloud_gateway.process.config import load
from edgespec.core.errors import ConfigError, ModelError
from tests.parts.http_engine.served import CONTEXT, NAME, Manners, serving


@pytest.fixture(autouse=True)
def small_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token ids that the server's small vocabulary has."""
    monkeypatch.setattr(attach, "FIRST_TOKEN", 1)
    monkeypatch.setattr(attach, "SPREAD", 30)
    monkeypatch.setattr(attach, "SIZES", (1, 2, 5))


async def found_at(manners: Manners) -> ServerReport:
    with serving(manners) as running:
        return await tried(running.url)


async def test_a_server_with_everything_is_priced() -> None:
    found = await found_at(Manners(token_s=0.03, call_s=0.01, row_s=0.01, fresh_s=0.5))
    assert (found.model, found.context, found.dialect) == (NAME, CONTEXT, "openai")
    assert found.tokens_by_id and found.lists and found.cached and not found.scores
    assert found.token_ms >= 30
    assert found.call_ms[5] > found.call_ms[1] + 10
    shown = "\n".join(found.lines())
    assert "Drafts pay there if a drafted token is right at least" in shown and "lists of prompts yes" in shown


async def test_rows_that_cost_as_much_as_tokens_do_not_pay() -> None:
    found = await found_at(Manners(token_s=0.01, call_s=0.01, row_s=0.05, fresh_s=0.5))
    assert found.lists and "drafts do not pay there" in found.verdict()


async def test_without_a_prefix_cache_the_verdict_says_so() -> None:
    found = await found_at(Manners(call_s=0.3))
    assert not found.cached and "prefix caching" in found.verdict()


async def test_a_server_of_texts_alone_can_compute_no_target() -> None:
    found = await found_at(Manners(ids=False))
    assert not found.tokens_by_id and "answers with text alone" in "\n".join(found.lines())


async def test_a_server_without_a_tokenizer_can_compute_no_target() -> None:
    with pytest.raises(ModelError, match="no token ids"):
        await found_at(Manners(tokenizes=False))


async def test_a_server_without_lists_decodes_by_its_stream() -> None:
    found = await found_at(Manners(lists=False))
    assert found.tokens_by_id and not found.lists and "drafts are of no use" in "\n".join(found.lines())


async def test_where_nothing_answers_is_one_sentence() -> None:
    with pytest.raises(ModelError, match="does not answer .*start the server first"):
        await tried("http://127.0.0.1:9")


def test_the_configuration_is_one_that_the_gateway_reads(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    key = tmp_path / "key"
    path.write_text(configuration("http://gpu:8000", tmp_path / 'a "model"', key, ServerReport("m", "openai", 2048, 3)))
    settings = load(path, [http_engine.PART])
    assert (settings.target.engine, settings.target.context, settings.target.slots) == ("http", 2048, 3)
    assert settings.of(HttpSection) == HttpSection(url="http://gpu:8000", key_file=str(key))
    assert settings.target.model == str(tmp_path / 'a "model"') and settings.local_draft.model == ""


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    AttachVerb().add(parser.add_subparsers())
    return parser.parse_args(["attach", *arguments])


def test_mistakes_are_found_before_the_server_is_asked(tmp_path: Path) -> None:
    there = tmp_path / "gateway.toml"
    there.write_text("")
    mistakes = {
        "is no URL": ["gpu:8000"],
        "is there already": ["http://127.0.0.1:9", "--model", str(tmp_path), "--output", str(there)],
        "names a file with the key": ["http://127.0.0.1:9", "--key-file", str(tmp_path / "none")],
        "names a folder or a GGUF file": ["http://127.0.0.1:9", "--model", str(tmp_path / "none")],
    }
    for sentence, arguments in mistakes.items():
        with pytest.raises(ConfigError, match=sentence):
            attach_command(options(*arguments))


def test_the_verb_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gateway.toml"
    with serving(Manners(token_s=0.001)) as running:
        assert attach_command(options(running.url, "--model", str(tmp_path), "--output", str(out))) == 0
        assert "written:" in capsys.readouterr().out and running.url in out.read_text()
        assert attach_command(options(running.url, "--json")) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["model"] == NAME and figures["least_right"]["1"] is None


def test_the_key_goes_to_the_server(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    with serving(Manners(key="secret")) as running:
        assert attach_command(options(running.url, "--key-file", str(key))) == 0
        with pytest.raises(ModelError, match="check `target.url` and its key"):
            attach_command(options(running.url))


def test_how_often_a_drafted_token_has_to_be_right() -> None:
    found = ServerReport("m", "openai", 2048, token_ms=10.0, call_ms={1: 10.0, 2: 12.0, 5: 15.0})
    right = found.least_right(5)
    assert right is not None
    assert sum(right**level for level in range(1, 5)) == pytest.approx(15 / 9.5 - 1, abs=0.01)
    assert found.least_right(1) is None
