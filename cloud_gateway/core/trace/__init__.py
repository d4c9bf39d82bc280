"""Traces of requests: format, recording, playback (docs/traces.md)."""
