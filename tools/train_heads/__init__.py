"""Trains heads over a target's hidden states, on text that the target itself writes.

`text` has the target write, `medusa` and `eagle` say what their heads are to learn from it, `__main__` runs them.
"""
