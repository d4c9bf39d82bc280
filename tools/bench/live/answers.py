"""What one completion took, as its client saw it, and as the server reports it: the same for ours and for peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgespec.lab.rig import RigError

DISTURBED = 0.15
"""A batch is disturbed when other processes used more than this share of one core meanwhile."""


@dataclass(slots=True)
class Answer:
    """One completion. Times are seconds since its request was sent."""

    text: str
    tokens: int
    prompt_tokens: int
    times: list[float]
    """Arrival of each chunk with text; a pass's tokens are one chunk of ours, and each one of its own of the peer's."""
    total_s: float
    passes: int | None
    """Passes of the target, where the server reports them or what follows from them."""
    server_ms: float
    """Milliseconds of decoding by the server's own clock, for `decoded` tokens."""
    decoded: int
    """Ours from the end of the prompt's reading; the peer's from its first token, which its prompt's pass gives."""
    drafted: int
    accepted: int
    sent_s: float = 0.0
    """Seconds after its batch began: the threads of the clients do not begin at once."""

    @property
    def decoding_ms(self) -> float:
        """Milliseconds per token once the prompt has been read."""
        return self.server_ms / max(self.decoded, 1)

    @property
    def whole_ms(self) -> float:
        """Milliseconds per token of the whole completion, with its prompt."""
        return 1000 * self.total_s / max(self.tokens, 1)


@dataclass(slots=True)
class Batch:
    """Completions that one arm made at the same time."""

    arm: str
    clients: int
    number: int
    """Of the prompts, counted over all levels."""
    answers: list[Answer]
    seconds: float
    others_share: float
    """Core time of other processes, over the time of the batch."""
    load: float
    """Load average of the machine at its start."""
    neighbour: bool
    target_core_s: float = 0.0
    """Core time of the gateway, or of the peer; unlike the times it hardly depends on what else runs."""
    worker_core_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Of all completions."""
        return sum(one.tokens for one in self.answers)

    @property
    def disturbed(self) -> bool:
        return self.others_share > DISTURBED

    @property
    def tokens_per_s(self) -> float:
        """Of all clients together, prompts included."""
        return self.tokens / max(self.seconds, 1e-6)

    def figures(self) -> dict[str, Any]:
        """For JSON: everything but the texts."""
        own = {name: value for name, value in asdict(self).items() if name != "answers"}
        return own | {"answers": [_plain(one) for one in self.answers]}


def _plain(answer: Answer) -> dict[str, Any]:
    found = asdict(answer)
    del found["text"]
    times = {name: round(found[name], 4) for name in ("total_s", "sent_s")}
    return found | times | {"times": [round(one, 4) for one in answer.times]}


def read(chunks: Iterable[tuple[float, Mapping[str, Any]]]) -> Answer:
    """One completion from its chunks, each with the second at which it came. Raises RigError where it is incomplete."""
    text, arrivals, usage, timings, end = "", list[float](), dict[str, Any](), dict[str, Any](), 0.0
    for at, chunk in chunks:
        if "error" in chunk:
            raise RigError(f"The server broke off a completion: {chunk['error']}")
        end = at
        for choice in chunk.get("choices", ()):
            if piece := choice.get("delta", {}).get("content"):
                text += piece
                arrivals.append(at)
        usage, timings = chunk.get("usage") or usage, chunk.get("timings") or timings
    if not usage or not arrivals:
        raise RigError("The server sent a completion without text or without its usage.")
    tokens = int(usage["completion_tokens"])
    return Answer(text, tokens, int(usage["prompt_tokens"]), arrivals, end, **_reported(usage, timings, tokens))


def _reported(usage: Mapping[str, Any], timings: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Passes, time and drafts, of `usage.edgespec` or of llama-server's `timings`."""
    if ours := usage.get("edgespec"):
        drafted, accepted = (sum(ours[name].values()) for name in ("drafted", "accepted"))
        server_ms = float(ours["timings_ms"]["decode"])
        own = {"passes": int(ours["rounds"]), "decoded": tokens}
        return own | {"server_ms": server_ms, "drafted": drafted, "accepted": accepted}
    drafted, accepted = int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0))
    server_ms = float(timings.get("predicted_ms", 0.0))
    passes = tokens - accepted if timings else None  # each pass gives one token of the target's besides the accepted
    read = {"passes": passes, "decoded": tokens - 1}
    return read | {"server_ms": server_ms, "drafted": drafted, "accepted": accepted}
