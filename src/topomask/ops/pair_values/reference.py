"""The sparse product of query features and transposed key features; pure torch.

Entry (i, j) is a sum over the nodes c that both rows have entries at: over triples (i, c, j). Triples are expanded for
one block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.pair_values import Factors, Product

# The most triples in memory at a time, unless a single row has more.
_TRIPLES_PER_CHUNK = 1 << 21


class _Block(NamedTuple):
    first_row: int
    last_row: int
    query_entry: Tensor  # [triples]
    key_place: Tensor  # [triples], in the column order of the keys
    pair: Tensor  # [triples], row in the block times number of keys plus key


class _Triples(NamedTuple):
    pair: Tensor  # [triples], place in the pattern of the product
    query_entry: Tensor
    key_place: Tensor


def _blocks(factors: Factors) -> Iterator[_Block]:
    row_ptr, columns, column_ptr, rows, num_keys = factors
    fan_out = column_ptr.diff()[columns]
    per_row = segments.pointers(fan_out)[row_ptr]
    num_rows, first = len(row_ptr) - 1, 0
    while first < num_rows:
        limit = per_row[first] + _TRIPLES_PER_CHUNK
        last = max(first + 1, int(torch.searchsorted(per_row, limit, right=True)) - 1)
        entries = torch.arange(int(row_ptr[first]), int(row_ptr[last]), device=columns.device)
        row = segments.index(row_ptr[first : last + 1] - row_ptr[first])
        counts = fan_out[entries]
        place = segments.ranges(column_ptr[columns[entries]], counts)
        pair = torch.repeat_interleave(row * num_keys, counts) + rows[place]
        yield _Block(first, last, torch.repeat_interleave(entries, counts), place, pair)
        first = last


def count_pairs(factors: Factors) -> Tensor:
    """Entries of every row of the product."""
    return pair_pattern(factors)[0].diff()


def pair_pattern(factors: Factors) -> tuple[Tensor, Tensor]:
    """Return row pointers and ascending columns of the product."""
    counts, columns = [factors.row_ptr[:0]], [factors.columns[:0]]
    for block in _blocks(factors):
        pairs = torch.unique(block.pair)
        counts.append(torch.bincount(pairs // factors.num_keys, minlength=block.last_row - block.first_row))
        columns.append(pairs % factors.num_keys)
    return segments.pointers(torch.cat(counts)), torch.cat(columns)


def _triples(product: Product) -> Iterator[_Triples]:
    row_ptr, num_keys = product.row_ptr, product.factors.num_keys
    for block in _blocks(product.factors):
        start, stop = int(row_ptr[block.first_row]), int(row_ptr[block.last_row])
        row = segments.index(row_ptr[block.first_row : block.last_row + 1] - start)
        known = row * num_keys + product.columns[start:stop]
        yield _Triples(start + torch.searchsorted(known, block.pair), block.query_entry, block.key_place)


def pair_values(product: Product) -> Tensor:
    """Return the values of the product on its pattern, [P] or [V, P]."""
    query, key = product.query_values, product.key_values
    out = query.new_zeros(*query.shape[:-1], len(product.columns))
    for pair, entry, place in _triples(product):
        out.index_add_(-1, pair, query[..., entry] * key[..., place])
    return out


def pair_values_backward(product: Product, grad: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the values of queries and of keys."""
    query, key = product.query_values, product.key_values
    grad_query, grad_key = torch.zeros_like(query), torch.zeros_like(key)
    for pair, entry, place in _triples(product):
        grad_pair = grad[..., pair]
        grad_query.index_add_(-1, entry, grad_pair * key[..., place])
        grad_key.index_add_(-1, place, grad_pair * query[..., entry])
    return {"query_values": grad_query, "key_values": grad_key}
