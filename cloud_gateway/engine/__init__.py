"""The engine: the loop that owns the models, the driver of the requests, local drafting, offloading.

Public, by module:

- `exchange`: `Active`, `Audit`, `NoAudit`, `Inbox`, `Stream`, the events of links
- `loop`: `Engine`, `EngineSettings`
- `offloading`: `NoWorkers`, `Workers`
- `queued.drafts`: `REST`
"""
