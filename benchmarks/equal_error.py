"""How many asymmetric walks give the mask error of the default symmetric walks."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import topomask as tm

SEEDS = range(5)
MOST_WALKS = 512


@dataclass(frozen=True)
class EqualError:
    """The smallest number of asymmetric walks that is no worse, and both errors (relative, Frobenius norm)."""

    num_walks: int
    asymmetric: float
    symmetric: float

    def __str__(self) -> str:
        return (
            f"{self.num_walks} asymmetric walks of length 20 (error {self.asymmetric:.4f}) "
            f"for 20 symmetric walks of length 10 (error {self.symmetric:.4f})"
        )


def find_equal_error(shape: tuple[int, int] = (32, 32)) -> EqualError:
    """Double the walks until the mean error is no larger, then count up from the last number that was too small.

    For f = 0.5^k on a grid. Both estimate the same power series: symmetric walks with f, asymmetric ones of twice the
    length with f * f.
    """
    graph, f = tm.grid_graph(*shape), 0.5 ** torch.arange(11)
    exact = tm.PowerSeriesMask(graph, tm.convolve(f)).to_dense().detach()

    def error(estimate: Callable[[int], Tensor]) -> float:
        return statistics.mean(float((estimate(seed) - exact).norm() / exact.norm()) for seed in SEEDS)

    def asymmetric(num_walks: int) -> float:
        return error(lambda seed: tm.sample_features(graph, num_walks, 20, seed=seed).to_dense(tm.convolve(f)))

    target = error(lambda seed: tm.WalkMask(graph, num_walks=20, max_length=10, f=f, seed=seed).to_dense().detach())
    enough = 1
    while asymmetric(enough) > target:
        enough *= 2
        if enough > MOST_WALKS:
            raise RuntimeError(f"Even {enough // 2} asymmetric walks do not reach an error of {target:.4f}.")
    for num_walks in range(enough // 2 + 1, enough):
        found = asymmetric(num_walks)
        if found <= target:
            return EqualError(num_walks, found, target)
    return EqualError(enough, asymmetric(enough), target)
