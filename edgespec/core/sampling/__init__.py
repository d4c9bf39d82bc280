"""Logits processing and Gumbel-max sampling with shared noise (docs/numerics.md).

Public, by module:

- `gumbel`: `every_token`, `gumbel`, `noisy_argmax`, `shortlist`
- `logits`: `Candidates`, `entropy`, `finite`, `GREEDY_BELOW`, `History`, `Processor`
"""
