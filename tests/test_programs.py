"""A missing program of the operating system fails the test that needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import DEBIAN_PACKAGES, SWITCH, require

ROOT = Path(__file__).parents[1]


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An empty PATH, and no settings of the person who runs the tests."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv(SWITCH, raising=False)
    return monkeypatch


def test_a_missing_program_fails_and_its_debian_package_is_named(nothing_installed: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.fail.Exception, match="apt-get install prometheus"):
        require("promtool")


def test_only_the_switch_of_a_developer_turns_a_failure_into_a_skip(nothing_installed: pytest.MonkeyPatch) -> None:
    nothing_installed.setenv(SWITCH, "1")
    with pytest.raises(pytest.skip.Exception, match="promtool is missing"):
        require("promtool")

    nothing_installed.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="promtool is missing"):
        require("promtool")


def test_ci_installs_every_program_and_says_that_it_is_ci() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "export CI=true" in script
    for program, package in DEBIAN_PACKAGES.items():
        assert f"command -v {program} > /dev/null || missing+=({package})" in script
