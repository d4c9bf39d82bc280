"""`python -m edgespec_lab.survey`: the measurement study of WANSpec's section 3 on the endpoints of one's own choice.

Requests a tiny streamed completion from OpenAI-compatible endpoints at a low rate, and records the durations of the TCP
handshake and to the first token. Its verb `report` computes percentiles and heat maps.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import sys
import zoneinfo
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.core.errors import ConfigError, EdgespecError
from edgespec.shared import command

if TYPE_CHECKING:
    from edgespec_lab.survey.runner import Ended

SAMPLES = Path("samples.jsonl")
_OVERRIDES = {"duration_h": "schedule.duration_h", "count": "schedule.count"}


class NoAnswerError(EdgespecError):
    """A survey ended without one answer; every request is in the file with what came instead."""

    exit_code = 69


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m edgespec_lab.survey", description=__doc__)
    config = Path("survey.toml")
    text = f"as lab/edgespec_lab/survey/survey.toml (default: {config})"
    parser.add_argument("--config", type=Path, default=config, metavar="PATH", help=text)
    text = f"samples as JSON lines; an existing file is continued (default: {SAMPLES})"
    parser.add_argument("--out", type=Path, default=SAMPLES, metavar="FILE", help=text)
    parser.add_argument("--duration-h", metavar="H", help="hours from the first sample in FILE to the end")
    parser.add_argument("--count", metavar="N", help="requests for each endpoint, those in FILE included; 0: no bound")
    parser.add_argument("--json", action="store_true", help="print JSON")
    verbs = parser.add_subparsers(dest="survey_verb", metavar="[report]", required=False)
    text = "percentiles and heat maps from files of samples"
    report = verbs.add_parser("report", help=text, description=f"{text.capitalize()}.")
    report.add_argument("files", nargs="*", type=Path, metavar="FILE", help="files of samples")
    report.add_argument(
        "--timezone", default="UTC", metavar="ZONE", help="whose hours, as Europe/London (default: UTC)"
    )
    report.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    report.set_defaults(run=run_report)
    parser.set_defaults(run=run)
    return command.run(parser.prog, lambda: parser, argv)


def run(args: argparse.Namespace) -> int:
    """Measures until the schedule or a signal ends it; returns the exit status. Raises EdgespecError."""
    from edgespec.shared.settings import load, overridden
    from edgespec_lab.survey import config
    from edgespec_lab.survey.runner import Survey, watched
    from edgespec_lab.survey.sample import SampleFile

    values = {key: getattr(args, name) for name, key in _OVERRIDES.items()}
    settings = overridden(load(args.config, config.SurveySettings), values)
    with SampleFile(args.out) as file:
        survey = Survey(settings, file)
        ended = asyncio.run(watched(survey, quiet=args.json))
    _tell(ended, file.path, as_json=args.json)
    if ended.signal is not None:
        return 128 + ended.signal
    if ended.samples and not ended.any_answer:
        raise NoAnswerError(f"No endpoint gave an answer; the verb `report` says what came instead: {file.path}.")

    return 0


def run_report(args: argparse.Namespace) -> int:
    """Prints and plots the results. Raises EdgespecError."""
    from edgespec_lab.survey import report
    from edgespec_lab.survey.analysis import series, summary
    from edgespec_lab.survey.sample import SurveyFileError, read

    zone = _zone(args.timezone)
    files = args.files or [SAMPLES]
    samples = read(files)
    if not samples:
        raise SurveyFileError(f"{files[0]}: there are no samples yet; run the survey first.")

    several = series(samples, zone)
    figures = summary(samples, several, zone)
    made = report.draw(several, figures, files[0].with_suffix(""), zone)
    if args.json:
        print(json.dumps({**figures, "plots": [str(path) for path in made]}, indent=1, ensure_ascii=False))
        return 0

    report.show(figures)
    print(f"Plots (PNG, and SVG beside them): {', '.join(map(str, made))}")
    return 0


def _zone(name: str) -> dt.tzinfo:
    """Raises ConfigError for a zone that this machine does not have."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f"--timezone is `{name}`, but must be the name of a zone, as UTC or Europe/London.") from None


def _tell(ended: Ended, path: Path, *, as_json: bool) -> None:
    outcomes = {name: dict(counter.most_common()) for name, counter in ended.outcomes.items()}
    if as_json:
        print(json.dumps({"file": str(path), "samples": ended.samples, "signal": ended.signal, "outcomes": outcomes}))
        return

    failed = ended.samples - sum(counter["ok"] for counter in ended.outcomes.values())
    print(f"{ended.samples} request{'s' * (ended.samples != 1)}, {failed} failed; the samples are in {path}.")
    if ended.signal is not None:
        print("Interrupted: the same command continues.")
    elif not ended.samples:
        print("Nothing was left to do; a longer --duration-h or a greater --count takes it further.")
    if ended.signal is None:
        print(f"See `python -m edgespec_lab.survey report {path}`.")


if __name__ == "__main__":
    sys.exit(main())
