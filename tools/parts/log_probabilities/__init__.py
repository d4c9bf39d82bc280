"""Bodies that ask for log-probabilities, and a check of each reading, for `python -m tools.fuzz`."""

from __future__ import annotations

from cloud_gateway.parts.log_probabilities.rows import MIN_LOGPROB, RowLogprobs

CHAT = (
    b'{"model":"fuzz","messages":[{"role":"user","content":"hi","audio":null}],"n":2,"logprobs":true,"top_logprobs":2,'
    b'"modalities":["text"],"user":"u","suffix":""}'
)
ROUNDING_NATS = 1e-6


def check_reading(reading: object) -> None:
    """Raises AssertionError for a value that JSON does not have, or that is no log-probability."""
    if isinstance(reading, RowLogprobs):
        values = [reading.logprob, *(value for _, value in reading.top)]
        assert all(MIN_LOGPROB <= value <= ROUNDING_NATS for value in values), f"log-probabilities {values}"
