"""Candidates, acceptance and sampling: what makes speculation lossless (docs/numerics.md)."""
