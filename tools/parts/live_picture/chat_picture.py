"""`python -m tools.parts.live_picture.chat_picture`: README's moving picture of a chat (two minutes).

One prompt is completed three times by a gateway with its target on one core: without drafts, with its own draft, and
with a worker on the other core, behind a link of 20 ms. The target is the demo's, four times as deep: its pass then
takes as many draft steps as in real pairs. It is exact, so that all three texts have to be equal.

The events are those that the page at `/ui` receives. Each token has the colour of the machine that drafted it, and
appears when its pass ended. The picture is a scalable vector graphic that needs no script: style sheets show one pass
after another, and everything at once for a reader who asked for less motion. The seconds beside each lane are of this
one run; docs/results has the measurements.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from edgespec.core.errors import EdgespecError
from edgespec.shared import models
from edgespec_lab import deep_target, verbs
from edgespec_lab.rig import Rig

PROMPT = "Explain to a ten-year-old why the sky is blue but sunsets are red."
TOKENS = 56
RTT_MS = 20.0
SLOWER = 1.0
"""Seconds of the picture for a second of the run."""
REST_S = 4.0
"""The whole text stands still before the picture begins again."""
WAIT_S = 120.0

COLUMNS = 84
CHARACTER = 8.4
"""Width of a character of the monospaced font at 14 px, in px."""
LINE = 22
MARGIN = 24
WIDTH = int(COLUMNS * CHARACTER) + 2 * MARGIN
HEAD = 64

HUES = {"worker": "the worker", "local": "the gateway's draft", "lookup": "lookup in the text", "target": "the target"}
"""Who drafted a token: the class of its colour, and its name."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One way to complete the prompt: its title and the request's extension `edgespec`."""

    title: str
    asks: Mapping[str, Any]


LANES = (
    Lane("The server alone", {"policy": "plain"}),
    Lane("The server with a draft model of its own", {"offload": "never"}),
    Lane(f"The server and an idle workstation {RTT_MS:.0f} ms away", {}),
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a completion: its text, the class of its colour, and when its pass ended, in seconds."""

    text: str
    hue: str
    at_s: float


class Page:
    """What the page at `/ui` would receive: the events of one key's completions, read by a thread."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        self._connection.request("GET", "/ui/events", headers={"Authorization": f"Bearer {key}"})
        self._response = self._connection.getresponse()
        self._events: list[dict[str, Any]] = []
        self._ended = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def completion(self, number: int) -> list[dict[str, Any]]:
        """The events of the completion that ended as the `number`-th, from 0. Raises TimeoutError."""
        with self._ended:
            if not self._ended.wait_for(lambda: len(self._runs()) > number, WAIT_S):
                raise TimeoutError("the gateway sent no end of the completion")
            run = self._runs()[number]
            return [event for event in self._events if event.get("run") == run]

    def _runs(self) -> list[int]:
        return [event["run"] for event in self._events if event["kind"] == "end"]

    def _read(self) -> None:
        for line in self._response:
            if line.startswith(b"data: "):
                with self._ended:
                    self._events.append(json.loads(line[6:]))
                    self._ended.notify_all()


def tokens_of(events: Sequence[Mapping[str, Any]]) -> list[Token]:
    """The tokens of one completion, timed from the beginning of its first pass."""
    passes = [event for event in events if event["kind"] == "pass"]
    began = passes[0]["since"]
    tokens: list[Token] = []
    for event in passes:
        for token in event["tokens"]:
            hue = "worker" if "worker" in token else token["source"]
            tokens.append(Token(token["text"], hue, event["at"] - began))
    return tokens


def completions(options: argparse.Namespace) -> list[list[Token]]:
    """The three lanes, from a rig of real models. Raises RigError, ModelError."""
    draft = str(models.quantised())
    target = str(deep_target.target_model(options, Console(stderr=True)))
    settings = {"api.ui": True, "api.prefix_cache": False}
    with tempfile.TemporaryDirectory(prefix="edgespec-picture-") as scratch:
        rig = Rig(
            Path(scratch),
            target,
            draft,
            draft,
            exact=True,
            engine=options.engine,
            rtt_ms=RTT_MS,
            gateway_options=settings,
            cores=(0, 1),
        )
        with rig.linked() as stage:
            # The first completion teaches the policy what passes and drafts cost; it is not drawn.
            stage.chat("Write two sentences about rain.", TOKENS)
            page = Page(int(stage.ready["api"]["port"]), stage.key)
            lanes: list[list[Token]] = []
            for number, lane in enumerate(LANES):
                stage.chat(PROMPT, TOKENS, ignore_eos=True, **lane.asks)
                lanes.append(tokens_of(page.completion(number)))
            return lanes


def wrapped(tokens: Sequence[Token]) -> Iterator[tuple[int, int, Token]]:
    """Line, column and token, as many as there are, in lines of COLUMNS characters."""
    line = 0
    column = 0
    for token in tokens:
        text = token.text.replace("\n", " ")
        if column + len(text) > COLUMNS:
            line += 1
            column = 0
            text = text.lstrip()
        yield line, column, Token(text, token.hue, token.at_s)
        column += len(text)


def drawn(lanes: Sequence[Sequence[Token]]) -> str:
    """The picture as SVG."""
    shown_s = SLOWER * max(tokens[-1].at_s for tokens in lanes) + REST_S
    moments = sorted({token.at_s for tokens in lanes for token in tokens})
    lines = [f".m{number} {{ animation-name: a{number} }}" for number in range(len(moments))]
    for number, at_s in enumerate(moments):
        percent = 100 * SLOWER * at_s / shown_s
        lines.append(
            f"@keyframes a{number} {{ 0%, {percent:.3f}% {{ opacity: 0 }} {percent + 0.01:.3f}% {{ opacity: 1 }} }}"
        )

    body: list[str] = []
    top = HEAD
    for lane, tokens in zip(LANES, lanes, strict=True):
        end = moments.index(tokens[-1].at_s)
        body.append(f'<text class="title" x="{MARGIN}" y="{top}">{escape(lane.title)}</text>')
        body.append(
            f'<text class="title m m{end}" x="{WIDTH - MARGIN}" y="{top}" text-anchor="end">'
            f"{tokens[-1].at_s:.2f} s</text>"
        )
        last = 0
        for line, column, token in wrapped(tokens):
            body.append(_token(token, line, column, top, moments.index(token.at_s)))
            last = line
        body.append(_legend(tokens, top + (last + 2) * LINE))
        top += (last + 4) * LINE

    height = top - LINE
    times = ", ".join(f"{lane.title}: {tokens[-1].at_s:.2f} s" for lane, tokens in zip(LANES, lanes, strict=True))
    size = f'width="{WIDTH}" height="{height}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
    return "\n".join(
        [
            f'{opening} aria-label="{escape(f"A chat in three lanes. {times}")}">',
            f"<style>{STYLE}.m {{ animation-duration: {shown_s:.2f}s }}\n{chr(10).join(lines)}</style>",
            f'<rect class="paper" {size} rx="12"/>',
            f'<text class="prompt" x="{MARGIN}" y="{HEAD - 30}">{escape(PROMPT)}</text>',
            *body,
            "</svg>\n",
        ]
    )


def _token(token: Token, line: int, column: int, top: int, moment: int) -> str:
    x = MARGIN + column * CHARACTER
    y = top + (line + 1) * LINE
    width = len(token.text) * CHARACTER
    tint = f'<rect class="tint" x="{x:.1f}" y="{y - 15}" width="{width:.1f}" height="19"/>'
    place = f'x="{x:.1f}" y="{y}" textLength="{width:.1f}"'
    text = f'<text class="token" {place} xml:space="preserve">{escape(token.text)}</text>'
    return f'<g class="m m{moment} {token.hue}">{tint}{text}</g>'


def _legend(tokens: Sequence[Token], y: int) -> str:
    """How many tokens each machine drafted."""
    counts = Counter(token.hue for token in tokens)
    x = MARGIN
    parts: list[str] = []
    for hue, name in HUES.items():
        if counts[hue]:
            text = f"{counts[hue]} by {name}"
            parts.append(f'<g class="{hue}"><rect class="mark" x="{x}" y="{y - 9}" width="10" height="10" rx="3"/></g>')
            parts.append(f'<text class="legend" x="{x + 16}" y="{y}">{escape(text)}</text>')
            x += 16 + int(len(text) * 6.6) + 22
    return "".join(parts)


STYLE = """
.paper { fill: #fffefb; stroke: #dedad0 } .prompt { fill: #1c2430; font: 600 16px system-ui, sans-serif }
.title { fill: #596273; font: 600 13px system-ui, sans-serif }
.legend { fill: #596273; font: 12px system-ui, sans-serif }
.token { fill: #1c2430; font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace }
.tint { fill: var(--c); opacity: .2 } .mark { fill: var(--c) }
.worker { --c: #1d62d1 } .local { --c: #d07a1c } .lookup { --c: #08737d } .target { --c: #b9b5aa }
.m { animation-iteration-count: infinite; animation-timing-function: linear }
@media (prefers-color-scheme: dark) {
.paper { fill: #171c25; stroke: #2b3340 } .prompt, .token { fill: #e9e6dd } .title, .legend { fill: #9aa4b4 }
.worker { --c: #75a9ff } .local { --c: #f5a95e } .lookup { --c: #56d3da } .target { --c: #7d8797 }
.tint { opacity: .3 } }
@media (prefers-reduced-motion: reduce) { .m { animation: none } }
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.parts.live_picture.chat_picture", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/figures/chat.svg"), metavar="FILE")
    parser.set_defaults(run=write, engine="torch", target="deep", blocks=4)
    return verbs.run(parser, arguments)


def write(options: argparse.Namespace) -> int:
    """Completes, then draws. Raises EdgespecError."""
    lanes = completions(options)
    texts = {"".join(token.text for token in tokens) for tokens in lanes}
    if len(texts) > 1:
        raise EdgespecError("The three texts differ; the target is exact, so this is a fault: report it.")

    options.out.write_text(drawn(lanes), encoding="utf-8")
    for lane, tokens in zip(LANES, lanes, strict=True):
        print(f"{lane.title}: {len(tokens)} tokens in {tokens[-1].at_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
