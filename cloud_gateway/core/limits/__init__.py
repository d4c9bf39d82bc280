"""Fair turns, and bounds on what a key or a link may do: who is served next, and how much.

Public, by module:

- `probation`: `Contest`, `CONTEST_PROBATION_S`, `Probation`
- `rooms`: `MoreRoom`, `Prices`, `Room`, `Rooms`, `RoomsMaker`, `WholeRooms`
- `turns`: `Turns`
- `visits`: `KeyLimits`, `QUEUE_LIMIT`, `rate_limited`, `Visit`, `Visits`
"""
