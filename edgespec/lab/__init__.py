"""Simulator, replay, demo, models and tune: loaded by the command line's verbs only; may import everything.

Public, by module:

- `models`: all
"""
