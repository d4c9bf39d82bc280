"""Logits processing and Gumbel-max sampling with shared noise (docs/numerics.md).

Public, by module:

- `gumbel`: `gumbel`, `noisy_argmax`, `shortlist`
- `logits`: `Candidates`, `entropy`, `finite`, `Floats`, `GREEDY_BELOW`, `History`, `Processor`
"""
