"""Draft models in llama.cpp, used by the worker, by the gateway's local draft and by `edgespec models make`.

Public, by module:

- `context`: `Context`, `quiet`, `require_gpu`, `Row`
- `convert`: `count_loaded_layers`, `requantise`
- `drafter`: `Drafter`, `DraftMemoryError`, `DraftTokenError`
- `step_time`: `affordable_leaves`, `measured_curve`, `timed_steps`
"""
