"""The OpenAI-compatible API over HTTP (docs/api.md).

A request goes through `listener` and `routes` (guards), `service` (the order of all steps), `schema` and `generation`
(validation, and the engine's requests), `respond` (tokens to text), `completions` and `sse` (what the client reads).

Public, by module:

- `admission`: `KeyAdmission`, `TokenUse`
- `completions`: `Closed`, `End`, `Form`, `TextPiece`
- `errors`: `TRACE_PARENT`, `unavailable`
- `generation`: `ServedModel`
- `grammars`: `Grammar`, `GrammarEngine`, `Grammars`, `LAYOUT`, `Rules`
- `listener`: `api_bounds`, `check_free`, `CONNECTIONS`, `is_local`, `listen`, `ApiListener`, `OwnPort`,
  `ClientTimes`
- `observer`: `Observer`
- `parameters`: `Annotations`, `Call`, `Counter`, `Encode`, `Field`, `Option`, `Parameter`, `Reader`, `Spell`
- `respond`: `beginning`
- `routes`: `Route`
- `schema`: `ChatBody`, `ChatMessage`, `Common`, `CompletionBody`, `Name`, `Part`, `TokenizeBody`
- `service`: `Api`, `KEY`, `CompletionKind`, `TextCodec`
- `sse`: `EventStream`, `KEEPALIVE_S`
- `usage`: `Counts`, `Speculated`, `Timings`
"""

from cloud_gateway.api.generation import Limits, ServedModel
from cloud_gateway.api.routes import ROUTES, make_app
from cloud_gateway.api.service import Api, Backend

__all__ = ["Api", "Backend", "Limits", "ROUTES", "ServedModel", "make_app"]
