"""Text in and out: every fast, incremental path is compared with decoding or searching everything at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from cloud_gateway.api.respond import StopStrings
from cloud_gateway.models.target_model.load import load_tokenizer
from cloud_gateway.models.text import Text, in_words
from edgespec.core.errors import ClientError, ModelError
from tests.support.tiny_tokenizer import EOS_ID, tiny_tokenizer

VOCAB = 300  # every byte has a token
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(VOCAB).save(path)
    return path


@pytest.fixture(scope="module")
def text(folder: Path) -> Text:
    return Text(load_tokenizer(folder))


def sentencepiece() -> Any:
    """A tokenizer as Llama 2 and Gemma have it: ▁ for spaces, bytes for what has no token, first space dropped."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {word: len(vocab) + i for i, word in enumerate(["▁", "▁the", "a", "b", "▁b", "é", "ab"])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def wordpiece() -> Any:
    """A tokenizer whose tokens are no plain pieces of bytes."""
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "one": 1, "##s": 2, "two": 3}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def streamed(text: Text, tokens: list[int]) -> list[str]:
    out = text.detokeniser()
    return [*(out.feed(token) for token in tokens), out.flush()]


# --- detokeniser -----------------------------------------------------------------------------------------------------


@given(tokens=tokens)
def test_any_tokens_give_the_text_of_decoding_them_all_at_once(text: Text, tokens: list[int]) -> None:
    assert "".join(streamed(text, tokens)) == text.decode(tokens)


@given(words=st.text(max_size=20))
def test_characters_split_over_tokens_give_no_replacement_character(text: Text, words: str) -> None:
    tokens = [token for char in words for token in text.encode(char)]
    pieces = streamed(text, tokens)
    assert "".join(pieces) == text.decode(tokens)
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in words


def test_a_character_comes_out_with_its_last_byte(text: Text) -> None:
    tokens = text.encode("😀")
    assert len(tokens) == 4
    assert streamed(text, tokens) == ["", "", "", "😀", ""]


def test_an_unfinished_character_at_the_end_is_one_replacement_character(text: Text) -> None:
    assert streamed(text, text.encode("a😀")[:-1]) == ["a", "", "", "", "\ufffd"]


def test_special_tokens_and_tokens_outside_the_vocabulary_have_no_text(text: Text) -> None:
    assert streamed(text, [EOS_ID, VOCAB + 5, *text.encode("hi")])[:-1] == ["", "", "h", "i"]


@given(words=st.text(alphabet="ab théé😀\n", max_size=20))
def test_sentencepiece_text_is_that_of_decoding_all_at_once(words: str) -> None:
    text = Text(sentencepiece())
    tokens = text.encode(words)
    assert "".join(streamed(text, tokens)) == text.decode(tokens)


@given(tokens=st.lists(st.integers(0, 3), max_size=8))
def test_a_tokenizer_of_another_kind_is_decoded_as_a_whole(tokens: list[int]) -> None:
    text = Text(wordpiece())
    assert "".join(streamed(text, tokens)) == text.decode(tokens)


# --- stop strings ----------------------------------------------------------------------------------------------------


def cut(whole: str, strings: list[str]) -> tuple[str, bool]:
    """The slow twin: character by character, the first stop string to be complete, the longest of several."""
    for end in range(1, len(whole) + 1):
        complete = [string for string in strings if whole[:end].endswith(string)]
        if complete:
            return whole[: end - len(max(complete, key=len))], True
    return whole, False


pieces = st.lists(st.text(alphabet="ab\n", max_size=4), max_size=12)
stop_strings = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=4)


@given(pieces=pieces, strings=stop_strings)
def test_the_text_is_cut_as_if_it_had_come_in_one_piece(pieces: list[str], strings: list[str]) -> None:
    search = StopStrings(strings)
    given_out = "".join([*(search.feed(piece) for piece in pieces), search.flush()])
    assert (given_out, search.stopped) == cut("".join(pieces), strings)


@given(pieces=pieces, strings=stop_strings)
def test_the_piece_that_completes_a_stop_string_ends_the_answer(pieces: list[str], strings: list[str]) -> None:
    search = StopStrings(strings)
    for used in range(1, len(pieces) + 1):
        search.feed(pieces[used - 1])
        assert search.stopped == cut("".join(pieces[:used]), strings)[1]


@given(pieces=pieces, strings=stop_strings)
def test_nothing_is_held_back_that_cannot_become_a_stop_string(pieces: list[str], strings: list[str]) -> None:
    search = StopStrings(strings)
    given_out = ""
    fed = ""
    for piece in pieces:
        given_out = given_out + search.feed(piece)
        fed = fed + piece
        if search.stopped:
            break
        held = fed[len(given_out) :]
        assert held == "" or any(string.startswith(held) for string in strings)


def test_after_a_stop_string_nothing_more_comes() -> None:
    search = StopStrings(["END"])
    assert [search.feed("aE"), search.feed("ND b"), search.feed("c"), search.flush()] == ["a", "", "", ""]
    assert search.stopped


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_a_template_that_refuses_a_message_is_the_clients_error(text: Text) -> None:
    with pytest.raises(ClientError, match="unknown role narrator") as caught:
        text.render_chat([{"role": "narrator", "content": "hi"}])
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_a_message_without_content_is_the_clients_error(text: Text) -> None:
    with pytest.raises(ClientError, match="template refuses"):
        text.render_chat([{"role": "user", "content": None}])


ASK = [{"role": "user", "content": "hi"}]


def test_tools_stand_in_the_system_message_if_the_template_knows_none(text: Text) -> None:
    introduced, asked = in_words(ASK, [{"type": "function"}])
    assert introduced["role"] == "system" and '<tools>\n{"type": "function"}\n</tools>' in introduced["content"]
    assert text.render_chat(ASK, tools=[{"type": "function"}]) == text.render_chat([introduced, asked])


def test_a_model_without_a_chat_template_says_so() -> None:
    with pytest.raises(ClientError, match="no chat template"):
        Text(sentencepiece()).render_chat([{"role": "user", "content": "hi"}])


def test_a_missing_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        Text(load_tokenizer(tmp_path))
