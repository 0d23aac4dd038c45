"""A mask beside its plain definition: a dense matrix in double precision as a function of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import topomask as tm
from fuzz.graphs import Array, PlainGraph

# Named parameters in double precision to M and its magnitude, [H, N_q, N_k] each.
Definition = Callable[[dict[str, Tensor]], tuple[Tensor, Tensor]]


@dataclass
class PlainMask:
    """A mask of the library and what it is by definition."""

    mask: tm.Mask
    define: Definition
    groups: Array  # which graph of a batch every key belongs to, [N_k]
    # Absolute error that entries may have, in units of the last place of 1: products by transforms and series have it.
    noise: float = 0.0
    # Whether entries too small for the mask's precision must count all the same in softmax attention.
    exact: bool = False
    # Whether a factor of a parameter cancels, so that slopes vanish but for rounding.
    homogeneous: bool = False
    # How to make what attention is given; the mask itself by default.
    make: Callable[[], tm.Mask | tm.Operator] | None = None

    def argument(self) -> tm.Mask | tm.Operator:
        """What attention is given."""
        return self.mask if self.make is None else self.make()

    def parameters(self) -> dict[str, Tensor]:
        """What is learnt, by name."""
        return dict(self.mask.named_parameters())


def constant(array: Array | Tensor) -> Tensor:
    """A constant in double precision."""
    return torch.as_tensor(array).detach().to(torch.float64)


def part(parameters: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The parameters of a module inside a mask."""
    return {name.removeprefix(prefix): x for name, x in parameters.items() if name.startswith(prefix)}


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    """Normal numbers in double precision."""
    return torch.from_numpy(rng.normal(size=shape))


def normalized(plain: PlainGraph, normalization: str | None) -> Array:
    """W: D^-1/2 A D^-1/2, D^-1 A or A, where D sums absolute weights."""
    found, degrees = plain.adjacency.copy(), np.abs(plain.adjacency).sum(axis=1)
    normalization = normalization or ("row" if plain.directed else "sym")
    if normalization == "none":
        return found
    for i, j in np.argwhere(found):
        found[i, j] /= degrees[i] if normalization == "row" else np.sqrt(degrees[i]) * np.sqrt(degrees[j])
    return found


def hops(adjacency: Array) -> Array:
    """Numbers of steps along edges from i to j, [N, N]; infinite without a path."""
    size = len(adjacency)
    found = np.full((size, size), np.inf)
    for start in range(size):
        found[start, start], front, steps = 0.0, [start], 0
        while front:
            steps += 1
            ahead = {j for i in front for j in np.flatnonzero(adjacency[i]) if found[start, j] == np.inf}
            found[start, list(ahead)] = steps
            front = list(ahead)
    return found


def lengths(weights: Array) -> Array:
    """Shortest sums of weights along edges from i to j, [N, N], by Floyd and Warshall."""
    found = np.where(weights != 0, weights, np.inf)
    np.fill_diagonal(found, 0.0)
    for middle in range(len(found)):
        found = np.minimum(found, found[:, middle, None] + found[None, middle])
    return found


def per_head(values: Tensor, index: Array) -> Tensor:
    """Numbers of a table [H, K] at whole numbers [N, N], 0 where they are K or more: [H, N, N]."""
    padded = torch.cat([values, values.new_zeros(len(values), 1)], dim=1)
    places = torch.from_numpy(np.minimum(index, values.shape[1]).astype(np.int64))
    return padded[:, places]


def walk_loads(walks: tm.WalkFeatures, num_columns: int) -> Tensor:
    """Loads of walks as dense matrices, [S, L + 1, R, N], entry by entry."""
    sets = walks.num_heads
    rows = (len(walks.row_ptr) - 1) // sets
    found = np.zeros((sets, walks.max_length + 1, rows, num_columns))
    row_ptr, columns, entry_ptr = walks.row_ptr.tolist(), walks.columns.tolist(), walks.entry_ptr.tolist()
    steps, loads = walks.lengths.tolist(), walks.loads.double().tolist()
    for row in range(sets * rows):
        for pair in range(row_ptr[row], row_ptr[row + 1]):
            for entry in range(entry_ptr[pair], entry_ptr[pair + 1]):
                found[row // rows, steps[entry], row % rows, columns[pair]] += loads[entry]
    return torch.from_numpy(found)
