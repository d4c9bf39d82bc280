"""Trains a small draft on what the target itself writes: some layers of the target, then a GGUF file for workers.

`tools.target_text` has the target write, `training` prunes and trains, `export` writes the file and measures it;
`folder` keeps what a run needs to go on where it stopped.
"""
