"""Checks of arrays that users pass to Graph(...)."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from topomask.graph import input as read
from topomask.graph.input import Array, check_integer, check_node_count, descends, first_true
from topomask.ops import segments
from topomask.ops.derived import plainly


def checked_fields(
    indptr: Any, indices: Any, directed: bool, num_graphs: int = 1, parts: Any = (), **arrays: Any
) -> dict[str, Any]:
    """Return the fields of a graph with its arrays copied and converted, or raise a ValueError."""
    if not isinstance(directed, (bool, np.bool_)):
        raise ValueError(f"`directed` must be True or False, but is {directed!r}.")
    indptr = _array("indptr", indptr, np.int64)
    num_nodes = len(indptr) - 1
    if num_nodes < 1:
        raise ValueError(f"`indptr` must have shape [num_nodes + 1], but has shape {indptr.shape}. Add a node.")
    check_node_count("indptr", num_nodes)
    indices = _array("indices", indices, np.int64)
    weights = _array("weights", arrays["weights"], np.float64, len(indices))
    degrees = _array("degrees", arrays["degrees"], np.float64, num_nodes)
    ids, graph_index = (_array(name, arrays[name], np.int64, num_nodes) for name in ("ids", "graph_index"))
    check_integer("num_graphs", num_graphs, 1)
    check_node_count("num_graphs", int(num_graphs))
    _check_rows(indptr, indices)
    rows = np.repeat(np.arange(num_nodes), np.diff(indptr))
    _check_numbers(rows, indices, weights, degrees)
    if (node := first_true(ids < 0)) is not None:
        raise ValueError(f"`ids` must not be negative, but node {node} has {ids[node]}.")
    advice = "Combine graphs with Graph.batch."
    if graph_index[0] < 0 or graph_index[-1] >= num_graphs or descends(graph_index):
        raise ValueError(f"`graph_index` must ascend within [0, num_graphs={num_graphs}). {advice}")
    read.check_crossing(graph_index, rows, indices, advice)
    if not directed:
        matrix = sp.csr_array((weights, indices, indptr), shape=(num_nodes, num_nodes))
        fix = "build the graph with Graph.from_edges"
        read.symmetrize(matrix, "The adjacency matrix", fix, fix, rounding=0.0)
    found = {"indptr": indptr, "indices": indices, "weights": weights, "ids": ids, "degrees": degrees}
    found |= {"graph_index": graph_index, "directed": bool(directed), "num_graphs": int(num_graphs)}
    parts = tuple(parts)
    if parts:
        _check_parts(parts, found)
    return found | {"parts": parts, "num_nodes": num_nodes}


def _array(name: str, values: Any, dtype: type, size: int | None = None) -> Array:
    """Return a private copy."""
    array = read.to_numpy(values)
    kinds, kind = ("iu", "integers") if dtype is np.int64 else ("iufb", "real numbers")
    if array.ndim != 1 or (array.dtype.kind not in kinds and array.size):
        raise ValueError(
            f"`{name}` must be a one-dimensional array of {kind}, but has shape {array.shape} and dtype {array.dtype}. "
            "Build graphs with Graph.from_edges."
        )
    if size is not None and len(array) != size:
        per = "edge in `indices`" if name == "weights" else "node"
        raise ValueError(f"`{name}` must have shape [{size}], one number per {per}, but has shape {array.shape}.")
    return array.astype(dtype)


def _check_rows(indptr: Array, indices: Array) -> None:
    with plainly():
        row_ptr, columns = torch.from_numpy(indptr), torch.from_numpy(indices)
        segments.check_pointers("indptr", row_ptr, len(indices))
        segments.check_indices("indices", columns, len(indptr) - 1)
        k = segments.first_repeat(columns, row_ptr)
    if k is not None:
        row = int(np.searchsorted(indptr, k, side="right")) - 1
        raise ValueError(
            f"`indices` must be unique and ascending in every row, but row {row} has {indices[k - 1]} before "
            f"{indices[k]}. Build graphs with Graph.from_edges, which sorts and merges edges."
        )


def _check_numbers(rows: Array, indices: Array, weights: Array, degrees: Array) -> None:
    if (k := first_true(~np.isfinite(weights) | (weights == 0))) is not None:
        raise ValueError(
            f"`weights` must be finite and not 0, but edge ({rows[k]}, {indices[k]}) has weight {weights[k]}. Remove "
            "the edge."
        )
    totals = np.bincount(rows, weights=np.abs(weights), minlength=len(degrees))
    if (node := first_true(~np.isfinite(degrees) | (degrees < totals * (1 - read.ROUNDING)))) is not None:
        raise ValueError(
            f"`degrees` must be finite and at least the sum of a node's absolute weights, but node {node} has degree "
            f"{degrees[node]}, and its weights sum to {totals[node]}."
        )


def _check_parts(parts: tuple[Any, ...], found: dict[str, Any]) -> None:
    """Raise a ValueError unless the batch of ``parts`` has these fields, since records of the parts are reused."""
    from topomask.graph.graph import Graph

    if all(isinstance(part, Graph) for part in parts):
        whole = Graph.batch(parts)
        if all(np.array_equal(getattr(whole, name), value) for name, value in found.items()):
            return
    raise ValueError("`parts` must be the graphs that this one is a batch of. Pass parts=(), or use Graph.batch.")
