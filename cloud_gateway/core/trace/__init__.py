"""Traces of requests: format, recording, playback (docs/traces.md).

Public, by module:

- `format`: all
- `play`: all
"""
