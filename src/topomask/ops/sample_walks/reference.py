"""Random walks from every start node at once, merged into sparse loads; pure torch.

Shapes: ``R`` start nodes, ``W`` walkers per start node, ``L`` steps, ``N`` nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.sample_walks import HALT, MOVE, GraphTensors, Loads, WalkSettings, length_dtype, random

# Walkers that are simulated at a time; bounds the temporary memory.
_WALKERS_PER_CHUNK = 1 << 19


def join(parts: Sequence[Loads]) -> Loads:
    """Concatenate the rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    row_ptrs, columns, entry_ptrs, lengths, loads = zip(*parts, strict=True)
    return Loads(
        segments.join(row_ptrs), torch.cat(columns), segments.join(entry_ptrs), torch.cat(lengths), torch.cat(loads)
    )


class _Walkers(NamedTuple):
    """Walkers of every row, sorted by the node they are at; those that have ended come last, at node N."""

    node: Tensor  # [R, W]
    number: Tensor  # [R, W], which walker it is
    weight: Tensor | None  # [R, W], product of W / p along the walk, if that does not telescope


class _Groups(NamedTuple):
    """Walkers of one row that are at the same node."""

    is_first: Tensor  # [R, W]
    number: Tensor  # [R, W], which group of its row
    rank: Tensor  # [R, W], place in the group
    size: Tensor  # [R, W]


def sample_walks(
    graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, heads: Sequence[int], dtype: torch.dtype
) -> Loads:
    """Sample walks from ``start_nodes`` [R] on ``graph`` (the tensors of a graph) for some heads."""
    rows = max(1, _WALKERS_PER_CHUNK // settings.num_walks)
    chunks = start_nodes.split(rows) or (start_nodes,)
    loads = join([_sample_chunk(graph, chunk, settings, head) for head in heads for chunk in chunks])
    most_entries = len(heads) * len(start_nodes) * (settings.num_walks * settings.max_length + 1)
    entry_ptr = loads.entry_ptr.to(segments.index_type(most_entries))
    return loads._replace(entry_ptr=entry_ptr, loads=loads.loads.to(dtype))


def _sample_chunk(graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int) -> Loads:
    num_nodes, num_rows = len(graph.row_ptr) - 1, len(start_nodes)
    needs_weight = graph.signs is not None or settings.normalization == "none"
    walkers, states = _start(graph, start_nodes, settings, head, needs_weight)
    groups = _group(walkers.node)
    records = [(torch.arange(num_rows), start_nodes, torch.ones(num_rows, dtype=torch.float64))]
    for step in range(1, settings.max_length + 1):
        walkers = _advance(graph, walkers, groups, states, settings, step)
        groups = _group(walkers.node)
        records.append(_record(graph, start_nodes, walkers, groups, settings, step))
    return merge(records, num_rows, num_nodes)


def random_walks(graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int) -> Tensor:
    """Return the nodes that every walker visits, [R, W, L + 1]; -1 once it has ended."""
    num_nodes = len(graph.row_ptr) - 1
    walkers, states = _start(graph, start_nodes, settings, head, needs_weight=False)
    paths = torch.empty((len(start_nodes), settings.num_walks, settings.max_length + 1), dtype=torch.int64)
    paths[:, :, 0] = start_nodes[:, None]
    for step in range(1, settings.max_length + 1):
        walkers = _advance(graph, walkers, _group(walkers.node), states, settings, step)
        node = torch.where(walkers.node < num_nodes, walkers.node, -1)
        paths[:, :, step].scatter_(1, walkers.number, node)
    return paths


def _start(
    graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int, needs_weight: bool
) -> tuple[_Walkers, dict[int, Tensor]]:
    """Return walkers before their first step, and the initial hash states of their draws."""
    shape = (len(start_nodes), settings.num_walks)
    walkers = _Walkers(
        node=start_nodes[:, None].expand(shape).contiguous(),
        number=torch.arange(settings.num_walks).expand(shape),
        weight=torch.ones(shape, dtype=torch.float64) if needs_weight else None,
    )
    states = {
        purpose: random.absorb(random.key(settings.seed, head, settings.ensemble, purpose), graph.ids[start_nodes])[
            :, None
        ]
        for purpose in (MOVE, HALT)
    }
    return walkers, states


def _group(node: Tensor) -> _Groups:
    """Find runs of equal nodes in sorted rows."""
    width = node.shape[1]
    is_first = torch.ones_like(node, dtype=torch.bool)
    is_first[:, 1:] = node[:, 1:] != node[:, :-1]
    index = is_first.cumsum(dim=1) - 1
    place = torch.arange(width).expand(node.shape)
    first = torch.where(is_first, place, 0).cummax(dim=1).values
    size = torch.zeros_like(node).scatter_add_(1, index, torch.ones_like(node)).gather(1, index)
    return _Groups(is_first, index, place - first, size)


def _advance(
    graph: GraphTensors,
    walkers: _Walkers,
    groups: _Groups,
    states: dict[int, Tensor],
    settings: WalkSettings,
    step: int,
) -> _Walkers:
    """Let every walker halt, end at a sink, or take one step; then sort the walkers by node again."""
    num_nodes = len(graph.row_ptr) - 1
    here = walkers.node.clamp(max=num_nodes - 1)
    degree = graph.row_ptr[here + 1] - graph.row_ptr[here]
    quantile, halts = _draw(graph.ids[here], walkers, groups, states, settings, step)
    moves = (walkers.node < num_nodes) & (degree > 0) & ~halts
    edge = _choose_edge(graph, here, degree, quantile)
    node = (
        torch.where(moves, graph.columns[edge].to(torch.int64), num_nodes)
        if len(graph.columns)
        else torch.full_like(here, num_nodes)
    )
    weight = walkers.weight
    if weight is not None and len(graph.columns):
        if graph.signs is not None:
            weight = weight * graph.signs[edge]
        if settings.normalization == "none":
            weight = weight * graph.degrees[here]
    node, order = node.sort(dim=1, stable=True)
    return _Walkers(node, walkers.number.gather(1, order), None if weight is None else weight.gather(1, order))


def _draw(
    node_ids: Tensor, walkers: _Walkers, groups: _Groups, states: dict[int, Tensor], settings: WalkSettings, step: int
) -> tuple[Tensor, Tensor]:
    """Return the quantile [R, W] that decides where a walker goes, and whether it halts instead."""
    halt_prob = settings.halt_prob
    if settings.coupling == "repelling":
        shared = random.uniform(random.absorb(random.absorb(states[MOVE], node_ids), step))
        quantile = (groups.rank / groups.size.to(torch.float64) + shared) % 1.0
        return (quantile - halt_prob) / (1.0 - halt_prob), quantile < halt_prob
    quantile = random.uniform(random.absorb(random.absorb(states[MOVE], walkers.number), step))
    if settings.coupling == "antithetic":
        pair, second = walkers.number // 2, walkers.number % 2
        halting = (random.uniform(random.absorb(random.absorb(states[HALT], pair), step)) + 0.5 * second) % 1.0
    else:
        halting = random.uniform(random.absorb(random.absorb(states[HALT], walkers.number), step))
    return quantile, halting < halt_prob


def _choose_edge(graph: GraphTensors, here: Tensor, degree: Tensor, quantile: Tensor) -> Tensor:
    """Return the position of the edge whose share of the node's total weight contains the quantile."""
    start, last = graph.row_ptr[here], (degree - 1).clamp(min=0)
    target = quantile.clamp(min=0.0) * graph.degrees[here]
    if graph.unit_weights:
        return (start + torch.minimum(target.to(torch.int64), last)).clamp(max=max(len(graph.columns) - 1, 0))
    low, high = torch.zeros_like(last), last
    for _ in range(int(degree.max()).bit_length() if degree.numel() else 0):
        middle = (low + high) // 2
        # Rows without edges point past the end; their walkers do not move.
        above = graph.cumulative[(start + middle).clamp(max=len(graph.cumulative) - 1)] > target
        low, high = torch.where(above | (low >= high), low, middle + 1), torch.where(above, middle, high)
    return (start + low).clamp(max=len(graph.columns) - 1)


def _record(
    graph: GraphTensors, start_nodes: Tensor, walkers: _Walkers, groups: _Groups, settings: WalkSettings, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loads after ``length`` steps as (row, node, load), with equal nodes of a row merged."""
    row, place = (groups.is_first & (walkers.node < len(graph.row_ptr) - 1)).nonzero(as_tuple=True)
    node = walkers.node[row, place]
    if walkers.weight is None:
        total = groups.size[row, place].to(torch.float64)
    else:
        sums = torch.zeros_like(walkers.weight).scatter_add_(1, groups.number, walkers.weight)
        total = sums[row, groups.number[row, place]]
    if settings.normalization == "sym":
        total = total * (graph.degrees[start_nodes[row]].sqrt() / graph.degrees[node].sqrt())
    return row, node, total / settings.divisor(length)


def merge(records: list[tuple[Tensor, Tensor, Tensor]], num_rows: int, num_nodes: int) -> Loads:
    """Sort records of all lengths by (row, column, length)."""
    num_lengths = len(records)
    keys = torch.cat([(row * num_nodes + node) * num_lengths + length for length, (row, node, _) in enumerate(records)])
    keys, order = keys.sort()
    loads = torch.cat([load for _, _, load in records])[order]
    pairs, entry_counts = torch.unique_consecutive(keys // num_lengths, return_counts=True)
    return Loads(
        row_ptr=segments.pointers(torch.bincount(pairs // num_nodes, minlength=num_rows)),
        columns=(pairs % num_nodes).to(segments.index_type(num_nodes)),
        entry_ptr=segments.pointers(entry_counts),
        lengths=(keys % num_lengths).to(length_dtype(num_lengths - 1)),
        loads=loads,
    )
