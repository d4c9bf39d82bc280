"""The OpenAI-compatible API over HTTP (docs/api.md).

A request goes through `connection` and `routes` (guards), `schema`, `options` and `sizes` (validation), `encoding`
(text to tokens), `generation` (the engine's requests), `answer` (tokens to text), `respond` and `sse` (what the
client reads).

Public, by module:

- `connection`: `Times`
- `limits`: `ServedModel`
- `listener`: `CONNECTIONS`, `api_admission`, `check_free`, `listen`, `Listener`, `METRICS_LIMITS`
"""

from cloud_gateway.api.limits import Limits, ServedModel
from cloud_gateway.api.routes import ROUTES, make_app
from cloud_gateway.api.service import Api, Backend

__all__ = ["Api", "Backend", "Limits", "ROUTES", "ServedModel", "make_app"]
