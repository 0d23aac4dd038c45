"""What a verb says when it cannot do what it was asked."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable


def plain_failures(run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """Turn errors that a user can mend into one line, without a traceback; all others stay as they are."""

    @functools.wraps(run)
    def wrapped(options: argparse.Namespace) -> None:
        try:
            run(options)
        except BrokenPipeError:
            # Whoever read the output has had enough. Python would complain once more when it closes the pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None
        except (ValueError, OSError, ModuleNotFoundError) as error:
            raise SystemExit(_message(error)) from None
        except (RuntimeError, ArithmeticError) as error:
            # Checkpoints that do not fit, and losses that are not finite, explain themselves; others are faults.
            if not type(error).__module__.startswith("topomask."):
                raise
            raise SystemExit(_message(error)) from None
        except KeyboardInterrupt:
            raise SystemExit("Stopped. What was saved is whole; topomask train goes on with --resume.") from None

    return wrapped


def _message(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and "pip install" not in str(error):
        return f"{error}. Install what is missing with: pip install 'topomask[train,data,plot]'"
    return str(error)
