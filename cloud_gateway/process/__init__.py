"""The gateway process: configuration, loading, serving, commands.

Public, by module:

- `commands`: all
"""
