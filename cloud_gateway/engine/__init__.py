"""The engine: the loop that owns the models, local drafting, offloading, recording."""
