"""The check of the wheel: which commands the pages show, and the versions that it installs."""

from __future__ import annotations

from tools.check.wheel.__main__ import commands, shown, verb_path
from tools.check.wheel.place import lower_bounds


def test_a_shown_command_is_known_by_its_program_and_verbs() -> None:
    (words,) = commands("$ cloud-gateway workers expire lab-7 90d    # or never")
    assert verb_path(words) == ("cloud-gateway", "workers", "expire")
    assert verb_path(["edgespec", "config", ">", "worker.toml"]) == ("edgespec", "config")
    assert not list(commands("make demo")) and not list(commands(""))


def test_the_pages_show_what_operators_and_lab_admins_type() -> None:
    found = shown()
    assert {("edgespec", "pair"), ("edgespec", "run"), ("cloud-gateway", "keys", "create")} <= found


def test_lowest_versions_are_those_of_every_extra_but_development() -> None:

    bounds = {one.partition("==")[0] for one in lower_bounds()}
    assert {"rich", "torch", "dbus-fast", "nvidia-ml-py"} <= bounds and bounds.isdisjoint({"pytest", "matplotlib"})
    assert all("==" in one for one in lower_bounds())
