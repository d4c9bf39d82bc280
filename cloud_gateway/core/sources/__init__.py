"""Sources of candidates that need no draft model. They fill the same candidate tree as drafts do.

Public, by module:

- `asking`: `make_sources`, `MAKERS`, `put`, `Sources`
- `interface`: `DraftSource`, `RequestSource`, `ROOT`, `SourceMaker`, `SourceMakers`, `SourceStart`, `StateSource`,
  `Suggestion`
- `lookup`: `likeliest`, `MAX_WEIGHT`, `MIN_SURVIVAL`, `PRIOR_WEIGHT`, `Rates`, `Suffixes`
"""
