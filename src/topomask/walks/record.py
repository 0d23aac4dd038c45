"""Walks of queries and keys, with the patterns and counts that attention needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.graph.records import Record
from topomask.ops import segments
from topomask.ops.derived import derivation
from topomask.ops.pair_attention import MIN_ENTRIES_PER_ROW, TileWork, count_tiles, estimate_tiles
from topomask.ops.pair_values import count_triples, estimate_pairs, pair_pattern
from topomask.ops.sparse_product import Pattern, suggest_order
from topomask.walks.features import WalkFeatures

# Pairs are not formed if more pairs of walks than this meet, per query and head.
MAX_PAIRS_PER_QUERY = 8192

# Most numbers in dense loads: 4 MB.
_MAX_DENSE_LOADS = 1 << 20


class DenseLoads(NamedTuple):
    """Loads of queries and keys as a dense matrix per set of walks and length, [S, L + 1, R * N]."""

    query: Tensor
    key: Tensor | None

    @classmethod
    def of(cls, query: WalkFeatures, key: WalkFeatures | None) -> DenseLoads | None:
        """Make dense loads for a small graph, where a few large products beat many small ones; otherwise None."""
        if query.num_heads * (query.max_length + 1) * query.num_rows * query.num_columns > _MAX_DENSE_LOADS:
            return None
        dense = query.dense_loads()
        return cls(dense, None if key is None else dense if key is query else key.dense_loads())

    def pairs(self, num_nodes: int) -> Tensor:
        """Whether each query and key meet, [S, N, N]."""

        def visits(loads: Tensor) -> Tensor:
            return (loads != 0).any(dim=1).view(len(loads), num_nodes, num_nodes)

        query = visits(self.query)
        return query if self.key is None else query.float() @ visits(self.key).float().mT > 0


class WalkCounts(NamedTuple):
    """Counts over all sets of walks."""

    nonzeros: int  # entries of the features of queries and keys
    triples: int  # pairs of walks that meet, an upper bound on pairs
    pairs: int  # pairs of query and key, possibly estimated
    tiles: TileWork | None  # work of attention in tiles, if possible

    def roughly(self) -> WalkCounts:
        """Round to powers of two, which resampled walks usually share, so that compiled code can be reused."""
        tiles = None if self.tiles is None else TileWork(*map(_power_of_two, self.tiles))
        nonzeros, triples, pairs = map(_power_of_two, self[:3])
        return WalkCounts(nonzeros, triples, pairs, tiles)


def _power_of_two(count: int) -> int:
    return 0 if count == 0 else 1 << round(math.log2(count))


@dataclass(eq=False)
class WalkRecord(Record):
    """Walks of queries and keys: ``key`` is None if only queries walk, and ``query`` itself if walks are shared."""

    query: WalkFeatures
    key: WalkFeatures | None
    counts: WalkCounts
    rough_counts: WalkCounts
    # Whether any load is negative.
    signed: bool
    # On small graphs only.
    dense: DenseLoads | None

    @property
    def query_pattern(self) -> Pattern:
        """Positions of the entries of the queries' features."""
        return self.query._pattern

    @property
    def key_pattern(self) -> Pattern:
        """Positions of the entries of the keys' features."""
        assert self.key is not None
        return self.key._pattern

    def pairs(self) -> Pattern:
        """Positions of pairs of query and key whose walks meet; cached."""
        if self.key is None:
            return self.query_pattern
        return Pattern(*_pair_pattern([*self.query_pattern, *self.key_pattern], []))

    def rows(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> WalkRecord:
        """Return the record of selected queries and keys."""
        query = self.query if query_nodes is None else self.query.rows(query_nodes)
        key = self.key if self.key is None or key_nodes is None else self.key.rows(key_nodes)
        return make_record(query, key, None, query.device, query.dtype)


def make_record(
    query: WalkFeatures, key: WalkFeatures | None, graph: Graph | None, device: torch.device, dtype: torch.dtype
) -> WalkRecord:
    """Make the record of walks, with loads in at least float32; ``graph`` is None for a selection of its nodes."""
    moved = query.to(device, dtype)
    query, key = moved, moved if key is query else None if key is None else key.to(device, dtype)
    # Not at first use, which may be inside torch.compile.
    for side in {query, query if key is None else key}:
        side.prepare()
    if graph is not None:
        suggest_order(query._pattern.columns, graph, partial(_order_per_head, num_heads=query.num_heads))
    signed = query.signed or (key is not None and key.signed)
    dense = None if graph is None else DenseLoads.of(query, key)
    counts = _count(query, key, dense)
    return WalkRecord(query, key, counts, counts.roughly(), signed, dense)


def _count(query: WalkFeatures, key: WalkFeatures | None, dense: DenseLoads | None) -> WalkCounts:
    """Count entries, pairs and tiles exactly on small graphs, and estimate them from samples on others."""
    num_rows = query.num_rows * query.num_heads
    nonzeros = query.num_nonzeros + (0 if key is None else key.num_nonzeros)
    triples = query.num_nonzeros if key is None else count_triples(query._pattern, key._pattern)
    if triples > MAX_PAIRS_PER_QUERY * num_rows:
        return WalkCounts(nonzeros, triples, pairs=triples, tiles=None)
    pairs, met = triples, None if dense is None else dense.pairs(query.num_rows)
    if key is not None:
        pairs = estimate_pairs(query._pattern, key._pattern) if met is None else int(met.sum())
    if pairs < MIN_ENTRIES_PER_ROW * num_rows or query.device.type != "cpu":
        tiles = None
    elif met is not None and 2 * pairs >= met.numel():
        # Most queries and keys meet, so it hardly matters which of them share a tile.
        tiles = count_tiles(met)
    else:
        tiles = estimate_tiles(query._pattern, None if key is None else key._pattern)
    return WalkCounts(nonzeros, triples, pairs, tiles)


def _order_per_head(graph: Graph, num_heads: int) -> Tensor:
    return (torch.arange(num_heads, device="cpu")[:, None] * graph.num_nodes + graph.node_groups).flatten()


def _pair_shapes(tensors: list[Tensor], _: list[int]) -> list[tuple[int | None, torch.dtype]]:
    num_rows, num_keys = tensors[0].shape[0], tensors[5].shape[0]
    kind = segments.index_type(max(num_rows, num_keys))
    return [(num_rows, torch.int64), (None, kind), (num_keys, torch.int64), (None, kind), (None, kind)]


@derivation(_pair_shapes)
def _pair_pattern(tensors: list[Tensor], _: list[int]) -> Pattern:
    """Compute the pattern of Phi_q Phi_k^T from the patterns of both."""
    return pair_pattern(Pattern(*tensors[:5]), Pattern(*tensors[5:]))
