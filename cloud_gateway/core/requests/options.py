"""What API clients may ask for, as the operator configures it: part of the table [api].

Names, ranges and defaults stand here only; configs/gateway.toml explains each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from cloud_gateway.core.policies.settings import MAX_K, PolicyName
from cloud_gateway.core.requests.request import Speculation
from edgespec.core.errors import ClientError


class Extension(Speculation, frozen=True, forbid_unknown_fields=True):
    """The parameter `edgespec`: fields of `Speculation`, and one more."""

    ignore_eos: bool | None = None


OPTIONS = Extension.__struct_fields__
if TYPE_CHECKING:
    ClientOption = str
else:
    ClientOption = Literal[OPTIONS]
ALWAYS = {"offload": "never"}
"""Values that every client may send: keeping a prompt from workers needs no permission."""


class RequestBounds(Struct, frozen=True, kw_only=True):
    """Of [api]: bounds on one request."""

    max_tokens: Annotated[int, Meta(ge=1, le=1_048_576)] = 512
    """Maximum tokens of a completion where a request sets none, and the context has room."""
    max_tokens_limit: Annotated[int, Meta(ge=1, le=1_048_576)] = 4096
    """Maximum tokens of one completion."""
    keepalive_s: Annotated[float, Meta(ge=1, le=300)] = 10.0
    """Silence on a stream after which a comment is sent."""
    stream: Literal["as-made", "even"] = "as-made"
    client_options: tuple[ClientOption, ...] = ("offload", "ignore_eos")
    client_policies: tuple[PolicyName, ...] = ()
    """Policies that clients may request where `policy` is among the options; empty: any."""
    client_max_k: Annotated[int, Meta(ge=1, le=MAX_K)] = MAX_K

    def check(self, requested: Extension | None) -> None:
        """Raises ClientError 400 naming an option that the operator has not allowed."""
        if requested is None:
            return
        for name in OPTIONS:
            value = getattr(requested, name)
            if value is not None and name not in self.client_options and ALWAYS.get(name) != value:
                raise _refusal(name, f'to add "{name}" to `api.client_options`')
        if requested.policy is not None and self.client_policies and requested.policy not in self.client_policies:
            known = ", ".join(sorted(self.client_policies))
            raise _refusal("policy", "to add it to `api.client_policies`", f" or ask for one of {known}")
        if requested.k is not None and requested.k > self.client_max_k:
            raise _refusal("k", "to raise `api.client_max_k`", f" or ask for at most {self.client_max_k}")


def _refusal(name: str, request: str, other: str = "") -> ClientError:
    whose = f"The value of 'edgespec.{name}' is the choice of this gateway's operator"
    advice = f"leave it out,{other} or ask the operator {request}"
    return ClientError(f"{whose}: {advice}.", param=f"edgespec.{name}", code="option_not_allowed")
