"""Time competitors side by side, and refuse to time one that gives a different result."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Run = Callable[[], Any]


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians, the quartiles of the ratios of single repeats, and the ratio of the minima.

    On a busy machine these differ, and none of them is reliable.
    """

    value: float
    lower: float
    upper: float
    least: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.lower:.3g} to {self.upper:.3g}; {self.least:.3g} by minimum times)"


def interleave(runs: Mapping[str, Run], repeats: int = 9, warm_ups: int = 1) -> dict[str, list[float]]:
    """Seconds of every run. Repeats alternate, A, B, A, B, so that outside noise affects all of them."""
    for _ in range(warm_ups):
        for run in runs.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(seconds(run))
    return times


def seconds(run: Run) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def enough_repeats(run: Run, budget: float, least: int = 5, most: int = 200) -> int:
    """How often a run fits into ``budget`` seconds, within limits. Runs it twice."""
    run()
    return max(least, min(most, int(budget / max(seconds(run), 1e-9))))


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Compare times that were measured side by side."""
    single = sorted(a / b for a, b in zip(numerator, denominator, strict=True))
    lower, _, upper = statistics.quantiles(single, n=4, method="inclusive") if len(single) > 1 else single * 3
    median = statistics.median(numerator) / statistics.median(denominator)
    return Ratio(median, lower, upper, min(numerator) / min(denominator))


def check_same(name: str, found: Tensor, expected: Tensor, rtol: float = 1e-3, atol: float = 1e-3) -> None:
    """Raise an AssertionError if a result differs from the reference: its time must not be reported."""
    try:
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    except AssertionError as error:
        raise AssertionError(f"{name} gives a different result than the reference: {error}") from None


def forward_and_backward(attend: Callable[..., Tensor], inputs: Sequence[Tensor], learnt: Sequence[Tensor] = ()) -> Run:
    """Run attention and its gradients with respect to all inputs and learnt parameters."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    gradient = torch.ones_like(attend(*inputs).detach())
    return lambda: torch.autograd.grad(attend(*leaves), [*leaves, *learnt], gradient)


def time_rows(times: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Rows of a table: name, median, minimum and maximum in milliseconds."""
    return [
        [name, *(f"{1e3 * x:.3g}" for x in (statistics.median(found), min(found), max(found))), str(len(found))]
        for name, found in times.items()
    ]


TIME_HEADER = ["what", "median ms", "least", "most", "repeats"]
