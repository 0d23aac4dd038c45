"""Block-diagonal matrices: the pattern of square blocks, and where their entries are in products with unit vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.derived import derivation
from topomask.ops.sparse_product import Pattern, make_pattern, suggest_order


def find_block_pattern(sizes: Tensor, num_rows: int, num_entries: int) -> Pattern:
    """Return the pattern of a block-diagonal matrix, with all entries of square blocks; it is computed once.

    Args:
        sizes: The size of every block, [G].
        num_rows: The sum of the sizes.
        num_entries: The sum of their squares.
    """
    return Pattern(*_block_pattern([sizes], [num_entries, num_rows]))


def find_block_places(
    sizes: Tensor, num_rows: int, num_entries: int, largest: int, width: int
) -> tuple[Tensor, Tensor | None]:
    """Return where the entries of all blocks are in products with ``width`` columns at a time; it is computed once.

    Column c of the products is the c-th column of every block. The first chunk of columns has some entries of every
    block, the next one more of them, and so on up to the ``largest`` size.

    Args:
        sizes: The size of every block, [G].
        num_rows: The sum of the sizes.
        num_entries: The sum of their squares.
        largest: The largest size.
        width: Number of columns at a time.

    Returns:
        The flat positions of entries in the product [num_rows, width] of every chunk, one chunk after the other, [P];
        and the index among these of every entry of the pattern, row by row, [P], or None if there is only one chunk.
    """
    where, order = _block_places([sizes], [num_entries, num_rows, largest, width])
    return where, None if width >= largest else order


def _pattern_shapes(_: list[Tensor], numbers: list[int]) -> list[tuple[int | None, torch.dtype]]:
    num_entries, num_rows = numbers
    columns = (num_entries, segments.index_type(num_rows + 1))
    pointers = (num_rows + 1, torch.int64)
    return [pointers, columns, pointers, columns, (num_entries, segments.index_type(num_entries))]


@derivation(_pattern_shapes)
def _block_pattern(tensors: list[Tensor], numbers: list[int]) -> Pattern:
    (sizes,), num_rows = tensors, numbers[1]
    counts = sizes.repeat_interleave(sizes)
    starts = segments.pointers(sizes)[:-1].repeat_interleave(sizes)
    columns = segments.ranges(starts, counts).to(segments.index_type(num_rows))
    pattern = make_pattern(segments.pointers(counts), columns, num_rows)
    # Rows of a block are already next to each other.
    suggest_order(pattern.columns, sizes, _as_they_come)
    return pattern


def _as_they_come(sizes: Tensor) -> Tensor:
    return torch.arange(int(sizes.sum()), device="cpu")


def _place_shapes(_: list[Tensor], numbers: list[int]) -> list[tuple[int | None, torch.dtype]]:
    num_entries, num_rows, largest, width = numbers
    order = num_entries if width < largest else 0
    return [(num_entries, segments.index_type(num_rows * width)), (order, segments.index_type(num_entries))]


@derivation(_place_shapes)
def _block_places(tensors: list[Tensor], numbers: list[int]) -> tuple[Tensor, Tensor]:
    (sizes,), (num_entries, num_rows, largest, width) = tensors, numbers
    counts = sizes.repeat_interleave(sizes)
    rows, starts = torch.arange(num_rows, device=sizes.device), segments.pointers(counts)[:-1]
    places, targets = [], []
    for first in range(0, largest, width):
        last = min(first + width, largest)
        own = (counts - first).clamp(0, last - first)
        places.append(segments.ranges(rows * (last - first), own).to(segments.index_type(num_rows * width)))
        targets.append(segments.ranges(starts + first, own))
    order = torch.empty(0 if len(places) == 1 else num_entries, dtype=segments.index_type(num_entries))
    order = order.to(sizes.device)
    if len(places) > 1:
        order[torch.cat(targets)] = torch.arange(num_entries, dtype=order.dtype, device=order.device)
    return torch.cat(places), order
