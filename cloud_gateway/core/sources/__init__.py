"""Sources of candidates that need no draft model. They fill the same candidate tree as drafts do.

Public, by module:

- `answers`: `Answers`, `Archive`
- `asking`: `make`, `MAKERS`, `put`, `Sources`
- `interface`: `DraftSource`, `KEPT_TOKENS`, `MAX_ANSWERS`, `QUEUED_TOKENS`, `RequestSource`, `ROOT`, `SourceMaker`,
  `SourceMakers`, `SourceSettings`, `SourceStart`, `StateSource`, `Suggestion`
- `lookup`: `MAX_WEIGHT`, `MIN_SURVIVAL`, `PRIOR_WEIGHT`, `Rates`, `likeliest`
"""
