"""Statistical proof that every way of sampling gives the target's own distribution, and that the proof can fail."""
