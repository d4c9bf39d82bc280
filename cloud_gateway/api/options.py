"""Which of our own request options (`edgespec`, docs/api.md) a client may use: the operator's choice."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from cloud_gateway.api.schema import Extension
from edgespec.core.errors import ClientError
from edgespec.core.protocol.messages import MAX_DEPTH

OPTIONS = frozenset(Extension.__struct_fields__)
ALWAYS = {"offload": "never"}
"""Values that a client may ask for in any case: who does not want a worker to see a prompt needs nobody's leave."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """`[api] client_options`, `client_policies` and `client_max_k`."""

    names: Set[str] = frozenset({"offload", "ignore_eos"})
    policies: Set[str] = frozenset()
    """Policies that may be asked for where `policy` is among `names`; none means: any."""
    max_k: int = MAX_DEPTH

    def check(self, wish: Extension | None) -> None:
        """Raises ClientError 400 naming the option that is the operator's."""
        for name in wish.__struct_fields__ if wish is not None else ():
            value = getattr(wish, name)
            if value is not None and name not in self.names and ALWAYS.get(name) != value:
                raise _refusal(name, f'to add "{name}" to `api.client_options`')
        if wish is None:
            return
        if wish.policy is not None and self.policies and wish.policy not in self.policies:
            known = ", ".join(sorted(self.policies))
            raise _refusal("policy", "to add it to `api.client_policies`", f" or ask for one of {known}")
        if wish.k is not None and wish.k > self.max_k:
            raise _refusal("k", "to raise `api.client_max_k`", f" or ask for at most {self.max_k}")


def _refusal(name: str, request: str, other: str = "") -> ClientError:
    whose = f"The value of 'edgespec.{name}' is the choice of this gateway's operator"
    advice = f"leave it out,{other} or ask the operator {request}"
    return ClientError(f"{whose}: {advice}.", param=f"edgespec.{name}", code="option_not_allowed")
