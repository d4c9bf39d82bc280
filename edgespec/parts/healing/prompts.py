"""Prompts: read from a file, rendered by the target's chat template, and which of them are held back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgespec.core.errors import ConfigError, ModelError
from edgespec.core.numbers import common_prefix
from edgespec.parts.healing.gguf import ChatTokens
from edgespec.shared.vocabfiles import gguf_metadata, vocabulary_in

MAX_PROMPT = 512
"""Tokens of a prompt; longer ones are left out."""


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file, each once: JSON lines with `prompt` or `turns`, or plain text with a prompt on each line.

    Of several turns the first is taken. Raises ConfigError.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The prompts {path} cannot be read ({error}).") from error

    prompts: list[str] = []
    for number, line in enumerate(lines, 1):
        if path.suffix == ".jsonl":
            prompts.append(_prompt_in(line, f"{path}, line {number}"))
        else:
            prompts.append(line.strip())

    found = list(
        dict.fromkeys(
            filter(
                None,
                prompts,
            )
        )
    )
    if not found:
        raise ConfigError(f"{path} has no prompts.")
    return found


def _prompt_in(line: str, place: str) -> str:
    """The prompt of one JSON line; raises ConfigError, which names the place."""
    if not line.strip():
        return ""

    try:
        entry = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{place} is no JSON ({error}).") from error

    if isinstance(entry, dict):
        turns = entry.get("turns") or [entry.get("prompt")]
        if isinstance(
            turns,
            list,
        ) and isinstance(
            turns[0],
            str,
        ):
            return turns[0].strip()
    raise ConfigError(f"{place} has neither `prompt` nor `turns`.")


def divided(
    prompts: Sequence[str],
    held_back: int,
    seed: int,
) -> tuple[list[str], list[str]]:
    """Prompts to learn from, in a drawn order, and those held back. Both depend on the seed only."""
    drawn = random.Random(seed).sample(
        list(prompts),
        len(prompts),
    )
    return drawn[held_back:], drawn[:held_back]


class Chat:
    """Chats of one turn as the target's tokens."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError for a target without a chat template, or with one that cannot be rendered."""
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        metadata = gguf_metadata(path)
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            raise ModelError(f"{path.name} has no chat template, so no chats can be rendered; choose a chat model.")

        self._path = path
        self._tokenizer = ChatTokens(path)
        self._bos = vocabulary_in(metadata, path).bos

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        self._special = {
            f"{name}_token": _entry(metadata, f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")
        }
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelError(f"The chat template of {path.name} cannot be read ({error}).") from error
        self._error = TemplateError

    def tokens(self, prompt: str) -> list[int]:
        """A chat of one turn, up to the place of the completion. Raises ModelError."""
        messages = [{"role": "user", "content": prompt}]
        try:
            text = self._template.render(
                messages=messages,
                add_generation_prompt=True,
                **self._special,
            )
        except self._error as error:
            raise ModelError(f"The chat template of {self._path.name} cannot be rendered ({error}).") from error

        found = self._tokenizer.encode(text)
        if self._bos is not None and found[:1] != [self._bos]:
            found = [self._bos, *found]
        return found

    def opening(self) -> list[int]:
        """The tokens before a user's text, after which the target writes a prompt itself."""
        first = self.tokens("A")
        other = self.tokens("7z")
        return first[: common_prefix(first, other)]

    def text(self, tokens: Iterable[int]) -> str:
        """The text of tokens; control tokens have none."""
        return self._tokenizer.decode(tokens)


def _refuse(message: str) -> None:
    """The function that templates call for chats that they do not render."""
    from jinja2 import TemplateError

    raise TemplateError(message)


def _entry(metadata: dict[str, Any], key: str) -> str:
    """The vocabulary's entry for a special token; empty if there is none."""
    token = metadata.get(key)
    if not isinstance(token, int):
        return ""
    entry: bytes = metadata["tokenizer.ggml.tokens"][token]
    return entry.decode(errors="replace")
