"""What API clients may ask for, as the operator configures it: part of the table [api].

Names, ranges and defaults stand here only; configs/gateway.toml explains each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from cloud_gateway.core.requests.request import Speculation
from edgespec.core.errors import ClientError


class Extension(Speculation, frozen=True, forbid_unknown_fields=True):
    """The parameter `edgespec`: fields of `Speculation`, and two more."""

    ignore_eos: bool | None = None
    usage: bool | None = None
    """Whether the response has `usage.edgespec`. Workers' names are in it if the operator allows this option."""


OPTIONS = Extension.__struct_fields__
if TYPE_CHECKING:
    ClientOption = str
else:
    ClientOption = Literal[OPTIONS]
ALWAYS = {"offload": ("never",), "usage": (True, False)}
"""Values that every client may send: keeping a prompt from workers needs no permission, and figures show no names."""


Alias = Annotated[str, Meta(min_length=1, max_length=100, extra={"allowed": "a name of at most 100 characters"})]
Origin = Annotated[
    str, Meta(pattern=r"^(\*|https?://[^/\s]+)\Z", extra={"allowed": '"*" or an origin such as "https://chat.example"'})
]


class RequestBounds(Struct, frozen=True, kw_only=True):
    """Of [api]: bounds on one request."""

    max_tokens: Annotated[int, Meta(ge=1, le=1_048_576)] = 512
    """Maximum tokens of a completion where a request sets none, and the context has room."""
    max_tokens_limit: Annotated[int, Meta(ge=1, le=1_048_576)] = 4096
    """Maximum tokens of one completion."""
    stream: Literal["as-made", "even"] = "as-made"
    client_options: tuple[ClientOption, ...] = ("offload", "ignore_eos")
    model_alias: tuple[Alias, ...] = ()
    """Further names by which requests may ask for the model."""
    cors: tuple[Origin, ...] = ()
    """Origins of web pages that may use the API; "*" for any."""
    prefix_cache: bool = True
    """Whether models keep what they computed of an ended request for later ones of the same key."""

    def check(self, requested: Extension | None) -> None:
        """Raises ClientError 400 naming an option that the operator has not allowed."""
        if requested is None:
            return
        for name in OPTIONS:
            value = getattr(requested, name)
            if value is not None and name not in self.client_options and value not in ALWAYS.get(name, ()):
                raise ClientError(
                    f"The value of 'edgespec.{name}' is the choice of this gateway's operator: leave it out, or ask "
                    f'the operator to add "{name}" to `api.client_options`.',
                    param=f"edgespec.{name}",
                    code="option_not_allowed",
                )
