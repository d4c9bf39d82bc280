"""A request: what a client asks for, its bounds, and which worker drafts for it.

Public, by module:

- `accounting`: `Account`, `FrameLedger`
- `askings`: `Askings`, `patience`
- `events`: all
- `generation`: `Bounds`, `Generation`, `MAX_RETRIES`
- `local_costs`: `catch_up_batch`, `draft_costs`, `shared`, `shared_rows`
- `merit`: `Merit`, `Record`
- `options`: `Extension`, `RequestBounds`
- `remote_answer`: `RemoteAnswer`
- `request`: `DoneEvent`, `Event`, `Finish`, `GenerationRequest`, `Speculation`, `TokensEvent`, `Usage`, `added`
- `router`: `choose`, `cost_s`, `LinkedWorker`
- `stats`: `Stats`
"""
