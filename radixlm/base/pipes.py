"""Output into a pipe whose reader leaves early, as `head` does: it ends a command without a traceback."""

import os
import sys
from collections.abc import Callable

BROKEN_PIPE_CODE = 141  # what a shell shows for a program that SIGPIPE ended


def until_unread(run: Callable[[], int]) -> int:
    """`run`'s exit code with everything written, or BROKEN_PIPE_CODE when standard output takes no more."""
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # or Python complains once more when it flushes at its end
        os.close(null)
        return BROKEN_PIPE_CODE
    return code
