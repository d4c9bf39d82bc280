"""What both command lines do around a verb: an expected failure is one sentence on stderr and its exit code."""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from edgespec.core.errors import EdgespecError
from edgespec.shared import logs


def run(parser: ArgumentParser, argv: Sequence[str] | None) -> int:
    """Runs the verb that the arguments name, by its `run`, and returns the exit code."""
    args = parser.parse_args(argv)
    with logs.policy():
        try:
            code = int(args.run(args))
            sys.stdout.flush()
        except EdgespecError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except BrokenPipeError:  # the reader of our output left, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # avoids a second BrokenPipeError at exit
            return 128 + signal.SIGPIPE
        except Exception as error:  # noqa: BLE001  its text may quote a peer or a client: only places are printed
            print(f"{parser.prog}: {logs.failure(error)}", file=sys.stderr)
            return EdgespecError.exit_code
    return code
