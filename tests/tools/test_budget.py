"""The budget: density by package, the size of the core, the names that are taken twice, and who names a part."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check import budget, core

DENSE = """
def swap(pair: Pair) -> int:
    \"\"\"Documentation, which is no code line.\"\"\"
    first, second = pair  # unpacks one value

    left, right = second.value, first.value
    return left if left > right else right
"""


def test_density_counts_what_a_code_line_holds() -> None:
    counts = budget.density(DENSE)
    assert counts.code_lines == 4
    assert counts.parallel == 1
    assert counts.conditional == 1
    assert counts.tokens == 34
    assert (counts.function_lines, counts.blank_function_lines) == (5, 1)


@pytest.mark.parametrize(
    ("ceiling", "fault"),
    [
        (budget.Ceiling(8.5, 250, 250, 20), None),
        (budget.Ceiling(8.4, 250, 250, 20), "has 8.50 tokens a code line"),
        (budget.Ceiling(8.5, 249, 250, 20), "has 250.0 parallel assignments"),
        (budget.Ceiling(8.5, 250, 249, 20), "has 250.0 conditional expressions"),
        (budget.Ceiling(8.5, 250, 250, 21), "has 20.0 % blank lines"),
    ],
)
def test_a_package_denser_than_its_ceiling_is_named(ceiling: budget.Ceiling, fault: str | None) -> None:
    measured = {"edgespec/core": budget.density(DENSE)}
    faults = list(budget.faults(measured, {"edgespec/core": ceiling}))

    if fault is None:
        assert faults == []
    else:
        (sentence,) = faults
        assert sentence.startswith(f"edgespec/core {fault}")


def test_a_package_without_a_ceiling_is_held_to_that_of_new_ones() -> None:
    measured = {"edgespec/new": budget.density(DENSE)}
    assert len(list(budget.faults(measured, {}))) == 3
    assert budget.package_of(Path("edgespec/new/part/file.py")) == "edgespec/new"
    assert budget.package_of(Path("tests/edgespec/core/test_a.py")) == "tests"


def test_the_core_is_the_product_without_its_parts_and_its_lab() -> None:
    sources = {
        "cloud_gateway/api/chat.py": "x = 1\n",
        "edgespec/worker/link.py": "y = 2\n",
        "cloud_gateway/parts/__init__.py": "PARTS = ()\n",
        "cloud_gateway/parts/audit/log.py": "z = 3\n",
        "lab/edgespec_lab/rig.py": "z = 3\n",
        "tests/test_chat.py": "z = 3\n",
    }
    size = budget.core_size(sources)
    assert (size.code_lines, size.tokens) == (2, 6)


def test_a_core_above_its_ceilings_is_named() -> None:
    at_ceilings = budget.Density(code_lines=budget.MAX_CORE_LINES, tokens=budget.MAX_CORE_TOKENS)
    assert list(budget.core_faults(at_ceilings, {})) == []

    above = budget.Density(code_lines=budget.MAX_CORE_LINES + 1, tokens=budget.MAX_CORE_TOKENS + 1)
    names: dict[str, list[core.Definition]] = {f"name{number}": [] for number in range(budget.MAX_NAMES_TWICE + 1)}
    tokens, lines, twice = budget.core_faults(above, names)
    assert f"{budget.MAX_CORE_TOKENS + 1} tokens" in tokens
    assert f"{budget.MAX_CORE_LINES + 1} lines" in lines
    assert twice.startswith(f"{budget.MAX_NAMES_TWICE + 1} public names")


def test_a_public_name_that_two_modules_define_is_found() -> None:
    sources = {
        "cloud_gateway/first.py": "class Event: ...\n\ndef main(): ...\n\ndef _read(): ...\n\nclass Only: ...\n",
        "edgespec/second.py": "def main(): ...\n\ndef _read(): ...\n\nclass Event: ...\n",
        "tests/third.py": "class Only: ...\n",
    }
    assert core.taken_twice(sources) == {
        "Event": [
            core.Definition("Event", "cloud_gateway/first.py", 1),
            core.Definition("Event", "edgespec/second.py", 5),
        ]
    }


PART = core.PartFolders("key_rotation", ("edgespec/parts/key_rotation",))


@pytest.mark.parametrize(
    "line",
    [
        "from edgespec.parts import key_rotation",
        "from edgespec.parts.key_rotation.verb import rotate",
        "settings.key_rotation.interval_s",
        "class KeyRotationSection: ...",
        "raise ValueError('set [key_rotation] interval')",
        "load(f'edgespec.parts.key_rotation')",
    ],
)
def test_a_file_that_names_a_part_is_found(line: str) -> None:
    sources = {"edgespec/worker/daemon.py": f"{line}\n", "edgespec/parts/key_rotation/verb.py": f"{line}\n"}
    files = core.naming([PART], sources)
    assert files == {"key_rotation": {"edgespec/worker/daemon.py"}}
    assert len(list(core.naming_faults(files, {}))) == 1


@pytest.mark.parametrize(
    "line",
    ['"""Key rotation is a part."""', "# key_rotation", "rotation = key", "key = rotations", "monkey_rotation = 1"],
)
def test_a_file_that_only_has_the_words_of_a_part_is_not_found(line: str) -> None:
    assert core.naming([PART], {"edgespec/worker/daemon.py": f"{line}\n"}) == {"key_rotation": set()}


def test_the_list_of_parts_and_the_tests_may_name_a_part() -> None:
    line = "from edgespec.parts import key_rotation\n"
    paths = ("edgespec/parts/__init__.py", "tests/test_programs.py", "lab/edgespec_lab/rig.py")
    assert core.naming([PART], dict.fromkeys(paths, line)) == {"key_rotation": set()}


def test_an_exception_that_nothing_needs_is_a_fault() -> None:
    files = {"audit": {"cloud_gateway/serve.py"}}
    assert list(core.naming_faults(files, {"audit": frozenset({"cloud_gateway/serve.py"})})) == []

    idle = {"audit": frozenset({"cloud_gateway/serve.py", "cloud_gateway/chat.py"}), "gone": frozenset[str]()}
    file, part = core.naming_faults(files, idle)
    assert file.startswith("cloud_gateway/chat.py does not name the part audit")
    assert part.startswith("gone is no part")


def test_parts_are_the_folders_of_both_programs(tmp_path: Path) -> None:
    for folder in ("cloud_gateway/parts/relay", "edgespec/parts/relay", "edgespec/parts/doctor"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "edgespec/parts/__pycache__").mkdir()

    assert core.part_folders(tmp_path) == [
        core.PartFolders("doctor", ("edgespec/parts/doctor",)),
        core.PartFolders("relay", ("cloud_gateway/parts/relay", "edgespec/parts/relay")),
    ]
