"""Models of a Hugging Face hub: `OWNER/NAME` is a folder with safetensors, `OWNER/NAME/FILE.gguf` one file of it.

Only `fetch_from_hub` uses the network. `resolve_model` finds what it fetched in the folder of the models.
"""

from __future__ import annotations

import re
from pathlib import Path

from edgespec.core.errors import ModelError

HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:/([\w.-]+\.gguf))?\Z")
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def hub_place(name: str, folder: Path) -> Path | None:
    """Where a model of this name lies below `folder` once it is fetched; None where it is no name of a hub."""
    found = HUB_NAME.match(name)
    if found is None or ".." in name:
        return None
    return folder / f"{found[1]}--{found[2]}" / (found[3] or "")


def fetch_from_hub(name: str, folder: Path, endpoint: str | None = None) -> Path:
    """Fetches `OWNER/NAME` or `OWNER/NAME/FILE.gguf` below `folder`; what is there and whole stays.

    `endpoint`: the hub's address; None for the usual one, or that of `HF_ENDPOINT`. Raises ModelError.
    """
    place = hub_place(name, folder)
    if place is None:
        raise ModelError(f"`{name}` is no model of a hub: write OWNER/NAME, or OWNER/NAME/FILE.gguf.")
    import huggingface_hub as hub
    from huggingface_hub import errors

    owner, repository, *file = name.split("/")
    repository = f"{owner}/{repository}"
    try:
        if file:
            hub.hf_hub_download(repository, file[0], local_dir=place.parent, endpoint=endpoint)
        else:
            hub.snapshot_download(
                repository, local_dir=place, allow_patterns=_PATTERNS, ignore_patterns=["*/*"], endpoint=endpoint
            )
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repository} is given to those who accepted its licence: do that on its page, then run `hf auth login`."
        ) from error
    except (errors.RepositoryNotFoundError, errors.RemoteEntryNotFoundError) as error:
        raise ModelError(f"The hub has no `{name}`, or not for you: check the name, or run `hf auth login`.") from error
    except (
        errors.HfHubHTTPError,
        errors.OfflineModeIsEnabled,
        OSError,
        ValueError,
        LookupError,
        RuntimeError,
    ) as error:
        where = endpoint or hub.constants.ENDPOINT
        raise ModelError(
            f"`{name}` cannot be fetched from {where} ({type(error).__name__}): check the network, set HF_ENDPOINT to "
            "a mirror, or copy the model from another machine and configure its path."
        ) from error
    if not file and not (place / "config.json").is_file():
        raise ModelError(
            f"{repository} has no config.json, as repositories of GGUF files: name one of its files, as "
            f"{repository}/FILE.gguf."
        )
    return place
