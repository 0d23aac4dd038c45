"""``topomask doctor``: check the installation, and compile kernels ahead of time."""

from __future__ import annotations


def run(*, warm_up: bool = False) -> None:
    """Print versions and backends, and run a self-test of two seconds (longer the first time).

    Exits with status 1 if something is wrong.

    Args:
        warm_up: Also compile the CPU kernels that usual calls need, so that later processes start without delay. Takes
            a few minutes the first time, and less than one if the kernels are cached already.
    """
    from topomask.checkup import examine

    healthy = True
    for name, finding, good in examine(warm_up):
        print(f"{name:22s} {finding}", flush=True)
        healthy &= good
    if not healthy:
        raise SystemExit(1)
