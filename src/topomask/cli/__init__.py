"""The command line: thin verbs, which import what they need when they run, and what they say when they cannot."""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence

import topomask

# Every verb: its module, and what it does. Only the module of the verb that is asked for is imported.
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``topomask`` and of ``python -m topomask``."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="topomask", description="Masked linear attention on graphs.")
    parser.add_argument("--version", action="version", version=f"topomask {topomask.__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="verb")
    for name, (home, about) in VERBS.items():
        verb = verbs.add_parser(name, help=about)
        if name in arguments:
            module = importlib.import_module(f"topomask.cli.{home}")
            module.add_arguments(verb)
            verb.set_defaults(run=module.run)

    options, rest = parser.parse_known_args(arguments)
    # Fields may also stand behind options.
    fields = [part for part in rest if hasattr(options, "overrides") and not part.startswith("-")]
    if len(fields) < len(rest):
        parser.error(f"unrecognized arguments: {' '.join(part for part in rest if part not in fields)}")
    if fields:
        options.overrides += fields
    options.run(options)


def plain_failures(run: Callable[[argparse.Namespace], None], go_on: str = "") -> Callable[[argparse.Namespace], None]:
    """Turn errors that a user can fix into one line, without a traceback; all others stay as they are.

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
