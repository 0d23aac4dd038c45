"""``topomask doctor``: is everything in order?"""

from __future__ import annotations


def run() -> None:
    """Print versions and backends, and test the library for two seconds (longer the first time).

    Exits with 1 where something is wrong.
    """
    from topomask.checkup import examine

    healthy = True
    for name, finding, good in examine():
        print(f"{name:22s} {finding}", flush=True)
        healthy &= good
    if not healthy:
        raise SystemExit(1)
