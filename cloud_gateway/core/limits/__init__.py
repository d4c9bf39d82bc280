"""Fair turns, and bounds on what a key or a link may do: who is served next, and how much.

Public, by module:

- `cells`: `Cells`, `Prices`, `Room`
- `probation`: `Contest`, `CONTEST_PROBATION_S`, `Probation`
- `turns`: `Turns`
- `visits`: `KeyLimits`, `QUEUE_LIMIT`, `rate_limited`, `Visit`, `Visits`
"""
