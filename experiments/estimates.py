"""Errors of graph random features as estimates of a mask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks import PowerSeriesMask, WalkMask
from topomask.walks import series, theory


def mask_errors(graph: Graph, f: Tensor, num_walks: int, seeds: Iterable[int], **settings: Any) -> list[float]:
    """Relative Frobenius error of the mask of symmetric features with modulation ``f``, one per seed."""
    exact = PowerSeriesMask(graph, series.convolve(f)).to_dense()[0].detach()
    errors = []
    for seed in seeds:
        mask = WalkMask(graph, num_walks=num_walks, max_length=len(f) - 1, f=f, seed=seed, **settings)
        errors.append(float((mask.to_dense()[0].detach() - exact).norm() / exact.norm()))
    return errors


@dataclass(frozen=True)
class Convergence:
    """Errors of i.i.d. walks for several numbers of walkers.

    Attributes:
        num_walks: Numbers of walkers.
        errors: Relative Frobenius error, mean over seeds.
        quantiles: 95 % quantile of the deviation of an entry.
        bounds: Bounds on that quantile by Theorem 3.1.
        slope: Slope of log error against log walkers; expected: -0.5.
    """

    num_walks: list[int]
    errors: list[float]
    quantiles: list[float]
    bounds: list[float]
    slope: float


def convergence(
    graph: Graph, f: Tensor, num_walks: list[int], halt_prob: float = 0.1, num_seeds: int = 5
) -> Convergence:
    """Measure how the error of i.i.d. walks falls with the number of walkers, and compute the bound."""
    exact = PowerSeriesMask(graph, series.convolve(f)).to_dense()[0].detach()
    constant = theory.load_constant(graph, f, halt_prob)
    errors, quantiles, bounds = [], [], []
    for count in num_walks:
        deviations = []
        for seed in range(num_seeds):
            mask = WalkMask(
                graph, num_walks=count, max_length=len(f) - 1, coupling="iid", halt_prob=halt_prob, f=f, seed=seed
            )
            deviations.append(mask.to_dense()[0].detach() - exact)
        deviation = torch.stack(deviations)
        errors.append(float((deviation.norm(dim=(1, 2)) / exact.norm()).mean()))
        quantiles.append(float(np.quantile(deviation.abs().numpy(), 0.95)))
        bounds.append(theory.deviation_quantile(0.05, count, constant))
    slope = float(np.polyfit(np.log(num_walks), np.log(errors), 1)[0])
    return Convergence(num_walks, errors, quantiles, bounds, slope)
