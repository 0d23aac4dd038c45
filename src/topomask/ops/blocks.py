"""Patterns of block-diagonal matrices."""

from __future__ import annotations

from torch import Tensor

from topomask.ops import segments
from topomask.ops.sparse_product import Pattern, make_pattern


def block_pattern(sizes: Tensor) -> Pattern:
    """All entries of square blocks of these sizes [G], one after the other along the diagonal."""
    counts = sizes.repeat_interleave(sizes)
    starts = segments.pointers(sizes)[:-1].repeat_interleave(sizes)
    num_columns = len(counts)
    columns = segments.ranges(starts, counts).to(segments.index_type(num_columns))
    return make_pattern(segments.pointers(counts), columns, num_columns)
