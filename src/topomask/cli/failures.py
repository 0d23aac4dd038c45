"""What a verb says when it cannot do what it was asked."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable


def plain_failures(run: Callable[[argparse.Namespace], None], go_on: str = "") -> Callable[[argparse.Namespace], None]:
    """Turn errors that a user can mend into one line, without a traceback; all others stay as they are.

    With the environment variable ``TOPOMASK_DEBUG=1``, all do.

    Args:
        run: What the verb does.
        go_on: How to go on once it was stopped by hand, where it can be.
    """

    @functools.wraps(run)
    def wrapped(options: argparse.Namespace) -> None:
        try:
            run(options)
        except BrokenPipeError:
            # Whoever read the output has had enough. Python would complain once more when it closes the pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None
        except (ValueError, OSError, ModuleNotFoundError) as error:
            if _debugs():
                raise
            raise SystemExit(_message(error)) from None
        except (RuntimeError, ArithmeticError) as error:
            # Checkpoints that do not fit, and losses that are not finite, explain themselves; others are faults.
            if _debugs() or not type(error).__module__.startswith("topomask."):
                raise
            raise SystemExit(_message(error)) from None
        except KeyboardInterrupt:
            if _debugs():
                raise
            raise SystemExit(f"Stopped. {go_on}".strip()) from None

    return wrapped


def _debugs() -> bool:
    return os.environ.get("TOPOMASK_DEBUG", "0").lower() not in ("", "0", "false", "no", "off")


def _message(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and "pip install" not in str(error):
        return f"{error}. Install what is missing with: pip install 'topomask[train,data,plot]'"
    return str(error)
