"""``topomask demo``: a tour, from a checkout."""

from __future__ import annotations

from pathlib import Path

from topomask.cli.checkout import import_from_checkout


def run(*, output: Path = Path("demo_output")) -> None:
    """Take a tour of two minutes, and write its pictures and a report. Needs a checkout.

    Args:
        output: Folder of report and pictures.
    """
    import_from_checkout("experiments.demo").main(output)
