"""The count of rooms, arrows and circles, on a small package and on the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check.structure import BOUNDS, Folder, folders

ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """`top` imports `middle` (a folder of two) and `base`; `middle.inner` imports `base`, inside a function."""
    files = {
        "p/__init__.py": "",
        "p/top.py": "import p.base\nfrom p.middle import inner\nfrom os import path",
        "p/middle/__init__.py": "",
        "p/middle/inner.py": "def f():\n    from p.base import x",
        "p/middle/other.py": "from p.middle.inner import f",
        "p/base.py": "x = 1",
        "p/notes/readme.txt": "no code",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def measured(root: Path) -> dict[str, Folder]:
    return {folder.path: folder for folder in folders(root, "p")}


def test_rooms_and_arrows_are_counted_at_each_level(package: Path) -> None:
    found = measured(package)
    assert found["p"].arrows == {"base": set(), "middle": {"base"}, "top": {"base", "middle"}}
    assert found["p"].count == 3
    assert found["p/middle"].arrows == {"inner": set(), "other": {"inner"}}
    assert not any(folder.circles or list(folder.faults()) for folder in found.values())


@pytest.mark.parametrize(
    "planted",
    ["import p.top", "from p import top", "if TYPE_CHECKING:\n    from p.top import x", "from p.top import x"],
)
def test_a_planted_circle_is_found(package: Path, planted: str) -> None:
    (package / "p/middle/inner.py").write_text(planted)
    folder = measured(package)["p"]
    assert folder.circles == (("middle", "top"),)
    assert folder.back_up == ["middle -> top", "top -> middle"]
    assert "middle, top import each other" in next(folder.faults())


def test_a_circle_through_three_rooms_is_found(package: Path) -> None:
    (package / "p/base.py").write_text("import p.top")
    assert measured(package)["p"].circles == (("base", "middle", "top"),)


def test_too_many_rooms_are_a_fault(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BOUNDS, "p", 2)
    assert list(measured(package)["p"].faults()) == ["p has 3 rooms; at most 2 are allowed"]


def test_the_project_keeps_its_bounds() -> None:
    found = {folder.path: folder for folder in folders(ROOT, "edgespec", "cloud_gateway")}
    assert set(BOUNDS) <= set(found)
    assert not [fault for folder in found.values() for fault in folder.faults()]
