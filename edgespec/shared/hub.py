"""Models of a Hugging Face hub: `OWNER/NAME` is a folder with safetensors, `OWNER/NAME/FILE.gguf` one file of it.

Only `fetch_from_hub` uses the network. It records the commit and the SHA-256 of each file beside what it fetched, and
fetches the same commit again unless it is given another. `check_fetched` compares the files with the record.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from edgespec.core.errors import ModelError
from edgespec.shared.digests import model_digest

HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:/([\w.-]+\.gguf))?\Z")
RECORD = "edgespec-fetched.json"
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


class Fetched(msgspec.Struct, frozen=True):
    """A file as it was fetched."""

    commit: str
    sha256: str


def hub_place(name: str, folder: Path) -> Path | None:
    """Where a model of this name lies below `folder` once it is fetched; None where it is no name of a hub."""
    found = HUB_NAME.match(name)
    if found is None or ".." in name:
        return None
    return folder / f"{found[1]}--{found[2]}" / (found[3] or "")


def check_fetched(name: str, place: Path) -> None:
    """Raises ModelError unless `place`, where `name` was fetched to, has the recorded files and no others of a model.

    Hashes of large files are remembered (`edgespec/shared/digests.py`).
    """
    folder = place.parent if place.suffix == ".gguf" else place
    record, files = _recorded(folder), _files(place)
    fetched = {file for file in record if file == place.name or (place == folder and not file.endswith(".gguf"))}
    if not files or files != fetched:
        raise ModelError(
            f"The files of {name} in {folder} are not those that were fetched: run `edgespec models fetch {name}`."
        )
    for file in sorted(files):
        if model_digest(folder / file).hex() != record[file].sha256:
            raise ModelError(
                f"{folder / file} is not what was fetched for {name}: its SHA-256 is another. Remove it, and run "
                f"`edgespec models fetch {name}`."
            )


def fetch_from_hub(name: str, folder: Path, endpoint: str | None = None, revision: str | None = None) -> Path:
    """Fetches `OWNER/NAME` or `OWNER/NAME/FILE.gguf` below `folder`; what is there and as recorded stays.

    `endpoint`: the hub's address; None for the usual one, or that of `HF_ENDPOINT`. `revision`: a branch, tag or
    commit; None for the recorded commit, or else the newest. Raises ModelError.
    """
    place = hub_place(name, folder)
    if place is None:
        raise ModelError(f"`{name}` is no model of a hub: write OWNER/NAME, or OWNER/NAME/FILE.gguf.")
    if revision is None:
        with suppress(ModelError):
            check_fetched(name, place)
            return place
    import huggingface_hub as hub
    from huggingface_hub import errors

    where = endpoint or hub.constants.ENDPOINT
    _check_endpoint(where)
    owner, repository, *file = name.split("/")
    repository, beside = f"{owner}/{repository}", place.parent if file else place
    known = _recorded(beside)
    revision = revision or next((known[one].commit for one in (*file, "config.json") if one in known), None)
    try:
        found = hub.HfApi(endpoint).model_info(repository, revision=revision, files_metadata=True)
        commit = str(found.sha)
        if file:
            hub.hf_hub_download(repository, file[0], revision=commit, local_dir=beside, endpoint=endpoint)
        else:
            hub.snapshot_download(
                repository, revision=commit, local_dir=place, allow_patterns=_PATTERNS, ignore_patterns=["*/*"],
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
    folder, files = (place.parent if place.suffix == ".gguf" else place), _files(place)
    record = {file: one for file, one in _recorded(folder).items() if (folder / file).is_file()}
    for file in files:
        record[file] = Fetched(commit, model_digest(folder / file).hex())
        if stated.get(file, record[file].sha256) != record[file].sha256:
            raise ModelError(
                f"{folder / file} has not the SHA-256 that the hub states for {name}: remove it and fetch it again."
            )
    part = folder / f".{RECORD}"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    part.replace(folder / RECORD)


def _recorded(folder: Path) -> dict[str, Fetched]:
    try:
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=dict[str, Fetched])
    except (OSError, msgspec.DecodeError):
        return {}


def _files(place: Path) -> set[str]:
    """The names of the files that make the model at `place`."""
    if place.suffix == ".gguf":
        return {place.name} if place.is_file() else set()
    return {file.name for pattern in _PATTERNS for file in place.glob(pattern)} - {RECORD, f".{RECORD}"}
