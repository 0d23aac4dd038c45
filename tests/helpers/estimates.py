"""Are random features unbiased? Student's t of fixed functionals, per length and of products."""

from __future__ import annotations

import torch
from scipy import stats

import topomask as tm

# Of a whole test, by Bonferroni over its functionals.
FALSE_FAIL_RATE = 1e-6


def powers(graph: tm.Graph, normalization: str | None, max_length: int) -> torch.Tensor:
    """W^0, ..., W^L, [L + 1, N, N]."""
    w = torch.from_numpy(graph.adjacency(normalization).toarray())
    return torch.stack([torch.linalg.matrix_power(w, k) for k in range(max_length + 1)])


def functionals(query: torch.Tensor, key: torch.Tensor | None, f: torch.Tensor, u, v) -> torch.Tensor:
    """Fixed linear functionals of the features per length, and of the product of query and key features."""
    per_length = torch.einsum("i,lij,j->l", u, query, v)[1:]
    phi = torch.einsum("l,lij->ij", f, query)
    if key is None:
        return torch.cat([per_length, phi.trace()[None]])
    mask = phi @ torch.einsum("l,lij->ij", f, key).mT
    return torch.cat([per_length, (u @ mask @ v)[None], mask.trace()[None]])


def z_scores(samples: torch.Tensor, truth: torch.Tensor, rounding: float = 1e-10) -> torch.Tensor:
    """Student's t of every functional; 0 where nothing is random and the truth is met up to rounding."""
    error, spread = samples.mean(0) - truth, samples.std(0) / len(samples) ** 0.5
    fixed = spread < rounding / 100
    assert (error[fixed].abs() < rounding).all()
    return torch.where(fixed, 0.0, error / torch.where(fixed, 1.0, spread)).abs()


def threshold(count: int, num_seeds: int) -> float:
    """What none of ``count`` scores exceeds, but with the false-fail rate."""
    return float(stats.t.isf(FALSE_FAIL_RATE / (2 * count), num_seeds - 1))
