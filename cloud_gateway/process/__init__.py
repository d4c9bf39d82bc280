"""The gateway process: configuration, loading, serving, commands.

Public, by module:

- `commands`: all
- `config`: all
- `targets`: `check_models`, `need_of`
"""
