"""The lists of planted faults speak of the code as it is."""

from __future__ import annotations

import pytest

from tools.mutants.__main__ import LISTS, ROOT, Mutant, read

FAULTS = [mutant for path in sorted(LISTS.glob("*.toml")) for mutant in read(path)]


@pytest.mark.parametrize("mutant", FAULTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_finds_its_text_once(mutant: Mutant) -> None:
    """Else the fault is reported as invalid, minutes into a run, and its promise is held by nobody."""
    files = [mutant.file, *(test.split("::")[0] for test in mutant.tests)]
    of_parts = [name for name in files if "/parts/" in name and not (ROOT / name).exists()]
    if of_parts:
        pytest.skip(f"{of_parts[0]} is of a part that is removed")

    source = (ROOT / mutant.file).read_text()
    assert source.count(mutant.old) == 1
    assert all((ROOT / name).exists() for name in files)
