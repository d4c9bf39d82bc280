"""Candidates, acceptance and sampling: what makes speculation lossless (docs/numerics.md).

Public, by module:

- `at_least`: `at_least`
- `accept`: `at_open_end`, `Walk`, `walk`
- `candidates`: `CandidateTree`, `COMMITTED_SPAN`, `LOCAL`, `Merged`
- `flatten`: `flatten`, `FlatTree`
- `guide`: `GRAMMAR`, `Guide`, `ready_at`
- `interface`: `Constraint`, `ConstraintError`, `Method`, `TokenLogprob`
- `logprobs`: `walk_logprobs`
- `shared_noise`: `Rows`
- `verification`: `method_of`, `Verification`, `verification`, `worker_sampling_of`
"""
