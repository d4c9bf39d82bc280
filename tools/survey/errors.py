"""What can go wrong with a survey besides its configuration; the other errors are in edgespec/core/errors.py.

```
EdgespecError
├── SurveyFileError                 65  operator   a file of samples cannot be read or written, or holds something else
└── NoAnswerError                   69  operator   no endpoint gave a single answer
```
"""

from __future__ import annotations

from edgespec.core.errors import EdgespecError


class SurveyFileError(EdgespecError):
    """A file of samples cannot be read or written, or holds something else; the text names it and the line."""

    exit_code = 65
    fault = "operator"


class NoAnswerError(EdgespecError):
    """A survey ended without one answer; every request is in the file with what came instead."""

    exit_code = 69
    fault = "operator"
