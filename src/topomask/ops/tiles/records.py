"""Arguments and memory of the tile kernels: named arrays. Numba supports these records as it does arrays.

Letters: ``G`` items of a batch, ``R`` queries, ``N`` keys, ``M`` features, ``D`` width of values, ``V`` heads with
weights of their own, of which item g uses number g % V.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Tokens(NamedTuple):
    """Queries, keys and values."""

    q: np.ndarray  # [G, R, M]
    k: np.ndarray  # [G, N, M]
    v: np.ndarray  # [G, N, D]
    is_key: np.ndarray  # [G, N], or [0, 0] if there is no padding


class Options(NamedTuple):
    """How to attend."""

    normalize: bool
    separate_magnitudes: bool  # whether the normaliser uses magnitudes other than the weights


class Results(NamedTuple):
    """The outputs of attention, and the gradient of the first."""

    out: np.ndarray  # [G, R, D]
    denominator: np.ndarray  # [G, R]
    grad: np.ndarray  # [G, R, D]


class TokenGradients(NamedTuple):
    """Gradients of queries; and of keys and values, one row after the other, with widths padded to multiples of 16.

    The rows of all items come first. No two blocks of tiles add to the same row: keys that several blocks see have
    additional rows after those of all items.
    """

    q: np.ndarray  # [G, R, M]
    k: np.ndarray  # [G * (N + repeated), M']
    v: np.ndarray  # [G * (N + repeated), D']


class Schedule(NamedTuple):
    """How tiles are split into blocks, and in which order a block processes them."""

    blocks: np.ndarray  # [blocks + 1], where the tiles of a block begin
    together: int  # tiles that process the whole batch before the next ones
    targets: np.ndarray  # [keys], backward only: row of every key of the tiles in the gradients of an item


class Tiles(NamedTuple):
    """Tiles of 16 queries, and the keys that each visits."""

    order: np.ndarray  # [tiles * 16], int32, the row of every lane; unused lanes of the last tile repeat a row
    starts: np.ndarray  # [tiles + 1], where the keys of a tile begin
    ends: np.ndarray  # [tiles], where keys that are processed in all lanes end, a multiple of 8 after the start
    keys: np.ndarray  # [starts[-1] + 8], int32
    rest_ptr: np.ndarray  # [tiles * 16 + 1], where the other pairs of every lane begin
    rest: np.ndarray  # [others], int32, key of such a pair, counted from the start of the tile
    num_rows: int


class Packed(NamedTuple):
    """Weights of all tiles, [V, starts[-1] * 16]; magnitudes are empty if they are the weights."""

    weights: np.ndarray
    magnitudes: np.ndarray


class Entries(NamedTuple):
    """Entries of a pattern, [V, P]; magnitudes are empty if they are the values."""

    row_ptr: np.ndarray  # [R + 1]
    slots: np.ndarray  # [P], place of every entry in its tile
    values: np.ndarray
    magnitudes: np.ndarray


class Features(NamedTuple):
    """Features of queries by row, and of keys by column; magnitudes are empty if they are the values."""

    row_ptr: np.ndarray  # [R + 1]
    columns: np.ndarray  # [P_q]
    query_values: np.ndarray  # [V, P_q]
    query_magnitudes: np.ndarray
    column_ptr: np.ndarray  # [C + 1]
    rows: np.ndarray  # [P_k]
    key_values: np.ndarray  # [V, P_k]
    key_magnitudes: np.ndarray


class Source(NamedTuple):
    """Where the weights of tiles come from: one of three. Numba does not compile branches for those that are None."""

    num_heads: int
    packed: Packed | None = None
    entries: Entries | None = None
    features: Features | None = None


class EntryGradients(NamedTuple):
    """Gradients of the entries of a pattern."""

    values: np.ndarray  # [V, P]
    magnitudes: np.ndarray


class FeatureGradients(NamedTuple):
    """Gradients of features; those of keys have one summand per block of tiles."""

    query_values: np.ndarray  # [V, P_q]
    query_magnitudes: np.ndarray
    key_values: np.ndarray  # [blocks, V, P_k]
    key_magnitudes: np.ndarray


class Numbering(NamedTuple):
    """Tables for numbering the columns of features and the keys that a tile sees."""

    column_slots: np.ndarray  # [blocks, C], -1 for columns that are not seen
    seen_columns: np.ndarray  # [blocks, max_columns]
    key_slots: np.ndarray  # [blocks, N]


class Scratch(NamedTuple):
    """Memory for every block of tiles; kernels take it as [blocks, ...], functions that they call take one row of each.

    ``K`` is the largest number of keys of a tile, ``T`` the number of tiles that process the batch together. Widths of
    features and values are rounded up to multiples of 16, M' and D'.
    """

    weights: np.ndarray  # [blocks, T * K * 16]
    magnitudes: np.ndarray
    scores: np.ndarray  # [blocks, K * 16]
    bits: np.ndarray  # [blocks, K * 16], int32, for exponentials
    query_rows: np.ndarray  # [blocks, 16 * M']
    query_lanes: np.ndarray  # the same, transposed
    value_rows: np.ndarray  # [blocks, 16 * D']; results in the forward pass, their gradients in the backward pass
    value_lanes: np.ndarray
    totals: np.ndarray  # [blocks, 16]; in the backward pass, their gradients
    tops: np.ndarray  # [blocks, 16], largest exponents
    caps: np.ndarray  # [blocks, 16], bounds of exponents
    feature_lanes: np.ndarray  # [blocks, max_columns * 16]


class BackwardScratch(NamedTuple):
    """Additional memory of the backward pass."""

    grad_weights: np.ndarray  # [blocks, T * K * 16]
    grad_magnitudes: np.ndarray
    value_slopes: np.ndarray  # [blocks, 8 * 16]
    grad_query_rows: np.ndarray  # [blocks, 16 * M']
    grad_query_lanes: np.ndarray
    targets: np.ndarray  # [blocks, K], int32, rows that gradients of keys are added to
    grad_feature_lanes: np.ndarray  # [blocks, max_columns * 16]
