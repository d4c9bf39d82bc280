"""Which request options of `edgespec` (docs/api.md) clients may use, as the operator configures."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from cloud_gateway.api.schema import Extension
from cloud_gateway.core.policies.settings import MAX_K
from edgespec.core.errors import ClientError

OPTIONS = frozenset(Extension.__struct_fields__)
ALWAYS = {"offload": "never"}
"""Values that every client may send: keeping a prompt from workers needs no permission."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """`[api] client_options`, `client_policies` and `client_max_k`."""

    names: Set[str] = frozenset({"offload", "ignore_eos"})
    policies: Set[str] = frozenset()
    """Policies that clients may request where `policy` is among `names`; empty: any."""
    max_k: int = MAX_K

    def check(self, requested: Extension | None) -> None:
        """Raises ClientError 400 naming an option that the operator has not allowed."""
        for name in requested.__struct_fields__ if requested is not None else ():
            value = getattr(requested, name)
            if value is not None and name not in self.names and ALWAYS.get(name) != value:
                raise _refusal(name, f'to add "{name}" to `api.client_options`')
        if requested is None:
            return
        if requested.policy is not None and self.policies and requested.policy not in self.policies:
            known = ", ".join(sorted(self.policies))
            raise _refusal("policy", "to add it to `api.client_policies`", f" or ask for one of {known}")
        if requested.k is not None and requested.k > self.max_k:
            raise _refusal("k", "to raise `api.client_max_k`", f" or ask for at most {self.max_k}")


def _refusal(name: str, request: str, other: str = "") -> ClientError:
    whose = f"The value of 'edgespec.{name}' is the choice of this gateway's operator"
    advice = f"leave it out,{other} or ask the operator {request}"
    return ClientError(f"{whose}: {advice}.", param=f"edgespec.{name}", code="option_not_allowed")
