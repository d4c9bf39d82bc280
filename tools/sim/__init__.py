"""Discrete-event simulator: a virtual clock and network around the very policies that ship."""
