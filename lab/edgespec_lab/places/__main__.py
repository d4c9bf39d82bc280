"""`python -m edgespec_lab.places --rtt-ms 0,20,80`: every place in one run, on the same prompts.

Plain and co-located decoding, which no link changes, are measured once for each prompt, beside the drafting
neighbour; `adaptive` with either preference at every round trip in turns with them. Each pair of place and preference
has a worker process of its own behind a proxy of its own, so that no model restarts and no calibration mixes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from edgespec.core.errors import ConfigError
from edgespec_lab import deep_target, verbs
from edgespec_lab.choices import gateway_choices
from edgespec_lab.demo.arms import BASE, COMPARED, CONTROL, LOCAL, REMOTE, Bench
from edgespec_lab.demo.scene import DRAFTS, PROMPTS, benched, make_rig, read_prompts, writing
from edgespec_lab.options import number, output, several
from edgespec_lab.places.report import show, summary
from edgespec_lab.places.series import ALONE, Asked, Place, Series, measured, neighbour_factor, save

SEARCHED_K = (1, 2, 3, 4, 5, 6, 8, 11, 16)
"""Depths tried to find the best: near the optimum the time changes little from one k to the next."""
SEARCH_TOKENS = 24
SPARE = 3
"""Prompts that are not in the table: two for the search, one for warming up."""
KEPT = 2
"""The fastest k of the search, measured on every prompt; the faster of them is the best."""
WARM_TOKENS = 32
ALONE_PROMPTS = 3
"""Prompts on which the arms without a worker also run without the neighbour; its factor is measured at the start."""
SWEPT: Mapping[str, Mapping[str, Any]] = {"balanced": REMOTE["adaptive"], "latency": REMOTE["adaptive_latency"]}
"""The arms with a worker, by name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m edgespec_lab.places", description=__doc__)
    parser.add_argument("--draft", choices=tuple(DRAFTS), default="quantised", help="which draft model")
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="torch", help="what computes the target")
    parser.add_argument("--target", choices=("plain", "deep"), default="plain", help="deep: a pass costs several times")
    parser.add_argument("--blocks", type=deep_target.BLOCKS, default=4, help="blocks for each one of the deep target")
    listed = "ONE[,ONE...]"
    parser.add_argument(
        "--rtt-ms", type=several(number(float, 0, 10_000)), default=(20.0,), help="round trips", metavar=listed
    )
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--limit", type=number(int, 1, 10**6), default=3, help="prompts to use")
    parser.add_argument("--max-tokens", type=number(int, 1, 1024), default=64, help="completion tokens of each prompt")
    parser.add_argument("--seed", type=int, default=1, help="which prompts are drawn, and in which order")
    parser.add_argument("--minutes", type=float, default=240.0, help="begin no prompt that would end later")
    parser.add_argument("--json", type=output, metavar="OUT", help="write all figures here")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep configuration, state and logs in this folder")
    parser.set_defaults(run=run)
    return verbs.run(parser, arguments)


def run(options: argparse.Namespace) -> int:
    """Measures, saves after every prompt, and shows the table; returns 0. Raises ConfigError."""
    began = time.monotonic()
    gateway_choices(*COMPARED)
    console = verbs.console()
    if options.keep:
        with writing(options.keep):
            options.keep.mkdir(parents=True, exist_ok=True)
    places = [Place(rtt_ms) for rtt_ms in options.rtt_ms]
    prompts, spare = prompts_of(options)
    setting = setting_of(options)
    with (
        tempfile.TemporaryDirectory(prefix="edgespec-demo-") as scratch,
        rigged(options, places, Path(scratch), console) as series,
    ):
        found = started(series, spare, console)
        warm = [arm for arm in arms(places, found["kept"], 0) if arm.worker]
        series.warm_up(spare[-1], WARM_TOKENS, warm)
        console.print(f"Ready after {time.monotonic() - began:.0f} s", highlight=False)
        for every in measured(
            series, prompts, options.max_tokens, lambda number: arms(places, found["kept"], number),
            began + options.minutes * 60, console,
        ):  # fmt: skip
            save(options.json, setting, every, start=found, **summary(every, places, found))
    figures = {"setting": setting, "start": found, **summary(every, places, found)}
    show(figures, console)
    return 0


def setting_of(options: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    names = ("engine", "target", "draft", "max_tokens", "seed", "rtt_ms")
    blocks = options.blocks if options.target == "deep" else 1
    return {name: getattr(options, name) for name in names} | {"blocks": blocks, "prompts": options.prompts.name}


def prompts_of(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The table's prompts, and SPARE others of the demo's own."""
    prompts = read_prompts(options.prompts, options.limit, options.seed)
    own = [prompt for prompt in read_prompts(PROMPTS, 10**6, options.seed) if prompt not in prompts]
    if len(own) < SPARE:
        raise ConfigError(f"{SPARE} of the demo's prompts are for warming up: choose a smaller --limit.")
    return prompts, own[:SPARE]


@contextmanager
def rigged(options: argparse.Namespace, places: Sequence[Place], scratch: Path, console: Console) -> Iterator[Series]:
    """Gateway, neighbour and all workers, one after the other: each measures its step time when it starts."""
    folder = options.keep or scratch
    draft = DRAFTS[options.draft]()
    target = deep_target.target_model(options, console)
    with make_rig(folder, str(target), str(draft), 0.0, engine=options.engine) as rig:
        with console.status("Starting the gateway"):
            rig.start_gateway()
            rig.create_key()
        keys = {}
        for place in places:
            for name in SWEPT:
                worker = place.arm(name)
                with console.status(f"Starting worker {worker}"):
                    keys[worker] = rig.add_worker(worker, place.rtt_ms)
        with benched(rig) as bench:
            yield Series(bench, keys)


def started(series: Series, spare: Sequence[str], console: Console) -> dict[str, Any]:
    """The neighbour's factor, and the search for the best k."""
    with console.status("Measuring the neighbour's factor"):
        factor = neighbour_factor(series.bench)
    with console.status("Searching the best k"):
        times = search(series.bench, spare[:-1])
    kept = sorted(sorted(times, key=lambda k: times[k])[:KEPT])
    return {"neighbour": factor, "search_ms": times, "kept": kept}


def search(bench: Bench, prompts: Sequence[str]) -> dict[int, float]:
    """Milliseconds per token of co-located decoding by k, sums over short completions beside the neighbour."""
    times = dict.fromkeys(SEARCHED_K, 0.0)
    for prompt in prompts:
        for k in SEARCHED_K:
            run = bench.timed(prompt, SEARCH_TOKENS, colocated(k), beside=True)
            times[k] += run.ms_per_token / len(prompts)
    return {k: round(ms, 3) for k, ms in times.items()}


def colocated(k: int) -> Mapping[str, Any]:
    """Co-located decoding with chains of k."""
    return {"policy": "colocated", "k": k}


def arms(places: Sequence[Place], kept: Sequence[int], number: int) -> list[Asked]:
    """All arms of the prompt of this number."""
    wanted = list(dict.fromkeys(("plain", BASE, *(f"colocated_k{k}" for k in kept), CONTROL)))
    asks = {**LOCAL, **{f"colocated_k{k}": colocated(k) for k in kept}}
    made = [Asked(name, asks[name]) for name in wanted]
    if number < ALONE_PROMPTS:
        made += [Asked(name + ALONE, asks[name], beside=False) for name in wanted]
    for place in places:
        made += [Asked(place.arm(name), extension, place.arm(name)) for name, extension in SWEPT.items()]

    return made


if __name__ == "__main__":
    sys.exit(main())
