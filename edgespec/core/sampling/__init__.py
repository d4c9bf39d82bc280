"""Logits processing and Gumbel-max sampling with shared noise (docs/numerics.md)."""
