"""Models of a hub, with the real client against a server of this machine; every failure is a sentence."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgespec.core.errors import ModelError
from edgespec.shared.hub import fetch_from_hub, hub_place
from edgespec.shared.models import model_dir, resolve_model

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "README.md": b"not wanted",
    "original/model.safetensors": b"not wanted",
    "small.gguf": b"GGUF",
}
COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as the client asks for: `good/model` and `bare/gguf`, the latter without a config."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        _, *parts = self.path.split("?")[0].split("/")
        if parts[0] == "api" and parts[2:4] in (["good", "model"], ["bare", "gguf"]):
            names = FILES if parts[2] == "good" else ["small.gguf"]
            found = [
                {"type": "file", "path": name, "rfilename": name, "size": len(FILES[name]), "oid": "0" * 40}
                for name in names
            ]
            self._send(
                json.dumps(found if "tree" in parts else {"id": "x/y", "sha": COMMIT, "siblings": found}).encode()
            )
        elif parts[:2] == ["good", "model"] and "/".join(parts[4:]) in FILES:
            self._send(FILES["/".join(parts[4:])])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound" if parts[:2] != ["good", "model"] else "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
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
    thread = threading.Thread(target=server.serve_forever, daemon=True)
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
    assert {file.name for file in path.iterdir() if file.is_file()} == {"config.json", "model.safetensors"}
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
