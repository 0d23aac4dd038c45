"""How the rows of hubs are thinned: all but the draw, once per hub."""

from __future__ import annotations

import numpy as np
import torch

from topomask.ops.expand_frontiers import Edges
from topomask.ops.expand_frontiers.numba.frontiers import Hubs
from topomask.ops.expand_frontiers.ordering import magnitudes, tie_hashes


def prepare_hubs(edges: Edges, width: int) -> Hubs:
    """Sort the rows of nodes with more than ``width`` neighbours into what stays and what is thinned."""
    row_ptr, degrees = edges.row_ptr.numpy(), edges.row_ptr.diff().numpy()
    nodes = np.flatnonzero(degrees > width)
    number = np.zeros(len(degrees), np.uint64)
    number[nodes] = np.arange(1, len(nodes) + 1)
    sum_ptr = np.concatenate([[0], np.cumsum(degrees[nodes])])
    sums, is_kept = np.empty(sum_ptr[-1]), np.empty(sum_ptr[-1], dtype=bool)
    # Hubs of the same degree at once: sums along an axis are taken one term after the other.
    for degree in np.unique(degrees[nodes]):
        alike = np.flatnonzero(degrees[nodes] == degree)
        place = np.arange(degree) + sum_ptr[alike, None]
        own = np.arange(degree) + row_ptr[nodes[alike], None]
        sums[place], is_kept[place] = _thin_rows(edges, nodes[alike], own, width)
    edge = np.repeat(row_ptr[nodes] - sum_ptr[:-1], degrees[nodes]) + np.arange(sum_ptr[-1])
    counts = np.add.reduceat(is_kept, sum_ptr[:-1], dtype=np.int64) if len(nodes) else np.zeros(0, np.int64)
    last = np.zeros(len(nodes), np.int64)
    hub = np.repeat(np.arange(len(nodes)), degrees[nodes])
    np.maximum.at(last, hub[~is_kept], edge[~is_kept])
    left = (width - counts).astype(np.float64)
    return Hubs(
        number=number,
        kept_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64),
        kept=edge[is_kept].astype(np.uint64),
        threshold=sums[sum_ptr[1:] - 1] / left,
        left=left,
        last=last.astype(np.uint64),
        sum_ptr=sum_ptr[:-1].astype(np.uint64),
        sums=sums,
    )


def _thin_rows(edges: Edges, nodes: np.ndarray, own: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return running sums over what does not stay of rows with the edges ``own`` [rows, degree], and what stays."""
    sizes = edges.values.abs().numpy()[own]
    ids = edges.ids[edges.columns[torch.from_numpy(own)]]
    # Sorting is stable, and columns are in order of ids.
    order = np.lexsort((tie_hashes(edges.ids[nodes, None], ids), -magnitudes(sizes)))
    by_order = np.take_along_axis(sizes, order, axis=1)
    tails = np.cumsum(by_order[:, ::-1], axis=1)[:, ::-1]
    counts = np.argmax(by_order[:, :width] * (width - np.arange(width)) <= tails[:, :width], axis=1)
    is_kept = np.zeros(own.shape, dtype=bool)
    np.put_along_axis(is_kept, order, np.arange(own.shape[1]) < counts[:, None], axis=1)
    return np.cumsum(np.where(is_kept, 0.0, sizes), axis=1), is_kept
