"""Logits processing and Gumbel-max sampling with shared noise (docs/numerics.md).

Public, by module:

- `gumbel`: `every_token`, `GAMMA`, `MARGIN_NATS`, `MIX_1`, `MIX_2`, `noisy_argmax`, `row_key`, `shortlist`
- `logits`: `Candidates`, `entropy`, `finite`, `GREEDY_BELOW`, `History`, `Processor`
"""
