"""The command line: thin verbs, which import what they need when they run, and what they say when they cannot."""

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
from topomask.support.config import UsageError, read_arguments
from topomask.support.near_names import did_you_mean

# Every verb: its module, and what it does. Only the module of the verb that is asked for is imported. Its function
# `run` is read by tyro, or `command` reads the words; `GO_ON` says how to go on once it was stopped, where it can be.
VERBS = {
    "demo": ("demo", "a tour of two minutes with a report (from a checkout)"),
    "train": ("train", "train by a recipe"),
    "eval": ("evaluate", "evaluate a model that was trained"),
    "predict": ("predict", "classify pictures and videos, follow particles"),
    "reproduce": ("reproduce", "tables and figures of the papers (from a checkout)"),
    "mask": ("mask", "draw a mask on a graph"),
    "bench": ("bench", "run benchmarks (from a checkout)"),
    "doctor": ("doctor", "versions, backends and a self-test"),
    "list": ("listing", "recipes, kinds of attention, data sets, masks, graphs, studies"),
}

# Letters of an error that are shown.
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
            module = importlib.import_module(f"topomask.cli.{VERBS[verb][0]}")
            if hasattr(module, "command"):
                command = module.command(rest)
            else:
                command = parse(module.run, rest, f"topomask {verb}")
        with plain_failures(getattr(module, "GO_ON", "")):
            command()


def parse(run: Callable[..., Any], arguments: Sequence[str], prog: str, **how: Any) -> Any:
    """A function with its arguments from the command line, to be called.

    Args:
        run: The function.
        arguments: Words of the command line.
        prog: The words before them.
        how: More options of tyro.
    """
    from tyro.conf import FlagCreatePairsOff, PositionalMetavarFromFieldName

    @functools.wraps(run)
    def bind(*values: Any, **options: Any) -> Callable[[], Any]:
        return functools.partial(run, *values, **options)

    config = (FlagCreatePairsOff, PositionalMetavarFromFieldName)
    return read_arguments(bind, arguments, prog, config=config, **how)


@contextmanager
def plain_failures(go_on: str = "") -> Iterator[None]:
    """Turn errors that a user can fix into one line, without a traceback; all others stay as they are.

    With the environment variable ``TOPOMASK_DEBUG=1``, all do. A command line that cannot be read ends with status 2;
    SIGINT (Ctrl-C) and SIGTERM end with the status that shells give them, 130 and 143.

    Args:
        go_on: How to go on once it was stopped, where it can be.
    """
    try:
        with _terminable():
            yield
    except BrokenPipeError:
        # Whoever read the output has had enough. Python would complain once more when it closes the pipe.
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
        # Checkpoints that do not fit, and losses that are not finite, explain themselves; others are faults.
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
    """SIGTERM, as KeyboardInterrupt is SIGINT."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into an error, so that it ends what is under way in order; a second one ends the process at once."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    process = os.getpid()

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process:
            # A process that was forked meanwhile ends as it would have without this.
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
    """One line; what it quotes from a file can neither fill the terminal nor control it."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError) and "pip install" not in text:
        text += ". Install what is missing with: pip install 'topomask[train,data,plot]'"
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= _MAX_LINE else f"{text[: _MAX_LINE // 2]} ... {text[-_MAX_LINE // 2 :]}"
