"""The parameter `prediction`, its source of candidates, and its figures in `usage`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from cloud_gateway.api.parameters import Counter, Encode, Field, Option
from cloud_gateway.api.schema import Common
from cloud_gateway.core.sources.interface import ROOT, DraftSource, Suggestion
from cloud_gateway.core.sources.lookup import MIN_SURVIVAL, Rates
from cloud_gateway.parts.predicted_outputs.follower import Follower, Predicted

NAME = "prediction"
"""The name of the parameter, and of the source in `usage.edgespec.sources`."""
MAX_TOKENS = 16_384
"""Tokens of a prediction that are used, at some 150 bytes each."""
MAX_CHARACTERS = 8 * MAX_TOKENS
"""Of a prediction that are tokenised: it takes as long as tokenising a prompt of the same length."""
FIRST_RUN = 8
"""The beginning of a prediction is trusted like a match of so many tokens, until the completion shows otherwise."""


class ContentPart(Struct):
    """One part of the predicted content."""

    type: Literal["text"]
    text: str


class Content(Struct, forbid_unknown_fields=True):
    """`prediction`, as OpenAI has it."""

    type: Literal["content"]
    content: str | list[ContentPart]

    @property
    def text(self) -> str:
        """The whole predicted text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


FIELD = Field(Content, '{"type": "content", "content": TEXT}, the text also as a list of parts of type text')


class Prediction:
    """The `Parameter`."""

    def fields(self, body: type[Struct]) -> Mapping[str, Field]:
        if issubclass(body, Common):
            return {NAME: FIELD}
        return {}

    def read(self, values: Mapping[str, Any]) -> PredictedText:
        return PredictedText(values[NAME].text)


class PredictedText(Option):
    """The `Option` of one request."""

    def __init__(self, text: str) -> None:
        self._text = text

    def prepare(self, encode: Encode, context: int) -> PreparedPrediction:
        tokens = encode(self._text[:MAX_CHARACTERS])
        return PreparedPrediction(Predicted(tokens[: min(MAX_TOKENS, context)]), len(tokens))


class PreparedPrediction:
    """The `Prepared` of one request."""

    name = NAME

    def __init__(self, predicted: Predicted, length: int) -> None:
        """`length`: tokens of the prediction, those that are not used included."""
        self._predicted = predicted
        self._length = length

    def begin(self, prompt: Sequence[int]) -> DraftSource:
        return PredictionSource(self._predicted, len(prompt))

    def counter(self) -> Counter:
        return PredictionCounter(self._predicted, self._length)


class PredictionSource(DraftSource):
    """One completion's source: the chain of tokens that the prediction has next."""

    name = NAME

    def __init__(self, predicted: Predicted, prompt_len: int) -> None:
        self.rate = Rates()
        self.why: str | None = None
        self._follower = Follower(predicted)
        self._unread = prompt_len
        """Tokens of the prompt that are still to come."""

    def committed(self, tokens: Sequence[int]) -> None:
        """Follows the completion, and learns how often the expected token was right."""
        completion = tokens[self._unread :]
        self._unread = max(self._unread - len(tokens), 0)
        for token in completion:
            expected = self._follower.expected
            if expected is not None:
                self.rate.learn(self._trusted, right=token == expected)
            self._follower.append(token)

    def propose(self, room: int) -> Sequence[Suggestion]:
        self.why = self._refusal()
        if self.why is not None:
            return ()

        chain: list[Suggestion] = []
        survival = 1.0
        for level, token in enumerate(self._follower.ahead(room)):
            chance = self.rate(self._trusted + level)
            survival *= chance
            if survival < MIN_SURVIVAL:
                break
            chain.append(Suggestion(ROOT if level == 0 else level - 1, token, chance))

        return chain

    @property
    def _trusted(self) -> int:
        """The match in tokens by which `Rates` judges the next token."""
        beginning = self._follower.place == 0
        if beginning:
            return FIRST_RUN
        return self._follower.run

    def _refusal(self) -> str | None:
        """Why it suggests nothing now; None if it does."""
        if self._follower.expected is None:
            return "the prediction has ended"
        return self.rate.refusal(self._trusted)


class PredictionCounter:
    """`accepted_prediction_tokens` and `rejected_prediction_tokens` of one completion, as OpenAI defines them.

    They say how much of the prediction the completion has, with or without drafts.
    """

    def __init__(self, predicted: Predicted, length: int) -> None:
        self._follower = Follower(predicted)
        self._length = length

    def emitted(self, token: int) -> None:
        self._follower.append(token)

    def details(self) -> Mapping[str, int]:
        accepted = min(self._follower.right, self._length)
        return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": self._length - accepted}
