"""What an operator costs: all that the plan of attention looks at."""

from __future__ import annotations

from typing import NamedTuple

from topomask.ops.pair_attention import TileWork

# Entries of a dense mask that are kept while no parameter changes.
MAX_KEPT_ENTRIES = 1 << 24


class Cost(NamedTuple):
    """Counted work of an operator, over all heads."""

    # Multiply-adds of one product with one column.
    product: int
    # Multiply-adds to form the dense matrix, apart from writing it.
    dense: int
    # Multiply-adds to compute the entries before they are used; 0 where they are at hand.
    refresh: int = 0
    # About how many entries a sparse operator has, and at most; None for one that is not sparse.
    pairs: int | None = None
    max_pairs: int | None = None
    # Attention over pairs in tiles; None where it goes row by row, or that is not known.
    tiles: TileWork | None = None
    # r of an operator that attends as plain linear attention with r times the features; None for any other.
    rank: int | None = None
    # Rows of the largest intermediate result of a product, where they are more than queries and keys.
    inner_rows: int = 0
