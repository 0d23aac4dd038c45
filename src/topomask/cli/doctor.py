"""``topomask doctor``: is everything in order?"""

from __future__ import annotations

import argparse

from topomask.cli import plain_failures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.description = "Print versions and backends, and test the library for two seconds (longer the first time)."


@plain_failures
def run(options: argparse.Namespace) -> None:  # noqa: ARG001
    """Look, test, and say what is wrong; exits with 1 where something is."""
    from topomask.checkup import examine

    healthy = True
    for name, finding, good in examine():
        print(f"{name:22s} {finding}", flush=True)
        healthy &= good
    if not healthy:
        raise SystemExit(1)
