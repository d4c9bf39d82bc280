"""The engine: the loop that owns the models, the driver of the requests, local drafting, offloading.

Public, by module:

- `exchange`: `Active`, `Declined`, `Inbox`, `PolicyStart`, `Recording`, `WorkerGone`, `WorkerReady`
- `local_draft`: `DraftTimer`
- `loop`: `Engine`, `EngineSettings`
- `pool`: `scope_for`, `Workers`
- `queue_work`: `Idle`, `Lent`, `MakeQueueWork`, `NEVER`, `no_queue_work`, `QueueWork`
"""
