"""The gateway process: configuration, loading, serving, commands."""
