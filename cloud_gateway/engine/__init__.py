"""The engine: the loop that owns the models, local drafting, offloading, recording.

Public, by module:

- `audit`: `AuditLog`, `entries`, `Entry`
- `collector`: `spare_rounds`, `sweep`
- `events`: `Inbox`, `WorkerReady`
- `loop`: `Engine`, `EngineSettings`
- `measure`: `measure`
- `queue_drafts`: `REST`
- `recorder`: `Recorder`, `RecorderSettings`
- `stats`: `Stats`
"""
