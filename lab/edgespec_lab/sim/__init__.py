"""A virtual clock and link around the controller and the drafting machine that ship, unchanged.

`edgespec compare` tries policies in it, and `python -m edgespec_lab.sim` makes the papers' figures in it. Nothing here
reads a clock or a socket: a run depends on its seed alone.
"""
