"""The order of nodes: by id within a graph, whatever their numbers are; and the order of entries that are pruned."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.expand_frontiers import TIE, Edges
from topomask.ops.sample_walks import Loads, random


def magnitudes(values: np.ndarray) -> np.ndarray:
    """Absolute values rounded to 24 bits, as int64 that compare as they do.

    What differs by the rounding of sums counts as equal, so it hardly matters in which order nodes are numbered.
    """
    return (np.abs(values).view(np.int64) + (1 << 28)) >> 29


def tie_hashes(start_ids: Tensor, ids: Tensor) -> np.ndarray:
    """Numbers that order nodes of equal magnitudes in the row of a node; shapes broadcast.

    They depend on ids alone, not on a seed, a head or an ensemble.
    """
    state = random.absorb(random.absorb(random.absorb(random.key(0, 0, 0, TIE), start_ids), ids), 0)
    return ((state >> 1) & ((1 << 63) - 1)).numpy()


def id_order(edges: Edges) -> Tensor | None:
    """The nodes in order of their ids, or None if the numbers of the nodes of every component ascend as ids do."""
    falls = edges.ids.diff() < 0
    if not bool(falls.any()):
        return None
    # A batch has ids that start anew with every graph, where no edge leads.
    run = segments.pointers(falls.to(torch.int64))
    sources = segments.index(edges.row_ptr, len(edges.columns))
    if torch.equal(run[sources], run[edges.columns]):
        return None
    return edges.ids.argsort(stable=True)


def renumber(edges: Edges, order: Tensor, place: Tensor) -> Edges:
    """Number the nodes in this order; ``place`` is its inverse."""
    counts = edges.row_ptr.diff()[order]
    taken = segments.ranges(edges.row_ptr[order], counts)
    columns, row_ptr = place[edges.columns[taken]], segments.pointers(counts)
    by_column = _sort_rows(columns, row_ptr, len(order))
    return Edges.trusted(
        row_ptr=row_ptr,
        columns=columns[by_column].to(edges.columns.dtype),
        values=edges.values[taken[by_column]],
        ids=edges.ids[order],
        growth=edges.growth[order],
    )


def restore(loads: Loads, order: Tensor) -> Loads:
    """Number columns as before, and sort them again."""
    columns = order[loads.columns]
    by_column = _sort_rows(columns, loads.row_ptr, len(order))
    counts = loads.entry_ptr.diff()[by_column]
    taken = segments.ranges(loads.entry_ptr[by_column], counts)
    entry_ptr = segments.pointers(counts).to(loads.entry_ptr.dtype)
    columns = columns[by_column].to(loads.columns.dtype)
    return Loads(loads.row_ptr, columns, entry_ptr, loads.lengths[taken], loads.loads[taken])


def _sort_rows(columns: Tensor, row_ptr: Tensor, num_nodes: int) -> Tensor:
    """Where the columns of every row are, in ascending order."""
    return (segments.index(row_ptr, len(columns)) * num_nodes + columns).argsort()
