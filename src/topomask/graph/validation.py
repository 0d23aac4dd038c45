"""Checks of the arrays that somebody hands to Graph(...); what builders compute needs none."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from topomask.graph.input import Array, check_crossing, check_integer, check_node_count, descends, to_numpy

# Degrees may fall below the sums of weights by this part.
_ROUNDING = 1e-6


def checked_fields(
    indptr: Any,
    indices: Any,
    weights: Any,
    directed: bool,
    ids: Any,
    degrees: Any,
    graph_index: Any,
    num_graphs: int,
    parts: Any,
) -> dict[str, Any]:
    """Fields of a graph, the arrays copied in the types they have there; a ValueError names what is wrong."""
    if not isinstance(directed, (bool, np.bool_)):
        raise ValueError(f"`directed` must be True or False, but is {directed!r}.")
    indptr = _array("indptr", indptr, np.int64)
    num_nodes = len(indptr) - 1
    if num_nodes < 1:
        raise ValueError(f"`indptr` must have shape [num_nodes + 1], but has shape {indptr.shape}. Pass a node.")
    check_node_count("indptr", num_nodes)
    indices = _array("indices", indices, np.int64)
    weights = _array("weights", weights, np.float64, len(indices))
    ids, degrees = _array("ids", ids, np.int64, num_nodes), _array("degrees", degrees, np.float64, num_nodes)
    graph_index = _array("graph_index", graph_index, np.int64, num_nodes)
    check_integer("num_graphs", num_graphs, 1)
    check_node_count("num_graphs", int(num_graphs))
    rows = _check_rows(indptr, indices)
    _check_numbers(rows, indices, weights, degrees)
    if (ids < 0).any():
        raise ValueError(f"`ids` must not be negative, but node {int(np.argmax(ids < 0))} has {ids.min()}.")
    _check_groups(graph_index, int(num_graphs), rows, indices)
    if not directed:
        _check_symmetry(indptr, indices, weights)
    found = {
        "indptr": indptr,
        "indices": indices,
        "weights": weights,
        "directed": bool(directed),
        "ids": ids,
        "degrees": degrees,
        "graph_index": graph_index,
        "num_graphs": int(num_graphs),
        "parts": tuple(parts),
        "num_nodes": num_nodes,
    }
    if found["parts"]:
        _check_parts(found)
    return found


def _array(name: str, values: Any, dtype: type, size: int | None = None) -> Array:
    """A copy that nobody else can write to."""
    array = to_numpy(values)
    kinds = "iu" if dtype is np.int64 else "iufb"
    if array.ndim != 1 or (array.dtype.kind not in kinds and array.size):
        kind = "integers" if dtype is np.int64 else "real numbers"
        raise ValueError(
            f"`{name}` must be {kind} with one axis, but has shape {array.shape} and dtype {array.dtype}. Build graphs "
            "with Graph.from_edges."
        )
    if size is not None and len(array) != size:
        per = "edge in `indices`" if name == "weights" else "node"
        raise ValueError(f"`{name}` must have shape [{size}], one number per {per}, but has shape {array.shape}.")
    return array.astype(dtype)


def _check_rows(indptr: Array, indices: Array) -> Array:
    """The row of every entry."""
    if indptr[0] != 0 or indptr[-1] != len(indices) or descends(indptr):
        raise ValueError(
            f"`indptr` must ascend from 0 to {len(indices)}, the number of `indices`, but "
            + (
                f"descends after place {int(np.argmax(indptr[1:] < indptr[:-1]))}."
                if descends(indptr)
                else f"goes from {indptr[0]} to {indptr[-1]}."
            )
            + " Build graphs with Graph.from_edges."
        )
    num_nodes = len(indptr) - 1
    outside = np.flatnonzero((indices < 0) | (indices >= num_nodes))
    if outside.size:
        k = outside[0]
        raise ValueError(
            f"`indices` must lie in [0, num_nodes={num_nodes}), but indices[{k}] is {indices[k]}. Remove the edge, or "
            "pass a longer `indptr`."
        )
    rows = np.repeat(np.arange(num_nodes), np.diff(indptr))
    falls = np.flatnonzero((rows[1:] == rows[:-1]) & (indices[1:] <= indices[:-1]))
    if falls.size:
        k = falls[0]
        raise ValueError(
            f"`indices` must ascend in every row, each once, but row {rows[k]} has {indices[k]} before "
            f"{indices[k + 1]}. Build graphs with Graph.from_edges, which sorts and merges."
        )
    return rows


def _check_numbers(rows: Array, indices: Array, weights: Array, degrees: Array) -> None:
    wrong = np.flatnonzero(~np.isfinite(weights) | (weights == 0))
    if wrong.size:
        k = wrong[0]
        raise ValueError(
            f"`weights` must be finite and not 0, but edge ({rows[k]}, {indices[k]}) has weight {weights[k]}. Remove "
            "the edge."
        )
    totals = np.bincount(rows, weights=np.abs(weights), minlength=len(degrees))
    wrong = np.flatnonzero(~np.isfinite(degrees) | (degrees < totals * (1 - _ROUNDING)))
    if wrong.size:
        node = wrong[0]
        raise ValueError(
            f"`degrees` must be finite and at least the sum of the absolute weights of a node, but node {node} has "
            f"degree {degrees[node]}, and its weights sum up to {totals[node]}."
        )


def _check_groups(graph_index: Array, num_graphs: int, rows: Array, indices: Array) -> None:
    if graph_index[0] < 0 or graph_index[-1] >= num_graphs or descends(graph_index):
        raise ValueError(
            f"`graph_index` must ascend within [0, num_graphs={num_graphs}). Put graphs together with Graph.batch."
        )
    check_crossing(graph_index, rows, indices, "Put graphs together with Graph.batch.")


def _check_symmetry(indptr: Array, indices: Array, weights: Array) -> None:
    size = len(indptr) - 1
    matrix = sp.csr_array((weights, indices, indptr), shape=(size, size))
    difference = sp.coo_array(matrix - matrix.T)
    wrong = np.flatnonzero(difference.data)
    if wrong.size:
        i, j = difference.row[wrong[0]], difference.col[wrong[0]]
        raise ValueError(
            f"An undirected graph has every edge in both rows with one weight, but entry ({i}, {j}) is {matrix[i, j]} "
            f"and entry ({j}, {i}) is {matrix[j, i]}. Pass directed=True, or build it with Graph.from_edges."
        )


def _check_parts(found: dict[str, Any]) -> None:
    """What is computed of the parts stands for the whole."""
    from topomask.graph.graph import Graph

    names = ("indptr", "indices", "weights", "ids", "degrees", "graph_index")
    if all(isinstance(part, Graph) for part in found["parts"]):
        whole = Graph.batch(found["parts"])
        same = all(np.array_equal(getattr(whole, name), found[name]) for name in names)
        if same and (whole.directed, whole.num_graphs) == (found["directed"], found["num_graphs"]):
            return
    raise ValueError("`parts` are not the graphs that this one is a batch of. Pass parts=(), or use Graph.batch.")
