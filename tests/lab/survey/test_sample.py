"""The file of samples: whole lines only, whatever interrupts the writing, and no other file is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec_lab.survey.sample import Sample, SampleFile, SurveyFileError, read


def sample(at: float = 1.0, **fields: object) -> Sample:
    return Sample(v=1, at=at, source="here", endpoint="e", model="m", outcome="ok", **fields)


@pytest.mark.parametrize("kept", [1, 7, 20, -1])
def test_half_a_line_that_an_interruption_left_is_passed_over_and_cut_off(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "s.jsonl"
    with SampleFile(path) as file:
        file.append(sample(1.0))
        file.append(sample(2.0))
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:kept])
    assert read([path]) == [sample(1.0)]
    with SampleFile(path) as file:
        assert file.earlier == [sample(1.0)]
        file.append(sample(3.0))
    assert read([path]) == [sample(1.0), sample(3.0)]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"my only copy of something", 1),
        (b"{}\n", 1),
        (b'{"v":1,"at":1.0}\n', 1),
        (b"\n", 1),
        (b"\xff\n", 1),
        (b'{"v":2,"at":1.0,"source":"s","endpoint":"e","model":"m","outcome":"ok"}\n', 1),
        (b'{"v":1,"at":1.0,"source":"s","endpoint":"e","model":"m","outcome":"fine"}\n', 1),
        (b'{"v":1,"at":1.0,"source":"\\u001b[31m","endpoint":"e","model":"m","outcome":"ok"}\n', 1),
        (b'{"v":1,"at":1.0,"source":"s","endpoint":"e","model":"m","outcome":"ok","ttft_ms":-1}\n', 1),
        (b'{"v":1,"at":1.0,"source":"s","endpoint":"e","model":"m","outcome":"ok"}\nx\n', 2),
    ],
)
def test_another_kind_of_file_is_refused_with_its_line_and_kept(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(content)
    for use in (lambda: read([path]), lambda: SampleFile(path)):
        with pytest.raises(SurveyFileError, match=f"line {line}: this is no sample") as error:
            use()
        assert error.value.exit_code == 65
    assert path.read_bytes() == content
