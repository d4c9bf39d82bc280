"""Sources of candidates that need no draft model. They fill the same candidate tree as drafts do.

Public, by module:

- `answers`: `Answers`, `Archive`
- `asking`: `HEADS`, `make`, `MAKERS`, `put`, `Sources`
- `heads`: `HeadSource`, `Level`
- `interface`: `DraftSource`, `KEPT_TOKENS`, `MAX_ANSWERS`, `QUEUED_TOKENS`, `RequestSource`, `ROOT`, `SourceMakers`,
  `SourceSettings`, `Suggestion`
- `lookup`: `MIN_SURVIVAL`, `Rates`
"""
