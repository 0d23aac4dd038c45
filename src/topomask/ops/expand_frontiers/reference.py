"""Frontiers of many rows at once, step by step, in NumPy.

Entries of all rows lie one after the other, in order of row and node. Sums are taken one term after the other, in the
order that is stated, so that every backend gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.expand_frontiers import HUB, PRUNE, Edges, Frontiers, FrontierSettings
from topomask.ops.expand_frontiers.hubs import CutEdges, cut_hubs, norms
from topomask.ops.expand_frontiers.ordering import magnitudes, tie_hashes
from topomask.ops.sample_walks import random
from topomask.ops.sample_walks.reference import join, merge

# Terms that are added up at a time at most; bounds the memory that does not end up in the result.
_TERMS_PER_CHUNK = 1 << 20
# Scores beyond this count as this, and the column of the start node as more.
_MAX_SCORE = 1e308


class Entries(NamedTuple):
    """Entries of rows."""

    row: np.ndarray
    node: np.ndarray
    value: np.ndarray

    def take(self, which: np.ndarray) -> Entries:
        """Some of them."""
        return Entries(*(field[which] for field in self))


class Rows(NamedTuple):
    """Start nodes, and what the draws and ties of their rows begin with."""

    starts: Tensor  # [R]
    edges: Edges
    settings: FrontierSettings
    head: int

    def state(self, purpose: int, row: np.ndarray, node: np.ndarray | None, step: int) -> Tensor:
        """Hash states of draws, one per row and node; for draws that belong to no node, that is None."""
        settings, ids = self.settings, self.edges.ids
        state = random.absorb(random.key(settings.seed, self.head, settings.ensemble, purpose), ids[self.starts[row]])
        return random.absorb(random.absorb(state, 0 if node is None else ids[node]), step)

    def rank(self, entries: Entries, scores: np.ndarray) -> np.ndarray:
        """The place of every entry in the order of its row."""
        ties = tie_hashes(self.edges.ids[self.starts[entries.row]], self.edges.ids[entries.node])
        order = np.lexsort((entries.node, ties, -magnitudes(scores), entries.row))
        counts = np.bincount(entries.row, minlength=len(self.starts))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rank


def expand_frontiers(edges: Edges, start_nodes: Tensor, settings: FrontierSettings, heads: Sequence[int]) -> Frontiers:
    """Expand and prune the rows of ``start_nodes`` [R] for some heads, one after the other."""
    most = int(edges.row_ptr.diff().max()) if len(edges.row_ptr) > 1 else 0
    chunk_rows = max(1, _TERMS_PER_CHUNK // (settings.width * max(1, min(settings.width, most))))
    chunks = start_nodes.split(chunk_rows) or (start_nodes,)
    cut = cut_hubs(edges, settings.width, settings.euclidean)
    # Numbers that overflow are found where they are used.
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [_expand_chunk(cut, Rows(chunk, edges, settings, head)) for head in heads for chunk in chunks]
    loads = join([part.loads for part in parts])
    max_loads = len(heads) * len(start_nodes) * settings.max_loads
    loads = loads._replace(
        entry_ptr=loads.entry_ptr.to(segments.index_type(max_loads)), loads=loads.loads.to(torch.float32)
    )
    if settings.prune == "resample":
        return Frontiers(loads, None, None)
    bounds, unreached = ([getattr(part, name) for part in parts] for name in ("bounds", "unreached"))
    return Frontiers(loads, torch.cat(bounds), torch.cat(unreached))


def _expand_chunk(cut: CutEdges, rows: Rows) -> Frontiers:
    num_rows, settings = len(rows.starts), rows.settings
    frontier = Entries(np.arange(num_rows), rows.starts.numpy(), np.ones(num_rows))
    frontiers, bounds = [frontier], np.zeros((num_rows, settings.max_length + 1))
    growth = rows.edges.growth[rows.starts].numpy()
    for step in range(1, settings.max_length + 1):
        if settings.prune == "largest":
            frontier, lost = _keep_largest(cut, rows, frontier)
            bounds[:, step] = bounds[:, step - 1] * growth + lost
        else:
            frontier = _resample(rows, frontier, step)
        frontiers.append(frontier)
    unreached = np.zeros(num_rows, dtype=bool)
    if settings.max_entries is not None:
        frontiers, bounds, unreached = _cut_columns(rows, frontiers, bounds)
    records = [tuple(map(torch.from_numpy, entries)) for entries in frontiers]
    loads = merge(records, num_rows, len(rows.edges.ids))  # type: ignore[arg-type]
    return Frontiers(loads, torch.from_numpy(bounds), torch.from_numpy(unreached))


def _add_up(row: np.ndarray, node: np.ndarray, terms: np.ndarray, num_nodes: int) -> tuple[Entries, np.ndarray]:
    """Sum up terms of the same row and node as they come, without zeros; and where the first of each came."""
    keys, first, group = np.unique(row * num_nodes + node, return_index=True, return_inverse=True)
    sums = np.bincount(group, terms, len(keys))
    nonzero = sums != 0
    return Entries(keys // num_nodes, keys % num_nodes, sums).take(nonzero), first[nonzero]


def _neighbours(frontier: Entries, row_ptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entry that every edge from a frontier leaves, and the edge; by row, source and target."""
    counts = np.diff(row_ptr)[frontier.node]
    source = np.repeat(np.arange(len(counts)), counts)
    edge = segments.ranges(torch.from_numpy(row_ptr[frontier.node]), torch.from_numpy(counts)).numpy()
    return source, edge


def _keep_largest(cut: CutEdges, rows: Rows, frontier: Entries) -> tuple[Entries, np.ndarray]:
    """Expand frontiers and keep their largest entries; also the norm of what this loses, per row."""
    num_rows, num_nodes, settings = len(rows.starts), len(rows.edges.ids), rows.settings
    source, edge = _neighbours(frontier, cut.row_ptr)
    terms = frontier.value[source] * cut.values[edge]
    found, first = _add_up(frontier.row[source], cut.columns[edge], terms, num_nodes)
    kept = rows.rank(found, found.value) < settings.width
    # In the order in which nodes were first reached.
    dropped = found.take(np.flatnonzero(~kept)[np.argsort(first[~kept])])
    lost = norms(dropped.row, dropped.value, num_rows, settings.euclidean)
    at_hubs = np.bincount(frontier.row, np.abs(frontier.value) * cut.rest[frontier.node], num_rows)
    return found.take(kept), lost + at_hubs


def _resample(rows: Rows, frontier: Entries, step: int) -> Entries:
    """Expand frontiers and thin them, without bias."""
    edges, width, ids = rows.edges, rows.settings.width, rows.edges.ids
    columns, values, degrees = edges.columns.numpy(), edges.values.numpy(), edges.row_ptr.diff().numpy()
    source, edge = _neighbours(frontier, edges.row_ptr.numpy())
    weights = values[edge]
    hubs = np.flatnonzero(degrees[frontier.node] > width)
    if len(hubs):
        ends = np.searchsorted(source, hubs, side="right")
        ties = tie_hashes(ids[frontier.node[source]], ids[columns[edge]])
        draws = random.uniform(rows.state(HUB, frontier.row[hubs], frontier.node[hubs], step)).numpy()
        for start, end, draw in zip(ends - degrees[frontier.node[hubs]], ends, draws, strict=True):
            weights[start:end] = thin(weights[start:end], ties[start:end], width, draw)
    terms = frontier.value[source] * weights
    found, _ = _add_up(frontier.row[source], columns[edge], terms, len(ids))
    ptr = np.searchsorted(found.row, np.arange(len(rows.starts) + 1))
    full = np.flatnonzero(np.diff(ptr) > width)
    if len(full):
        ties = tie_hashes(ids[rows.starts[found.row]], ids[found.node])
        draws = random.uniform(rows.state(PRUNE, full, None, step)).numpy()
        for start, end, draw in zip(ptr[full], ptr[full + 1], draws, strict=True):
            found.value[start:end] = thin(found.value[start:end], ties[start:end], width, draw)
    return found.take(found.value != 0)


def thin(values: np.ndarray, ties: np.ndarray, count: int, draw: float) -> np.ndarray:
    """Thin values, in order of ids, to ``count`` that are not zero; their expectation stays what they were.

    Large values stay. The others become 0 or plus or minus a threshold t, by one systematic draw.

    References:
        Fearnhead and Clifford (2003), On-line inference for hidden Markov models via particle filters.
    """
    sizes = np.abs(values)
    order = np.lexsort((ties, -magnitudes(values)))
    tails = np.cumsum(sizes[order][::-1])[::-1]
    # Unless numbers overflow, one entry can always take the place of the rest.
    kept = next((j for j in range(count) if sizes[order[j]] * (count - j) <= tails[j]), count - 1)
    rest = np.sort(order[kept:])
    sums, left = np.cumsum(sizes[rest]), count - kept
    threshold = sums[-1] / left
    # Rounding of the sums must not leave one more or less; thresholds that round to zero leave nothing.
    with np.errstate(divide="ignore"):
        numbers = np.minimum(np.floor(sums / threshold + draw), left)
    numbers[-1] = left
    out = values.copy()
    out[rest] = np.sign(values[rest]) * threshold * np.diff(numbers, prepend=0.0)
    return out


def _cut_columns(
    rows: Rows, frontiers: list[Entries], bounds: np.ndarray
) -> tuple[list[Entries], np.ndarray, np.ndarray]:
    """Cut columns of rows: to their largest number, and with a tolerance further while it is met.

    Returns:
        What is left, bounds on errors, and whether a row has not reached the tolerance.
    """
    settings, num_nodes = rows.settings, len(rows.edges.ids)
    assert settings.max_entries is not None
    row, node, value = map(np.concatenate, zip(*frontiers, strict=True))
    length = np.repeat(np.arange(len(frontiers)), [len(entries.row) for entries in frontiers])
    keys, pair = np.unique(row * num_nodes + node, return_inverse=True)
    scores = np.bincount(pair, np.array(settings.length_weights)[length] * np.abs(value), len(keys))
    scores = np.minimum(scores, _MAX_SCORE)
    pairs = Entries(keys // num_nodes, keys % num_nodes, scores)
    # The column of the start node always stays.
    scores[pairs.node == rows.starts.numpy()[pairs.row]] = np.inf
    rank = rows.rank(pairs, scores)
    limit = np.full(len(rows.starts), settings.max_entries)
    unreached = np.zeros(len(rows.starts), dtype=bool)
    if settings.tolerance is not None:
        counts = np.bincount(pairs.row, minlength=len(limit))
        terms = value * value if settings.euclidean else np.abs(value)
        for r in range(len(limit)):
            own = row == r
            loads = np.zeros((counts[r], len(frontiers)))
            loads[rank[pair[own]], length[own]] = terms[own]
            limit[r], unreached[r] = _reach_tolerance(loads, bounds[r], settings)
    kept = (rank < limit[pairs.row])[pair]
    lost = norms((row * len(frontiers) + length)[~kept], value[~kept], bounds.size, settings.euclidean)
    ends = np.cumsum([0] + [len(entries.row) for entries in frontiers])
    left = [entries.take(kept[a:b]) for entries, a, b in zip(frontiers, ends[:-1], ends[1:], strict=True)]
    return left, bounds + lost.reshape(bounds.shape), unreached


def _reach_tolerance(loads: np.ndarray, bounds: np.ndarray, settings: FrontierSettings) -> tuple[int, bool]:
    """How many columns a row keeps to meet the tolerance, and whether it misses it.

    Args:
        loads: What every column adds to the norm of every length if it is dropped, in order, [columns, L + 1].
        bounds: Bounds on errors before columns are dropped, [L + 1].
        settings: The tolerance and what else counts.
    """
    assert settings.max_entries is not None
    assert settings.tolerance is not None
    sums = np.concatenate([np.zeros((1, len(bounds))), np.cumsum(loads[:0:-1], axis=0)])
    errors = np.zeros(len(sums))
    for length, weight in enumerate(settings.length_weights):
        lost = np.sqrt(sums[:, length]) if settings.euclidean else sums[:, length]
        errors += weight * (bounds[length] + lost)
    dropped = max(0, len(loads) - settings.max_entries)
    while dropped + 1 < len(errors) and errors[dropped + 1] <= settings.tolerance:
        dropped += 1
    return len(loads) - dropped, bool(errors[dropped] > settings.tolerance)
