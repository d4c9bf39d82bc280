"""The engine: the loop that owns the models, the driver of the requests, local drafting, offloading.

Public, by module:

- `exchange`: `Declined`, `Inbox`, `PolicyStart`, `Recording`, `WorkerGone`, `WorkerReady`
- `loop`: `Engine`, `EngineSettings`
- `pool`: `Workers`
- `queued_answers`: `REST`
"""
