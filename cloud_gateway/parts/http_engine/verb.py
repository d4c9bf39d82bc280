"""The verb `attach`; what it does is in `attach`."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgespec.core.errors import ConfigError


class AttachVerb:
    """`cloud-gateway attach`."""

    def add(self, verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Adds its parser."""
        text = "try a server that runs already, print what drafts cost there, and write a configuration for it"
        parser = verbs.add_parser("attach", help=text, description=f"{text[0].upper()}{text[1:]}.")
        parser.set_defaults(run=attach_command)
        parser.add_argument("url", metavar="URL", help="http://HOST:PORT of vLLM, llama-server or another server")
        parser.add_argument(
            "--model",
            type=Path,
            metavar="PATH",
            help="folder or GGUF file of the model that it serves, for its tokenizer",
        )
        parser.add_argument("--key-file", type=Path, metavar="FILE", help="holds the key of its API")
        parser.add_argument("--output", type=Path, default=Path("gateway.toml"), metavar="FILE", help="what to write")
        parser.add_argument("--json", action="store_true", help="print JSON")


def attach_command(options: argparse.Namespace) -> int:
    """Raises ConfigError before the server is asked, if nothing could be written."""
    url = str(options.url).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url} is no URL: write it as http://HOST:PORT.")
    if options.key_file is not None and not options.key_file.is_file():
        raise ConfigError(f"There is no {options.key_file}: `--key-file` names a file with the key.")
    if options.model is not None and not options.model.exists():
        raise ConfigError(f"There is no {options.model}: `--model` names a folder or a GGUF file.")
    if options.model is not None and options.output.exists():
        raise ConfigError(f"{options.output} is there already: name another file by `--output`.")

    from cloud_gateway.parts.http_engine.attach import attach

    return attach(url, options.model, options.key_file, options.output, as_json=options.json)
