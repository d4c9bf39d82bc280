"""The measured tables of the documents are those of the files in docs/results."""

from __future__ import annotations

import pytest

from tools import results


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
