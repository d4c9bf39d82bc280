"""Fair turns, quotas and admission of connections: who is served next, and how much.

Public, by module:

- `cells`: `Cells`, `Room`
- `conduct`: `Conduct`, `Probation`
- `quota`: `ClientBounds`, `KeyLimits`, `QUEUE_LIMIT`, `Quotas`, `Visit`
- `turns`: `Turns`
"""
