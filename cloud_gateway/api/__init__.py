"""The OpenAI-compatible API over HTTP (docs/api.md).

A request goes through `connection` and `routes` (guards), `schema` and `generation` (validation, and
the engine's requests), `encoding` (text to tokens), `answer` (tokens to text), `completions`, `respond` and `sse` (what
the client reads).

Public, by module:

- `answer`: `Detokeniser`
- `connection`: `Times`
- `errors`: `unavailable`
- `limits`: `ServedModel`
- `listener`: `CONNECTIONS`, `api_admission`, `check_free`, `listen`, `Listener`, `METRICS_LIMITS`
- `report`: `TRACE_PARENT`
- `routes`: `Route`
- `service`: `Api`, `KEY`
- `sse`: `EventStream`, `KEEPALIVE_S`
"""

from cloud_gateway.api.limits import Limits, ServedModel
from cloud_gateway.api.routes import ROUTES, make_app
from cloud_gateway.api.service import Api, Backend

__all__ = ["Api", "Backend", "Limits", "ROUTES", "ServedModel", "make_app"]
