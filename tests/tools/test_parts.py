"""The removal of parts: what goes, what stays, and that a part which something needs is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.check import parts
from tools.check.core import PartFolders

LIST = '''\
"""The list of the parts."""

from edgespec.parts import doctor, key_rotation
from edgespec.parts.relay import PART as RELAY
from edgespec.worker.part import WorkerPart

PARTS: tuple[WorkerPart, ...] = (
    doctor.PART,
    key_rotation.PART,
    RELAY,
)


def all_parts() -> tuple[WorkerPart, ...]:
    return PARTS
'''
ROTATION = PartFolders("key_rotation", ("edgespec/parts/key_rotation",))


def test_a_part_leaves_the_list_with_its_import() -> None:
    assert parts.without("key_rotation", LIST) == LIST.replace(", key_rotation", "").replace(
        "    key_rotation.PART,\n", ""
    )
    assert parts.without("relay", LIST) == LIST.replace("from edgespec.parts.relay import PART as RELAY\n", "").replace(
        "    RELAY,\n", ""
    )
    assert parts.without("audit", LIST) == LIST


def test_a_list_of_one_part_is_one_line_and_one_without_parts_is_empty() -> None:
    source = parts.without("doctor", parts.without("relay", LIST))
    assert "PARTS: tuple[WorkerPart, ...] = (key_rotation.PART,)\n" in source

    source = parts.without("key_rotation", source)
    assert "PARTS: tuple[WorkerPart, ...] = ()\n" in source
    assert "import doctor" not in source


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the part `key_rotation`, its tests and its page."""
    texts = {
        "edgespec/__init__.py": "",
        "edgespec/parts/__init__.py": "from edgespec.parts import key_rotation\nPARTS: tuple = (key_rotation.PART,)\n",
        "edgespec/parts/key_rotation/__init__.py": '"""Rotates keys (docs/rotation.md)."""\n\nPART = 1\n',
        "edgespec/core.py": "import edgespec.parts\n",
        "tests/parts/key_rotation/test_it.py": "from edgespec.parts.key_rotation import PART\ndef test(): pass\n",
        "tools/parts/key_rotation/__init__.py": "import edgespec.parts.key_rotation\n",
        "tools/parts/__init__.py": "from tools.parts import key_rotation\nTOOLS: tuple = (key_rotation.TOOL,)\n",
        "docs/rotation.md": "# Rotation\n",
        "docs/other.md": "# Other\n",
    }
    for name, text in texts.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path / "tree", check=True)
    return tmp_path / "tree"


def test_folders_tests_tools_and_the_page_of_a_part_go(tree: Path) -> None:
    parts.remove(ROTATION, tree)
    left = {path.relative_to(tree).as_posix() for path in tree.rglob("*.*") if ".git" not in path.parts}
    assert left == {
        "edgespec/__init__.py",
        "edgespec/parts/__init__.py",
        "edgespec/core.py",
        "tools/parts/__init__.py",
        "docs/other.md",
    }
    assert (tree / "tools/parts/__init__.py").read_text() == "TOOLS: tuple = ()\n"


IMPORTS = parts.Step("imports", (sys.executable, "-c", parts.IMPORT_ALL))


@pytest.mark.parametrize("needed", [False, True])
def test_a_core_that_imports_a_part_fails_without_it(tree: Path, *, needed: bool) -> None:
    if needed:
        (tree / "edgespec/core.py").write_text("import edgespec.parts.key_rotation\n")

    with parts.Tester(tree) as tester:
        removal = tester.without_part(ROTATION, [IMPORTS])
        core = tester.without_any([IMPORTS])

    assert removal.failed == core.failed == (("imports",) if needed else ())
    assert (removal.code_lines, removal.tokens) == (1, 3)
    assert "edgespec.parts.key_rotation" in removal.outcomes[0].output or not needed
    assert (tree / "docs/rotation.md").exists(), "only the copy loses the part"


def test_a_part_whose_tests_need_another_part_fails(tree: Path) -> None:
    (tree / "edgespec/parts/audit").mkdir()
    (tree / "edgespec/parts/audit/__init__.py").write_text("PART = 1\n")
    (tree / "tests/parts/audit").mkdir()
    shutil.copy(tree / "tests/parts/key_rotation/test_it.py", tree / "tests/parts/audit/test_other.py")

    with parts.Tester(tree) as tester:
        removals = [tester.without_part(part, []) for part in tester.parts]

    assert [removal.failed for removal in removals] == [("its tests, without the others",), ()]
    assert "No module named 'edgespec.parts.key_rotation'" in removals[0].outcomes[0].output
