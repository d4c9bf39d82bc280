"""Fair turns, quotas and admission of connections: who is served next, and how much.

Public, by module:

- `cells`: `Cells`, `Prices`, `Room`
- `probation`: `Contest`, `CONTEST_PROBATION_S`, `Probation`
- `quota`: `ClientBounds`, `KeyLimits`, `QUEUE_LIMIT`, `Quotas`, `Visit`
- `turns`: `Turns`
"""
