"""The sparse product of query features and transposed key features; pure torch.

Entry (i, j) is a sum over nodes c that both see: the triples (i, c, j). Triples are expanded a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments

# Triples that exist at a time, unless a single row has more.
_TRIPLES_PER_CHUNK = 1 << 21


class _Block(NamedTuple):
    first_row: int
    last_row: int
    query_entry: Tensor  # [triples]
    key_place: Tensor  # [triples], in the column order of the keys
    pair: Tensor  # [triples], row in the block times number of keys plus key


def _blocks(
    query_row_ptr: Tensor, query_columns: Tensor, key_column_ptr: Tensor, key_rows: Tensor, num_keys: int
) -> Iterator[_Block]:
    fan_out = key_column_ptr.diff()[query_columns]
    per_row = segments.pointers(fan_out)[query_row_ptr]
    num_rows, first = len(query_row_ptr) - 1, 0
    while first < num_rows:
        limit = per_row[first] + _TRIPLES_PER_CHUNK
        last = max(first + 1, int(torch.searchsorted(per_row, limit, right=True)) - 1)
        entries = torch.arange(int(query_row_ptr[first]), int(query_row_ptr[last]), device=query_columns.device)
        row = segments.index(query_row_ptr[first : last + 1] - query_row_ptr[first])
        counts = fan_out[entries]
        place = segments.ranges(key_column_ptr[query_columns[entries]], counts)
        pair = torch.repeat_interleave(row * num_keys, counts) + key_rows[place]
        yield _Block(first, last, torch.repeat_interleave(entries, counts), place, pair)
        first = last


def pair_pattern(
    query_row_ptr: Tensor, query_columns: Tensor, key_column_ptr: Tensor, key_rows: Tensor, num_keys: int
) -> tuple[Tensor, Tensor]:
    """Row pointers and ascending columns of the product."""
    counts, columns = [query_row_ptr[:0]], [query_columns[:0]]
    for block in _blocks(query_row_ptr, query_columns, key_column_ptr, key_rows, num_keys):
        pairs = torch.unique(block.pair)
        counts.append(torch.bincount(pairs // num_keys, minlength=block.last_row - block.first_row))
        columns.append(pairs % num_keys)
    return segments.pointers(torch.cat(counts)), torch.cat(columns)


def _located(
    row_ptr: Tensor, columns: Tensor, query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], num_keys: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The triples as (place in the pattern, query entry, key place in column order)."""
    for block in _blocks(*query, *key, num_keys):
        start, stop = int(row_ptr[block.first_row]), int(row_ptr[block.last_row])
        row = segments.index(row_ptr[block.first_row : block.last_row + 1] - start)
        known = row * num_keys + columns[start:stop]
        yield start + torch.searchsorted(known, block.pair), block.query_entry, block.key_place


def pair_values(
    row_ptr: Tensor,
    columns: Tensor,
    query_row_ptr: Tensor,
    query_columns: Tensor,
    key_column_ptr: Tensor,
    key_rows: Tensor,
    num_keys: int,
    query_values: Tensor,
    key_values: Tensor,
) -> Tensor:
    """Values of the product on its pattern, [P]; ``key_values`` come in column order."""
    out = query_values.new_zeros(len(columns))
    query, key = (query_row_ptr, query_columns), (key_column_ptr, key_rows)
    for pair, entry, place in _located(row_ptr, columns, query, key, num_keys):
        out.index_add_(0, pair, query_values[entry] * key_values[place])
    return out


def pair_values_backward(
    grad: Tensor,
    row_ptr: Tensor,
    columns: Tensor,
    query_row_ptr: Tensor,
    query_columns: Tensor,
    key_column_ptr: Tensor,
    key_rows: Tensor,
    num_keys: int,
    query_values: Tensor,
    key_values: Tensor,
) -> tuple[Tensor, Tensor]:
    """Derivatives in the values of queries and of keys (in column order)."""
    grad_query, grad_key = torch.zeros_like(query_values), torch.zeros_like(key_values)
    query, key = (query_row_ptr, query_columns), (key_column_ptr, key_rows)
    for pair, entry, place in _located(row_ptr, columns, query, key, num_keys):
        grad_pair = grad[pair]
        grad_query.index_add_(0, entry, grad_pair * key_values[place])
        grad_key.index_add_(0, place, grad_pair * query_values[entry])
    return grad_query, grad_key
