"""`edgespec tune`: measures every source of drafts on this machine and this link, and recommends settings of a gateway.

All arms answer each prompt in turns: plain decoding, co-located k = 2, lookup, the local draft, and the draft with all
other sources; the self-draft if `local_draft.layers` names layers, heads if `sources.heads` names files; and an answer
that the draft wrote before, as for a request that waits. All run in this process: `local_draft.mode` is not compared.
The step curves of target and draft are those that a gateway measures at its start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from edgespec.core.errors import ConfigError
from edgespec.shared import folders
from edgespec.shared.address import parse_address

if TYPE_CHECKING:
    from cloud_gateway.core.requests.choices import Choices
    from cloud_gateway.core.requests.request import Usage
    from cloud_gateway.process.config import GatewaySettings
    from edgespec_lab.tune.advice import Advice, Measured

CONNECTS = 5
"""Connections whose least time is the link's round trip."""
CONNECT_S = 5.0
_TABLE = re.compile(r"^\s*\[([A-Za-z_]+)\]\s*(#.*)?\Z")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="PATH", help="gateway.toml (default: the one in ~/.config)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines: `prompt` or `turns` (default: ours)")
    parser.add_argument("--limit", type=int, default=3, help="prompts to use")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of each completion")
    parser.add_argument("--link", metavar="ADDRESS", help="wss://HOST:PORT, measured as the link between both machines")
    parser.add_argument("--rtt-ms", type=float, help="round trip of the link, where it is known")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help="write the settings to gateway.toml")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measures, shows what it recommends and why, and writes it if asked. Raises EdgespecError."""
    from cloud_gateway.parts import all_parts
    from cloud_gateway.process.config import load
    from edgespec_lab.choices import gateway_choices
    from edgespec_lab.demo import PROMPTS, read_prompts
    from edgespec_lab.tune.advice import IN_TURN, caution, queued, recommend
    from edgespec_lab.tune.arms import COMPARED

    if args.limit < 1 or args.max_tokens < 2:
        raise ConfigError("--limit takes 1 or more prompts, --max-tokens 2 or more tokens; name other numbers.")

    rtt_ms = args.rtt_ms if args.rtt_ms is not None else round_trip_ms(args.link) if args.link else None
    settings = load(args.config, all_parts())
    prompts = read_prompts(args.prompts or PROMPTS, args.limit, 1)
    choices = gateway_choices(*COMPARED)
    measured = asyncio.run(measure(settings, choices, prompts, args.max_tokens, rtt_ms))
    mode = getattr(settings.local_draft, "mode", IN_TURN)  # the key is there if a part brings it
    advice = recommend(measured, settings.local_draft.model, mode)
    if args.json:
        import msgspec

        found = {"measured": measured, "settings": advice, "queued_answers": queued(measured)}
        print(json.dumps(msgspec.to_builtins(found)))
    else:
        _show(measured, advice)
    if (warning := caution(measured)) is not None:
        print(warning, file=sys.stderr)
    if args.write:
        write(args.config or folders.config_file("gateway"), advice)
    return 0


def round_trip_ms(address: str) -> float:
    """The least time of several TCP handshakes. Raises ConfigError if the address does not take them."""
    at = parse_address(address)
    times = []
    for _ in range(CONNECTS):
        began = time.perf_counter()
        try:
            socket.create_connection((at.host, at.port), CONNECT_S).close()
        except OSError as error:
            raise ConfigError(f"--link: {address} cannot be reached ({error.strerror or error}).") from None
        times.append(1000 * (time.perf_counter() - began))

    return min(times)


async def measure(
    settings: GatewaySettings, choices: Choices, prompts: Sequence[str], max_tokens: int, rtt_ms: float | None
) -> Measured:
    """All arms on all prompts. Raises ModelError."""
    from cloud_gateway.process.loading import load_models
    from cloud_gateway.process.loading import measure as pass_curve
    from edgespec_lab.tune.advice import Measured
    from edgespec_lab.tune.arms import Arms

    console = Console(stderr=True)
    busy = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    console.print("Loading the models and measuring their steps ...")
    loaded = load_models(settings)
    curve = pass_curve(loaded.target)
    draft = loaded.local
    arms = Arms(loaded, settings, curve, choices)
    if arms.left_out:
        console.print(f"The layers of `local_draft.layers` are not measured: {arms.left_out}")
    async with arms:
        with Progress(console=console) as bar:
            task = bar.add_task("Timing the arms", total=len(arms.names) * (len(prompts) + 1))
            found = await arms.compare(prompts, max_tokens, lambda: bar.advance(task))
    usages = {name: [each[name] for each in found] for name in arms.names}
    return Measured(
        arms=per_token(usages),
        write_s=arms.written_s,
        accepted={name: share for name, used in usages.items() if (share := accepted_of(used)) is not None},
        busy=round(busy, 2),
        match=match_of(usages["colocated"]) if draft is not None else None,
        pass_ms={rows: round(1000 * seconds, 2) for rows, seconds in sorted(curve.items())},
        step_ms=None if draft is None else round(1000 * draft.step_s, 2),
        read_ms=None if draft is None else round(1000 * draft.token_s, 2),
        rtt_ms=rtt_ms,
    )


def per_token(usages: Mapping[str, Sequence[Usage]]) -> dict[str, float]:
    """Milliseconds per token by arm: plain decoding's median, times the median of an arm's share of it by prompt."""
    plain = [_ms(usage) for usage in usages["plain"]]
    shares = {
        name: median(_ms(usage) / base for usage, base in zip(found, plain, strict=True))
        for name, found in usages.items()
    }
    return {name: round(share * median(plain), 2) for name, share in shares.items()}


def accepted_of(usages: Sequence[Usage]) -> float | None:
    """Share of the candidates verified that the target emitted too; None if there were none."""
    verified = sum(sum(one.drafted.values()) for one in usages)
    accepted = sum(sum(one.accepted.values()) for one in usages)
    if verified:
        return round(accepted / verified, 3)
    return None


def match_of(usages: Sequence[Usage]) -> float | None:
    """Probability m that the draft's token is the target's, from m + m² accepted a round of two."""
    rounds = sum(one.rounds for one in usages)
    accepted = sum(one.accepted.get("local", 0) for one in usages)
    if not rounds:
        return None
    return round(min((0.25 + accepted / rounds) ** 0.5 - 0.5, 1.0), 3)


def write(path: Path, advice: Sequence[Advice]) -> None:
    """Changes the recommended keys of a gateway.toml, or makes one. Raises ConfigError, and then writes nothing."""
    from cloud_gateway.parts import all_parts
    from cloud_gateway.process.config import schema
    from edgespec.shared.settings import parse

    try:
        before = path.read_text() if path.exists() else ""
        text = rewritten(before, {one.key: one.value for one in advice})
        parse(text, schema(all_parts()), f"{path} as it would be written")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be written ({error.strerror or error}).") from None
    Console(stderr=True).print(f"{path} is written; the gateway takes it at its next start.")


def rewritten(text: str, values: Mapping[str, object]) -> str:
    """The text of a TOML file with these settings, whose comments and other keys stay as they are.

    `values`: dotted key -> text, number or list of texts; a key that is not there goes to the end of its table.
    """
    lines = list[str]()
    table = ""
    ends = dict[str, int]()
    left = dict(values)
    for line in text.splitlines():
        if found := _TABLE.match(line):
            table = found[1]
        elif "=" in line and not line.lstrip().startswith("#"):
            key = f"{table}.{line.split('=')[0].strip()}"
            if key in left:
                line = f"{key.rpartition('.')[2]} = {json.dumps(left.pop(key), ensure_ascii=False)}"
        lines.append(line)
        if line.strip():
            ends[table] = len(lines)
    for key, value in left.items():
        name, _, last = key.rpartition(".")
        if name not in ends:
            lines += ["", f"[{name}]"]
            ends[name] = len(lines)
        lines.insert(ends[name], f"{last} = {json.dumps(value, ensure_ascii=False)}")
        ends = {other: end + (end >= ends[name]) for other, end in ends.items()}

    return "\n".join(lines) + "\n"


def _show(measured: Measured, advice: Sequence[Advice]) -> None:
    from edgespec_lab.tune.advice import queued

    shown = Table("setting", "recommended", "why")
    for one in advice:
        shown.add_row(one.key, json.dumps(one.value), one.why)
    console = Console()
    console.print("milliseconds per token:", ", ".join(f"{arm} {ms:.1f}" for arm, ms in measured.arms.items()))
    if measured.accepted:
        shares = ", ".join(f"{arm} {share:.0%}" for arm, share in measured.accepted.items())
        console.print("accepted of the candidates verified:", shares)
    console.print(shown)
    if (line := queued(measured)) is not None:
        console.print(line)


def _ms(usage: Usage) -> float:
    """Milliseconds per token of the whole completion, prompt included."""
    return 1000 * usage.times.total_s / max(usage.completion_tokens, 1)
