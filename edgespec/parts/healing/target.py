"""The target as a teacher: it writes completions greedily in llama.cpp, and shows its most probable tokens.

Prompts are rows of one batch, so that the target's weights are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.llamacpp.context import Context, Row
from edgespec.parts.healing.prompts import MAX_PROMPT, Chat
from edgespec.shared.vocabfiles import gguf_metadata

RANKS = 64
"""Tokens of each distribution that are kept, the most probable ones; the others count as one."""
MAX_INVENTED = 64
INVENTED_P = 0.95
"""Most tokens of a prompt that the target writes, and the share of probability from which they are drawn (top-p)."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A prompt and the target's completion of G tokens, with its distributions there."""

    tokens: NDArray[np.int32]
    """Prompt and completion."""
    ranked: NDArray[np.int32]
    """[G, RANKS]: the most probable tokens, best first; the first one is the completion's."""
    log_probs: NDArray[np.float32]
    """[G, RANKS]: of these tokens, in nats."""

    @property
    def written(self) -> int:
        """G."""
        return len(self.ranked)

    @property
    def prompt(self) -> list[int]:
        return [int(token) for token in self.tokens[: -self.written]]

    @property
    def completion(self) -> list[int]:
        return [int(token) for token in self.tokens[-self.written :]]


class Teacher:
    """A local target."""

    def __init__(
        self,
        path: Path,
        *,
        together: int,
        max_tokens: int,
        threads: int,
    ) -> None:
        """`together`: most completions written at once. Raises ModelError."""
        metadata = gguf_metadata(path)
        keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
        self.chat = Chat(path)
        self.together = together
        self.max_tokens = max_tokens
        self._ends = frozenset(int(metadata[key]) for key in keys if key in metadata)
        longest = MAX_PROMPT + max(max_tokens, MAX_INVENTED)
        self._llama = Context(
            path, cells=together * longest, sequences=together, batch=512, threads=threads, outputs=together
        )
        self._ranks = min(RANKS, self._llama.vocab_size)

    def close(self) -> None:
        """Frees the model."""
        self._llama.close()

    def complete(self, prompts: Sequence[Sequence[int]]) -> list[Passage]:
        """Greedy completions of at most `max_tokens`, with the token that ends one. Raises ModelError."""
        texts = [list(prompt) for prompt in prompts]
        ranked: list[list[NDArray[np.int32]]] = [[] for _ in prompts]
        log_probs: list[list[NDArray[np.float32]]] = [[] for _ in prompts]

        going = self._begin(texts)
        logits = self._read(texts, going)
        while going:
            places, values = best(logits, self._ranks)
            for row, number in enumerate(going):
                ranked[number].append(places[row])
                log_probs[number].append(values[row])
                texts[number].append(int(places[row, 0]))

            going = [
                number
                for number in going
                if not self._over(
                    texts[number],
                    len(ranked[number]),
                    self.max_tokens,
                )
            ]
            if going:
                logits = self._step(texts, going)

        return [
            Passage(
                np.array(text, np.int32),
                np.stack(places),
                np.stack(values),
            )
            for text, places, values in zip(
                texts,
                ranked,
                log_probs,
                strict=True,
            )
        ]

    def invent(self, seed: int) -> list[str]:
        """Prompts that the target writes after the opening of a user's turn (Magpie), at most `together`.

        Empty ones are left out. Raises ModelError.
        """
        draw = np.random.default_rng(seed)
        opening = self.chat.opening()
        texts = [list(opening) for _ in range(self.together)]

        going = self._begin(texts)
        logits = self._read(texts, going)
        while going:
            for row, number in enumerate(going):
                texts[number].append(
                    drawn(
                        logits[row],
                        draw,
                    )
                )
            going = [
                number
                for number in going
                if not self._over(
                    texts[number],
                    len(texts[number]) - len(opening),
                    MAX_INVENTED,
                )
            ]
            if going:
                logits = self._step(texts, going)

        prompts = [self.chat.text(text[len(opening) :]) for text in texts]
        return [prompt for prompt in prompts if prompt]

    def _begin(self, texts: Sequence[Sequence[int]]) -> list[int]:
        """Forgets what was read; returns the numbers of all texts."""
        for number in range(self.together):
            self._llama.trim(number, 0)
        return list(range(len(texts)))

    def _read(
        self,
        texts: Sequence[Sequence[int]],
        going: Sequence[int],
    ) -> NDArray[np.float32]:
        """Logits after each text, [n, vocabulary], valid until the next pass."""
        rows: list[Row] = []
        for number in going:
            last = len(texts[number]) - 1
            rows += [
                Row(
                    token,
                    place,
                    (number,),
                    place == last,
                )
                for place, token in enumerate(texts[number])
            ]
        self._llama.decode(rows)
        return self._llama.all_logits(len(going))

    def _step(
        self,
        texts: Sequence[Sequence[int]],
        going: Sequence[int],
    ) -> NDArray[np.float32]:
        """Reads the last token of each text; logits as of `_read`."""
        self._llama.decode(
            [
                Row(
                    texts[number][-1],
                    len(texts[number]) - 1,
                    (number,),
                    True,
                )
                for number in going
            ]
        )
        return self._llama.all_logits(len(going))

    def _over(
        self,
        text: Sequence[int],
        written: int,
        most: int,
    ) -> bool:
        return written >= most or text[-1] in self._ends


def best(logits: NDArray[np.float32], count: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The most probable tokens of each row, best first, and their log-probabilities: [n, count] each."""
    greatest = logits.max(1, keepdims=True)
    total = (
        np.log(
            np.exp(logits - greatest).sum(
                1,
                keepdims=True,
            )
        )
        + greatest
    )

    places = np.argpartition(
        logits,
        -count,
        axis=1,
    )[:, -count:]
    values = np.take_along_axis(logits, places, 1)
    order = np.argsort(
        -values,
        axis=1,
        kind="stable",
    )
    places = np.take_along_axis(places, order, 1)
    values = np.take_along_axis(values, order, 1)
    return places.astype(np.int32), (values - total).astype(np.float32)


def drawn(logits: NDArray[np.float32], draw: np.random.Generator) -> int:
    """A token by its probability, of the fewest that have INVENTED_P together."""
    places, log_probs = best(
        logits[None],
        min(1024, len(logits)),
    )
    probabilities = np.exp(log_probs[0].astype(np.float64))
    before = np.cumsum(probabilities) - probabilities
    probabilities[before >= INVENTED_P] = 0
    chosen = draw.choice(
        len(probabilities),
        p=probabilities / probabilities.sum(),
    )
    return int(places[0, chosen])
