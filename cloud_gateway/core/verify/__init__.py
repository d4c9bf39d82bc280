"""Candidates, acceptance and sampling: what makes speculation lossless (docs/numerics.md).

Public, by module:

- `accept`: `at_open_end`, `flatten`, `FlatTree`, `Walk`, `walk`, `walk_logprobs`
- `candidates`: `CandidateTree`, `COMMITTED_SPAN`, `LOCAL`, `Merged`
- `guide`: `AT_GATEWAY`, `GRAMMAR`, `Guide`, `ready_at`
- `interface`: `Constraint`, `ConstraintError`, `Method`, `TokenLogprob`
- `shared_noise`: `Rows`
- `verification`: `at_least`, `method_of`, `Verification`, `verification`, `worker_sampling_of`
"""
