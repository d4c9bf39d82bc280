"""Candidates, acceptance and sampling: what makes speculation lossless (docs/numerics.md).

Public, by module:

- `accept`: `NOT_COMPUTED`, `at_open_end`, `flatten`, `FlatTree`, `Walk`, `walk`
- `candidates`: `CandidateTree`, `COMMITTED_SPAN`, `LOCAL`, `Merged`
- `guide`: `AT_GATEWAY`, `GRAMMAR`, `Guide`, `ready_at`
- `interface`: `Constraint`, `ConstraintError`, `RowReader`
- `shared_noise`: `path_to`, `Rows`
- `verification`: `at_least`, `BUILT_IN`, `Method`, `method_of`, `CompletionStart`, `Verification`,
  `worker_sampling_of`
"""
