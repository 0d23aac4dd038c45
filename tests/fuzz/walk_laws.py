"""What loads of walks must be whatever was drawn: whole numbers of walkers on walks that exist."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import topomask as tm
from fuzz.graphs import Array, MismatchError, PlainGraph
from fuzz.plain import walk_loads


def check_walks(
    plain: PlainGraph, walks: tm.WalkFeatures, num_walks: int, halt: float, w: Array, normalization: str | None
) -> None:
    """A MismatchError unless loads are those of ``num_walks`` walkers per node.

    Where all weights are positive, ``"sym"`` and ``"row"`` loads telescope to a share of walkers times a factor of the
    two ends, so that shares can be read off. Without halting no walker is lost but at nodes without out-edges.
    """
    loads = walk_loads(walks, plain.size).numpy()  # [S, L + 1, N, N]
    degrees = np.abs(plain.adjacency).sum(axis=1)
    reach = np.eye(plain.size)
    for length in range(loads.shape[1]):
        if (loads[:, length][:, reach == 0] != 0).any():
            raise MismatchError(f"a walk of length {length} is where no walk leads")
        reach = (reach @ (plain.adjacency != 0) > 0).astype(float)
    kind = normalization or ("row" if plain.directed else "sym")
    if (plain.adjacency < 0).any() and walks.weighting != "visits":
        return
    if walks.weighting != "visits" and kind == "none":
        return
    positive = np.where(degrees > 0, degrees, 1.0)
    factor = np.ones((plain.size, plain.size))
    if walks.weighting != "visits" and kind == "sym":
        factor = np.sqrt(positive[:, None] / positive)
    survival = (1.0 - halt) ** np.arange(loads.shape[1])[:, None, None]
    if walks.weighting == "visits":
        survival = np.ones_like(survival)
    walkers = loads / factor * survival * num_walks
    if np.abs(walkers - np.rint(walkers)).max(initial=0.0) > 1e-3 * num_walks:
        raise MismatchError("loads are not shares of walkers")
    totals = walkers.sum(axis=-1)  # [S, L + 1, N]
    if (totals > num_walks * (1 + 1e-4)).any() or (np.diff(totals, axis=1) > 1e-3 * num_walks).any():
        raise MismatchError("there are more walkers than were sent")
    if halt == 0.0 and (degrees > 0).all() and np.abs(totals - num_walks).max(initial=0.0) > 1e-3 * num_walks:
        raise MismatchError("walkers were lost")


def check_frontiers(features: tm.WalkFeatures, options: dict[str, Any], w: Array) -> None:
    """A MismatchError unless loads are those of powers of W that were pruned.

    A frontier that was never too long is exact, and bounds on the errors of the others must hold.
    """
    loads = walk_loads(features, len(w)).numpy()  # [S, L + 1, N, N]
    entries = (loads != 0).any(axis=1).sum(axis=-1)
    most = options.get("max_entries", options["width"]) if options["prune"] == "largest" else len(w)
    if entries.max(initial=0) > most or (loads != 0).sum(axis=-1).max(initial=0) > options["width"]:
        raise MismatchError("there are more entries than asked for")
    power = np.eye(len(w))
    for length in range(loads.shape[1]):
        size = 1e-5 * np.abs(power).max(initial=1.0)
        if options["width"] >= len(w) <= most and np.abs(loads[:, length] - power).max(initial=0.0) > size:
            raise MismatchError(f"powers of length {length} were not pruned, but are wrong")
        if options["prune"] == "largest":
            f = torch.zeros(loads.shape[1], dtype=torch.float64)
            f[length] = 1.0
            order = 2 if features.normalization == "sym" else 1
            error = np.linalg.norm(loads[0, length] - power, ord=order, axis=-1) if len(w) else np.zeros(0)
            if (error > features.error_bound(f).numpy() + 1e-12 * np.abs(power).sum(axis=-1)).any():
                raise MismatchError(f"the error of a row of length {length} is above its bound")
        power = power @ w
