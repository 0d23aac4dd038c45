"""The command line: thin verbs, which import what they need when they run, and one-line error messages."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import topomask
from topomask.support.checks import did_you_mean
from topomask.support.config import UsageError, read_arguments

# Module (and function, by default `run`) and description of every verb. The module is imported when its verb runs; tyro
# parses the arguments, unless the module has a function `command` that does. `GO_ON` says how to continue.
VERBS = {
    "demo": ("checkout:demo", "two-minute tour with a report (from a checkout)"),
    "train": ("train", "train a recipe"),
    "eval": ("trained:evaluate", "evaluate a trained model"),
    "predict": ("trained:predict", "classify pictures and videos, predict the motion of particles"),
    "reproduce": ("reproduce", "reproduce tables and figures of the papers (from a checkout)"),
    "mask": ("mask", "draw a mask on a graph"),
    "bench": ("checkout:bench", "run benchmarks (from a checkout)"),
    "doctor": ("doctor", "show versions and backends, run a self-test, compile kernels ahead"),
    "list": ("listing", "list recipes, kinds of attention, data sets, masks, graphs, studies"),
}

# Longest error message to print, in characters.
_MAX_LINE = 1500


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``topomask`` and of ``python -m topomask``."""
    verb, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    if verb in ("-h", "--help"):
        print("usage: topomask [-h] [--version] VERB ...\n\nMasked linear attention on graphs.\n\nverbs:")
        print("\n".join(f"  {name:10s} {about}" for name, (_, about) in VERBS.items()))
        print("\nFor the options of a verb, run topomask VERB --help.")
    elif verb == "--version":
        print(f"topomask {topomask.__version__}")
    else:
        with plain_failures():
            if verb not in VERBS:
                found = f"There is no verb {verb!r}.{did_you_mean(verb, VERBS, quote=str)}" if verb else "Name a verb."
                raise UsageError(f"{found} Verbs: {', '.join(VERBS)}. Run topomask --help.")
            home, _, function = VERBS[verb][0].partition(":")
            module = importlib.import_module(f"topomask.cli.{home}")
            own = getattr(module, "command", None)
            command = own(rest) if own else parse(getattr(module, function or "run"), rest, f"topomask {verb}")
        with plain_failures(getattr(module, "GO_ON", "")):
            command()


def parse(run: Callable[..., Any], arguments: Sequence[str], prog: str, **how: Any) -> Any:
    """Bind a function to its arguments from the command line, without calling it; ``how`` are options of tyro."""
    from tyro.conf import FlagCreatePairsOff, PositionalMetavarFromFieldName

    @functools.wraps(run)
    def bind(*values: Any, **options: Any) -> Callable[[], Any]:
        return functools.partial(run, *values, **options)

    config = (FlagCreatePairsOff, PositionalMetavarFromFieldName)
    return read_arguments(bind, arguments, prog, config=config, **how)


@contextmanager
def plain_failures(go_on: str = "") -> Iterator[None]:
    """Print errors that a user can fix as one line without a traceback, and exit; other errors are raised.

    With the environment variable ``TOPOMASK_DEBUG=1``, all errors are raised. The exit status is 2 for an invalid
    command line, and 130 and 143 for SIGINT (Ctrl-C) and SIGTERM, as in shells. ``go_on`` says how to continue.
    """
    try:
        with _terminable():
            yield
    except BrokenPipeError:
        # The reader closed the pipe, as head does. Without this, Python prints another error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if _debugs():
            raise
        if not isinstance(error, UsageError):
            raise SystemExit(_message(error)) from None
        print(_message(error), file=sys.stderr)
        raise SystemExit(2) from None
    except (RuntimeError, ArithmeticError) as error:
        # Our own errors, such as a checkpoint that does not fit, explain themselves; others are bugs.
        if _debugs() or not type(error).__module__.startswith("topomask."):
            raise
        raise SystemExit(_message(error)) from None
    except (KeyboardInterrupt, _Terminated) as stop:
        if _debugs():
            raise
        print(f"Stopped. {go_on}".strip(), file=sys.stderr, flush=True)
        number = signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT
        raise SystemExit(128 + number) from None


class _Terminated(BaseException):
    """Raised on SIGTERM, like KeyboardInterrupt on SIGINT."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Raise an error on SIGTERM, for a clean exit; a second SIGTERM ends the process at once."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    process = os.getpid()

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process:
            # In a forked process: end it as usual.
            os.kill(os.getpid(), signal.SIGTERM)
            return
        raise _Terminated

    if ours:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _debugs() -> bool:
    return os.environ.get("TOPOMASK_DEBUG", "0").lower() not in ("", "0", "false", "no", "off")


def _message(error: Exception) -> str:
    """The error as one line, shortened and without control characters that it may quote from a file."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError) and "pip install" not in text:
        text += ". Install with: pip install 'topomask[train,data,plot]'"
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= _MAX_LINE else f"{text[: _MAX_LINE // 2]} ... {text[-_MAX_LINE // 2 :]}"
