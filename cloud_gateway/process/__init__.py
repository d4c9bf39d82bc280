"""The gateway process: configuration, loading, serving, commands.

Public, by module:

- `commands`: all
- `config`: `DaemonSection`, `GatewaySettings`, `given`, `LocalDraftSection`, `TargetSection`
- `loading`: `engine_settings`, `load_models`, `measure`, `Models`
- `model_commands`: all
- `targets`: `check_models`, `draft_maker`
"""
