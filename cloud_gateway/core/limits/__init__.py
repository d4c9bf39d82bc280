"""Fairness: who is next among requests and API keys, and bounds on what a key or a link may do. Pure.

Public, by module:

- `probation`: `Contest`, `CONTEST_PROBATION_S`, `Probation`
- `prompts`: `BURST`, `limits_of`, `ReadingPace`, `Prompt`, `PromptTurns`, `running_since`
- `rooms`: `MoreRoom`, `RoomPrices`, `Room`, `Rooms`, `RoomsMaker`, `WholeRooms`
- `shared_passes`: `agree`, `Company`, `Hold`, `in_passes`, `shared_rows`, `shared_step`
- `turns`: `Turns`
- `visits`: `KeyLimits`, `QUEUE_LIMIT`, `rate_limited`, `Visit`, `Visits`
"""
