"""What a long prompt cost the streams beside it: from the traces of the gateway, and what the clients received.

Times are seconds of the monotonic clock, which is one for all processes of a machine. A token without text sends no
event, so tokens and the gaps between them are the gateway's; the longest gap at a client stands beside them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from cloud_gateway.core.trace.format import AnyEvent, Decided, Drafted, Step, Verified

Events = Sequence[AnyEvent]
"""Of one request."""
GAP_MS, RATIO = 1500, 0.5
"""Goals: longest gap of the streams on two cores; their tokens per second beside the prompt, over those alone."""


def beside(
    streams: Sequence[Events], prompt: Events, received: Sequence[Sequence[float]], sent: float
) -> dict[str, float]:
    """Gaps, chunk and round in milliseconds, and tokens per second of all streams together.

    `received`: when each client of a stream got its events; `sent`: when the long prompt was sent. "alone" is the time
    from the first token of every stream until then, "beside" the time until the first token of the long prompt.
    """
    rounds = [[event for event in events if isinstance(event, Verified)] for events in streams]
    made = [[event.now for event in one] for one in rounds]
    began, read = max(one[0] for one in made), next(event.now for event in prompt if isinstance(event, Verified))
    chunk_tokens, chunk_s = max(chunks([*streams, prompt], prompt, sent), key=lambda chunk: chunk[1], default=(0, 0.0))
    alone, meanwhile = _rate(rounds, began, sent), _rate(rounds, sent, read)
    return {
        "alone_tokens_per_s": round(alone, 2),
        "beside_tokens_per_s": round(meanwhile, 2),
        "ratio": round(meanwhile / max(alone, 1e-6), 3),
        "gap_alone_ms": _ms(_alone(made, began, sent)),
        "gap_ms": _ms(_beside(made, sent, read)),
        "client_gap_alone_ms": _ms(_alone(received, began, sent)),
        "client_gap_ms": _ms(_beside(received, sent, read)),
        "chunk_ms": _ms(chunk_s),
        "chunk_tokens": chunk_tokens,
        "round_ms": _ms(max((s for one in streams for at, s in _rounds(one) if sent < at <= read), default=0.0)),
    }


def chunks(every: Sequence[Events], prompt: Events, since: float) -> list[tuple[int, float]]:
    """Tokens and seconds of each chunk of the long prompt: since what the engine did before, for any request."""
    moments = sorted(
        event.now for events in every for event in events if isinstance(event, Decided | Step | Drafted | Verified)
    )
    found = []
    for event in prompt:
        if isinstance(event, Step) and event.what == "Prefilled":
            found.append((event.value, event.now - max(moments[bisect_left(moments, event.now) - 1], since)))
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The worst of all repetitions, and one chunk plus one round."""
    return {
        "ratio_min": min(row["ratio"] for row in rows),
        "gap_ms_max": max(row["gap_ms"] for row in rows),
        "client_gap_ms_max": max(row["client_gap_ms"] for row in rows),
        "chunk_and_round_ms": max(round(row["chunk_ms"] + row["round_ms"], 1) for row in rows),
    }


NAMES = {
    "tokens of the prompt": "prompt_tokens",
    "its first token alone (s)": "first_alone_s",
    "beside the streams (s)": "first_beside_s",
    "tokens/s of the streams alone": "alone_tokens_per_s",
    "beside the prompt": "beside_tokens_per_s",
    "ratio": "ratio",
    "longest gap alone (ms)": "gap_alone_ms",
    "beside the prompt (ms)": "gap_ms",
    "at the client alone (ms)": "client_gap_alone_ms",
    "at the client beside the prompt (ms)": "client_gap_ms",
    "longest chunk (ms)": "chunk_ms",
    "its tokens": "chunk_tokens",
    "longest round beside the prompt (ms)": "round_ms",
    "streams with the same text": "same_texts",
    "other processes (cores)": "others_share",
}
"""Lines of the table, and the figures that they show."""


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each figure, a column for each repetition."""
    return [
        {"repetition": head, **{str(number): row[name] for number, row in enumerate(rows, 1)}}
        for head, name in NAMES.items()
    ]


def markdown(rows: Sequence[Mapping[str, Any]], remark: str) -> str:
    """For a document."""
    lines = table(rows)
    cells = [[*lines[0]], ["---"] * len(lines[0]), *([str(cell) for cell in line.values()] for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + f"\n\n{remark}\n"


def _rounds(events: Events) -> list[tuple[float, float]]:
    """When each round of a request ended, and how long after its decision."""
    found, decided = [], 0.0
    for event in events:
        if isinstance(event, Decided):
            decided = event.now
        elif isinstance(event, Verified):
            found.append((event.now, event.now - decided))
    return found


def _rate(rounds: Sequence[Sequence[Verified]], begin: float, end: float) -> float:
    tokens = sum(len(event.tokens) for one in rounds for event in one if begin < event.now <= end)
    return tokens / max(end - begin, 1e-6)


def _alone(series: Sequence[Sequence[float]], begin: float, end: float) -> float:
    """The longest gap that lies between these times."""
    return max((b - a for times in series for a, b in pairwise(times) if begin <= a and b <= end), default=0.0)


def _beside(series: Sequence[Sequence[float]], begin: float, end: float) -> float:
    """The longest gap that has a part between these times."""
    return max((b - a for times in series for a, b in pairwise(times) if b > begin and a < end), default=0.0)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
