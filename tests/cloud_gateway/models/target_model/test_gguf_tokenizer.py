"""The tokenizer of a GGUF file without torch, against the one that AutoTokenizer reads with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from cloud_gateway.models.target_model.gguf_tokenizer import CLASSES
from cloud_gateway.models.target_model.load import DIGITS_APART, gguf_tokenizer
from edgespec.core.errors import ModelError
from edgespec.shared.vocabfiles import gguf_metadata
from tests.support.families import ARCHITECTURES, make, write_gguf
from tests.support.tiny_gguf import make_tiny_gguf

ROOT = Path(__file__).parents[4]
UNREAD_BY_AUTO = "olmo2"
WITHOUT_TORCH = """
import sys
from pathlib import Path

sys.modules["accelerate"] = sys.modules["torch"] = None
from cloud_gateway.models.target_model.load import gguf_tokenizer
from edgespec.shared.vocabfiles import gguf_metadata

file = Path(sys.argv[1])
tokenizer = gguf_tokenizer(file, gguf_metadata(file))
print(tokenizer.backend_tokenizer.to_str())
"""


def saved(tokenizer: Any, folder: Path) -> dict[str, Any]:
    """The files that a tokenizer writes, without the place that it was read from."""
    tokenizer.save_pretrained(folder)
    files: dict[str, Any] = {}
    for file in folder.iterdir():
        files[file.name] = file.read_text()
    settings = json.loads(files["tokenizer_config.json"])
    for key in ("is_local", "local_files_only"):
        settings.pop(key, None)
    return {**files, "tokenizer_config.json": settings}


@pytest.fixture(scope="module", params=["tiny", *ARCHITECTURES])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    if request.param == "tiny":
        return make_tiny_gguf(path)

    write_gguf(path, make(request.param, plain=True))
    return path


def test_the_tokenizer_is_that_of_transformers(file: Path, tmp_path: Path) -> None:
    metadata = gguf_metadata(file)
    if metadata["general.architecture"] == UNREAD_BY_AUTO:
        with pytest.raises(ModelError, match="family olmo2 have a tokenizer that transformers does not convert"):
            gguf_tokenizer(file, metadata)
        return

    assert metadata.get("tokenizer.ggml.pre") not in DIGITS_APART, "these get another pattern than transformers"
    auto = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    own = gguf_tokenizer(file, metadata)
    assert saved(own, tmp_path / "own") == saved(auto, tmp_path / "auto")

    again = [AutoTokenizer.from_pretrained(tmp_path / name, local_files_only=True) for name in ("own", "auto")]
    assert again[0].backend_tokenizer.to_str() == again[1].backend_tokenizer.to_str()
    assert again[0].special_tokens_map == again[1].special_tokens_map


def test_no_torch_is_needed(tmp_path: Path) -> None:
    file = make_tiny_gguf(tmp_path / "tiny.gguf")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == gguf_tokenizer(file, gguf_metadata(file)).backend_tokenizer.to_str()


def test_a_family_of_an_unknown_tokenizer_is_refused(tmp_path: Path) -> None:
    file = make_tiny_gguf(tmp_path / "tiny.gguf")
    assert "nonesuch" not in CLASSES
    with pytest.raises(ModelError, match="family nonesuch"):
        gguf_tokenizer(file, gguf_metadata(file) | {"general.architecture": "nonesuch"})
