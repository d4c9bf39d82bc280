"""The gateway process: configuration, loading, serving, commands.

Public, by module:

- `commands`: all
- `config`: all
- `loading`: `engine_settings`, `load_models`, `measure`, `LoadedModels`
- `targets`: `check_models`, `draft_maker`, `engines_of`, `need_of`
"""
