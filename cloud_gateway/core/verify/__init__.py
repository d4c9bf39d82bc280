"""Candidates, acceptance and sampling: what makes speculation lossless (docs/numerics.md).

Public, by module:

- `accept`: `at_open_end`, `flatten`, `FlatTree`, `walk`, `Walk`
- `candidates`: `CandidateTree`, `COMMITTED_SPAN`, `LOCAL`, `Merged`
- `guide`: `GRAMMAR`, `Guide`, `ready_at`
- `interface`: `Constraint`, `ConstraintError`, `Method`, `TokenLogprob`
- `logprobs`: `walk_logprobs`
- `shared_noise`: `Rows`
- `verification`: `at_least`, `method_of`, `Verification`, `verification`, `worker_sampling_of`
"""
