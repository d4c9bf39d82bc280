"""The measured tables of the documents are those of the files in docs/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab import test_places as test_sweep
from tools import results


def figures() -> dict[str, Any]:
    found = test_sweep.figures(18.0, 20.0, 22.0)
    found["setting"] |= {"rtt_ms": [0.0, 80.0], "max_tokens": 48}
    return found | {"runs": [{"plain": "many lines"}]}


def only_20ms() -> dict[str, Any]:
    found = figures()
    rows = [row | {"rtt_ms": 20.0} for row in found["rows"]]
    return found | {"setting": found["setting"] | {"rtt_ms": [20.0]}, "rows": rows, "prompts": 99}


def test_the_pages_show_what_docs_results_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert results.main(["--check"]) == 0, capsys.readouterr().out


def test_every_page_has_results_with_their_commit_and_machine() -> None:
    found = results.read(results.RESULTS)
    assert set(found) == {page.kind for page in results.PAGES.values()}
    for page in results.PAGES.values():
        text = results.page(page, found[page.kind])
        for one in found[page.kind]:
            measured = one["measured"]
            assert f"({results.name_of(one)}) | {measured['commit']} | {measured['machine']} |" in text


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (figures(), "places-deep-quantised.json"),
        (only_20ms(), "places-deep-quantised-20ms.json"),
    ],
)
def test_a_result_is_kept_with_its_runs_beside_it_and_shown(made: dict[str, Any], name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text(json.dumps(made))
    taken = results.take(out, tmp_path / "results", "1234567", "two cores")
    assert taken.name == name and "runs" not in json.loads(taken.read_text())
    (run,) = taken.with_suffix(".runs.jsonl").read_text().splitlines()
    assert json.loads(run) == {"commit": "1234567", "prompt": 0, "arm": "plain", "run": "many lines"}
    ((kind, found),) = results.read(taken.parent).items()
    (page,) = (one for one in results.PAGES.values() if one.kind == kind)
    shown = results.page(page, found)
    assert f"| [{name}]({name}) | 1234567 | two cores |" in shown
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in rows if "---" in line}) <= 3
