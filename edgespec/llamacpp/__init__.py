"""Draft models in llama.cpp, used by the worker and by the gateway's local draft.

Public, by module:

- `context`: `Context`, `require_gpu`, `Row`
- `drafter`: `Drafter`, `DraftMemoryError`, `DraftTokenError`
- `step_time`: `affordable_leaves`, `step_curve`
"""
