"""Completions of an arm as their client saw them, and the report: medians with intervals over prompts, ratios on the
same prompts, and whether texts differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edgespec_lab.places import report
from edgespec_lab.rig import RigError
from tools.bench.live.arms import ALONE, BASE, PEER, Arm

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
    text = ""
    arrivals = list[float]()
    usage = dict[str, Any]()
    timings = dict[str, Any]()
    end = 0.0
    for at, chunk in chunks:
        if "error" in chunk:
            raise RigError(f"The server broke off a completion: {chunk['error']}")
        end = at
        for choice in chunk.get("choices", ()):
            if piece := choice.get("delta", {}).get("content"):
                text += piece
                arrivals.append(at)
        usage = chunk.get("usage") or usage
        timings = chunk.get("timings") or timings
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

    drafted = int(timings.get("draft_n", 0))
    accepted = int(timings.get("draft_n_accepted", 0))
    server_ms = float(timings.get("predicted_ms", 0.0))
    passes = tokens - accepted if timings else None  # each pass gives one token of the target's besides the accepted
    read = {"passes": passes, "decoded": tokens - 1}
    return read | {"server_ms": server_ms, "drafted": drafted, "accepted": accepted}


Value = Callable[[Answer], float]


def interval(values: Sequence[float]) -> list[float]:
    """Median, and the bounds of its interval."""
    return [round(float(one), 4) for one in (np.median(values), *report.interval(values))]


@dataclass(frozen=True, slots=True)
class Runs:
    """The batches of one level of clients."""

    arms: Sequence[Arm]
    batches: Sequence[Batch]

    def of(self, arm: str) -> dict[int, Batch]:
        """By number of the prompts: the undisturbed batches, or all of them where there is none."""
        own = [one for one in self.batches if one.arm == arm]
        clean = [one for one in own if not one.disturbed]
        return {one.number: one for one in clean or own}

    def values(self, arm: str, value: Value) -> list[float]:
        return [value(one) for batch in self.of(arm).values() for one in batch.answers]

    def median(self, arm: str, value: Value) -> float:
        return float(np.median(self.values(arm, value)))

    def ratio(self, arm: str, base: str, value: Value) -> list[float] | None:
        """Of an arm to another on the same prompts, with interval; None where they share no prompt."""
        own = self.of(arm)
        other = self.of(base)
        pairs = [pair for number in own.keys() & other.keys() for pair in _pairs(own[number], other[number])]
        if pairs:
            return interval([value(one) / max(value(two), 1e-6) for one, two in pairs])
        return None

    def tokens_per_s(self, arm: str) -> float:
        """Of all clients together, over all batches."""
        own = self.of(arm).values()
        return sum(one.tokens for one in own) / max(sum(one.seconds for one in own), 1e-6)

    def same(self, arm: str, base: str) -> str | None:
        """How many texts are the base's, of those prompts that both answered (undisturbed or not)."""
        own, other = ({batch.number: batch for batch in self.batches if batch.arm == name} for name in (arm, base))
        pairs = [pair for number in own.keys() & other.keys() for pair in _pairs(own[number], other[number])]
        if pairs:
            return f"{sum(one.text == two.text for one, two in pairs)}/{len(pairs)}"
        return None

    def best(self, arms: Sequence[str], value: Value) -> str | None:
        """The fastest of these arms, found afterwards."""
        return min(arms, key=lambda arm: self.median(arm, value), default=None)


def _pairs(one: Batch, two: Batch) -> list[tuple[Answer, Answer]]:
    return list(zip(one.answers, two.answers, strict=True))


def whole(answer: Answer) -> float:
    """Milliseconds per token of the whole completion."""
    return answer.whole_ms


def decoding(answer: Answer) -> float:
    """Milliseconds per token once the prompt has been read."""
    return answer.decoding_ms


def summary(arms: Sequence[Arm], batches: Sequence[Batch], context: Mapping[str, Any]) -> dict[str, Any]:
    """All figures. Ratios are times: below 1 an arm is faster than what it is compared with."""
    levels = sorted({batch.clients for batch in batches})
    runs = {level: Runs(arms, [one for one in batches if one.clients == level]) for level in levels}
    return {
        **context,
        "bases": {level: bases(one) for level, one in runs.items()},
        "rows": [row(runs[level], arm, level) for level in levels for arm in arms],
        "prompt_tokens_agree": _prompts_agree(batches),
        "batches": [batch.figures() for batch in batches],
    }


def bases(runs: Runs) -> dict[str, str]:
    """What ratios refer to: fixed arms, and the best settings, found afterwards."""
    names = [arm.name for arm in runs.arms]
    colocated = [name for name in names if name.startswith("colocated")]
    peers = [arm.name for arm in runs.arms if arm.peer]
    found = {
        "plain": "plain" if "plain" in names else None,
        "k=2": BASE if BASE in names else None,
        ALONE: ALONE if ALONE in names else None,
        "best k": runs.best(colocated, whole),
        "best peer": runs.best(peers, whole),
    }
    return {name: arm for name, arm in found.items() if arm is not None}


def row(runs: Runs, arm: Arm, level: int) -> dict[str, Any]:
    """The figures of one arm at one level of clients."""
    own = runs.of(arm.name).values()
    every = [batch for batch in runs.batches if batch.arm == arm.name]
    answers = [one for batch in own for one in batch.answers]
    ours = "plain"
    peer = next((one.name for one in runs.arms if one.peer and not one.spec), PEER)
    passes = [one.passes for one in answers if one.passes]
    return {
        "clients": level,
        "arm": arm.name,
        "cores": "1 + 1" if arm.worker else f"{arm.cores}*" if any(one.neighbour for one in own) else str(arm.cores),
        "whole_ms": interval([whole(one) for one in answers]),
        "decoding_ms": interval([decoding(one) for one in answers]),
        "target_core_ms": interval([1000 * one.target_core_s / max(one.tokens, 1) for one in every]),
        "worker_core_ms": interval([1000 * one.worker_core_s / max(one.tokens, 1) for one in every]),
        "tokens_per_s": round(runs.tokens_per_s(arm.name), 2),
        **waits([one.times for one in answers]),
        "tokens_per_pass": round(sum(one.tokens for one in answers) / max(sum(passes), 1), 3),
        "drafts_accepted": round(sum(one.accepted for one in answers) / max(sum(one.drafted for one in answers), 1), 4),
        "ratio": {name: runs.ratio(arm.name, base, whole) for name, base in bases(runs).items()},
        "ratio_decoding": {name: runs.ratio(arm.name, base, decoding) for name, base in bases(runs).items()},
        "throughput": {
            name: round(runs.tokens_per_s(arm.name) / runs.tokens_per_s(base), 4) for name, base in bases(runs).items()
        },
        "same_text_as_plain": runs.same(arm.name, ours),
        "same_text_as_peer": runs.same(arm.name, peer),
        "undisturbed": f"{sum(not batch.disturbed for batch in every)}/{len(every)}",
        "others_share_max": round(max(batch.others_share for batch in every), 3),
        "load_max": round(max(batch.load for batch in every), 2),
    }


def _prompts_agree(batches: Sequence[Batch]) -> bool:
    """Whether all arms counted the same number of prompt tokens, so that their chat templates agree."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for batch in batches:
        found.setdefault(batch.number, set()).add(tuple(one.prompt_tokens for one in batch.answers))
    return all(len(counts) == 1 for counts in found.values())


def waits(times: Sequence[Sequence[float]]) -> dict[str, float]:
    """Percentiles of milliseconds to the first of each series of times, and between its neighbours."""
    first = [1000 * one[0] for one in times]
    between = [1000 * gap for one in times for gap in np.diff(one)]
    found = dict[str, float]()
    for name, values in (("first_ms", first), ("between_ms", between)):
        found |= {f"{name}_p{q}": float(np.percentile(values or [0.0], q)) for q in (50, 95)}
    return {name: round(value, 2) for name, value in found.items()}


CORE_TIMES = ("target_core_ms", "worker_core_ms")
COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "clients": lambda row: str(row["clients"]),
    "arm": lambda row: str(row["arm"]),
    "cores": lambda row: str(row["cores"]),
    "tokens/s": lambda row: f"{row['tokens_per_s']:.1f}",
    "whole, ms a token": lambda row: _spread(row["whole_ms"], 1),
    "decoding": lambda row: _spread(row["decoding_ms"], 1),
    "first token p50, p95": lambda row: f"{row['first_ms_p50']:.0f}, {row['first_ms_p95']:.0f}",
    "between chunks p50, p95": lambda row: f"{row['between_ms_p50']:.0f}, {row['between_ms_p95']:.0f}",
    "core ms a token": lambda row: " + ".join(f"{row[name][0]:.1f}" for name in CORE_TIMES if row[name][0]),
    "tokens a pass": lambda row: f"{row['tokens_per_pass']:.2f}",
    "text as plain, as peer": lambda row: f"{row['same_text_as_plain'] or '-'}, {row['same_text_as_peer'] or '-'}",
    "undisturbed": lambda row: str(row["undisturbed"]),
}


def _spread(values: Sequence[float] | None, digits: int) -> str:
    if values is None:
        return "-"
    median, low, high = (f"{one:.{digits}f}" for one in values)
    return f"{median} ({low}–{high})"


def _throughput(found: Mapping[str, Any]) -> list[str]:
    """What tokens per second are compared with: where several clients ask at once, waits are part of every time."""
    if max(row["clients"] for row in found["rows"]) > 1:
        return _ratios(found)
    return []


def _ratios(found: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for row in found["rows"] for name in row["ratio"]))


def markdown(found: Mapping[str, Any]) -> str:
    """All columns, and ratios of whole completions with their intervals."""
    ratios = _ratios(found)
    faster = _throughput(found)
    heads = [*COLUMNS, *(f"÷ {name}" for name in ratios), *(f"tokens/s ÷ {name}" for name in faster)]
    rows = [
        [
            *(cell(row) for cell in COLUMNS.values()),
            *(_spread(row["ratio"].get(name), 2) for name in ratios),
            *(f"{row['throughput'][name]:.2f}" if name in row["throughput"] else "-" for name in faster),
        ]
        for row in found["rows"]
    ]
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines) + "\n\n" + "\n".join(remarks(found)) + "\n"


def remarks(found: Mapping[str, Any]) -> list[str]:
    """What the table does not show."""
    lines = [
        f"With {level} client{'s' * (int(level) > 1)}, ratios refer to "
        + ", ".join(f"{arm} ({name})" if arm != name else arm for name, arm in names.items())
        + "."
        for level, names in found["bases"].items()
        if names
    ]
    if any(row["cores"].endswith("*") for row in found["rows"]):
        lines.append("*: beside a neighbour that drafts on the second core, as a worker does there.")
    if not found["prompt_tokens_agree"]:
        lines.append("Some prompts had other numbers of tokens in other arms: their chat templates differ.")
    if noisy := [row["arm"] for row in found["rows"] if row["undisturbed"].startswith("0/")]:
        lines.append(f"Other processes were busy during every batch of: {', '.join(dict.fromkeys(noisy))}.")
    return lines
