"""Reads and checks node numbers, edges, weights and matrices that users pass."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.derived import plainly

Array = npt.NDArray[Any]

_BROKEN = "`matrix` is broken: {}. Rebuild it from rows, columns and values."

# How the weights of an edge that is listed more than once are merged.
Duplicates = Literal["sum", "mean", "first"]

# A graph of this many nodes takes 8 GB even without edges.
_MAX_NODES = 1 << 28
# If the user gives no num_nodes, a node number above both this and this many times the number of edges is probably an
# identifier that was not renumbered.
_MAX_GUESSED_NODES, _GUESSED_PER_EDGE = 1 << 24, 16
# Relative differences of weights up to this are rounding: float32 after a few operations.
ROUNDING = 1e-6


def read_limit(name: str, default: int) -> int:
    """Return a limit, which the environment variable of this name can raise."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ValueError(f"{name} must be a non-negative integer, but is {text!r}. Change or unset this variable.")
    return max(default, int(text))


def max_nodes() -> int:
    """The largest number of nodes that a graph may have."""
    return read_limit("TOPOMASK_MAX_NODES", _MAX_NODES)


def check_node_count(name: str, count: int, fix: str = "Renumber the nodes from 0 without gaps") -> None:
    """Raise a ValueError if a graph would have more nodes than the limit."""
    if count > _MAX_NODES and count > max_nodes():
        raise ValueError(
            f"`{name}` asks for {count:,} nodes, but a graph has at most {max_nodes():,}. {fix}; if you do need that "
            "many, set the environment variable TOPOMASK_MAX_NODES."
        )


def check_integer(name: str, value: int, low: int, high: int | None = None) -> None:
    """Raise a ValueError unless the value is an integer in [low, high]."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):
        upper = "" if high is None else f" and at most {high}"
        raise ValueError(f"`{name}` must be an integer of at least {low}{upper}, but is {value!r}.")


def check_counts(**counts: int) -> None:
    """Raise a ValueError that names the first value that is not an integer of at least 1."""
    for name, count in counts.items():
        check_integer(name, count, 1)


def first_true(wrong: Any) -> int | None:
    """Return the index of the first True, or None."""
    return int(wrong.argmax()) if wrong.any() else None


def not_a_graph(value: object) -> ValueError:
    """The error for a value given where a :class:`topomask.Graph` is expected, with the call that converts it."""
    library = type(value).__module__.partition(".")[0]
    name = type(value).__name__ if library == "builtins" else f"{library}.{type(value).__name__}"
    fixes = {
        "networkx": "Convert it with tm.Graph.from_networkx(graph).",
        "scipy": "Convert it with tm.Graph.from_scipy(matrix).",
        "torch_geometric": "Convert it with tm.Graph.from_pyg(data).",
    }
    if isinstance(value, (Tensor, np.ndarray)):
        fix = "If it holds edges, [2, E] or [E, 2], convert it with tm.Graph.from_edges(edges, num_nodes)."
    else:
        fix = fixes.get(
            library,
            "Build one with tm.Graph.from_edges, from_pyg, from_networkx or from_scipy, or a builder such as "
            "tm.grid_graph; join several graphs with tm.Graph.batch.",
        )
    return ValueError(f"`graph` must be a topomask.Graph, but is a {name}. {fix}")


def check_nodes(nodes: Any, num_nodes: int, name: str) -> Tensor:
    """Return node numbers as an int64 CPU tensor, or raise a ValueError that names the first bad one."""
    if torch.compiler.is_compiling():
        return torch.as_tensor(nodes).to(torch.int64)
    # Inside a torch.func transform the values of a wrapped tensor cannot be read.
    with plainly():
        try:
            tensor = torch.as_tensor(nodes).cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"`{name}` must be integer node numbers of shape [n] ({error}).") from error
        if tensor.numel() == 0:
            return torch.zeros(0, dtype=torch.int64)
        if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise ValueError(
                f"`{name}` must be integer node numbers of shape [n], but has shape {tuple(tensor.shape)} and dtype "
                f"{tensor.dtype}. Convert a boolean mask with mask.nonzero().flatten()."
            )
        wrong = ((tensor < 0) | (tensor >= num_nodes)).nonzero()
        if len(wrong):
            raise ValueError(
                f"`{name}` must lie in [0, num_nodes={num_nodes}), but {name}[{int(wrong[0])}] is "
                f"{int(tensor[wrong[0]])}. Remove it, or build the graph with more nodes."
            )
        return tensor.to(torch.int64)


def to_numpy(values: Any) -> Array:
    """Convert a tensor, an array or nested lists to an array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"Cannot read an array: {error}. Pass a rectangular array or tensor.") from error


def edge_array(edges: Any) -> Array:
    """Return edges as int64 [2, E] without negative numbers, or raise a ValueError."""
    if isinstance(edges, str | os.PathLike):
        raise ValueError(
            f"`edges` must be node pairs [2, E] or [E, 2], but is the path {os.fspath(edges)!r}. Load the file, as "
            "with numpy.loadtxt(path, dtype=int, delimiter=',')."
        )
    array = to_numpy(edges)
    if array.size == 0:
        return np.zeros((2, 0), dtype=np.int64)
    if array.ndim != 2 or 2 not in array.shape:
        fix = "List node pairs."
        if array.ndim == 2 and 3 in array.shape:
            rest, third = ("[:, :2]", "[:, 2]") if array.shape[1] == 3 else ("[:2]", "[2]")
            fix = f"If the third are weights, pass edges{rest} as integers, and weights=edges{third}."
        raise ValueError(f"`edges` must have shape [2, E] or [E, 2], but has shape {array.shape}. {fix}")
    if array.dtype.kind not in "iu":
        fix = "Use .astype(int) or .long()."
        if array.dtype.kind in "OSU":
            fix = "Number the nodes: names, edges = numpy.unique(edges, return_inverse=True)."
        raise ValueError(f"`edges` must be integers, but has dtype {array.dtype}. {fix}")
    pairs = array if array.shape[0] == 2 else array.T
    if pairs.dtype == np.uint64 and pairs.max() > np.iinfo(np.int64).max:
        raise ValueError(f"`edges` holds node {pairs.max()}, which does not fit in int64. Renumber the nodes.")
    pairs = pairs.astype(np.int64)
    if (k := first_true((pairs < 0).any(axis=0))) is not None:
        raise ValueError(f"`edges` must not be negative, but edge {k} is ({pairs[0, k]}, {pairs[1, k]}). Count from 0.")
    return pairs


def node_count(pairs: Array, num_nodes: int | None) -> int:
    """Return the number of nodes, inferred from the edges if not given; raise a ValueError if edges exceed it."""
    largest = int(pairs.max()) if pairs.size else -1
    if num_nodes is None:
        if largest < 0:
            raise ValueError("`num_nodes` cannot be inferred because `edges` is empty. Pass num_nodes.")
        check_node_count("edges", largest + 1)
        limit = max(_MAX_GUESSED_NODES, _GUESSED_PER_EDGE * pairs.shape[1])
        if largest >= limit:
            raise ValueError(
                f"`edges` holds the node number {largest:,}, so {pairs.shape[1]:,} edges would make a graph of more "
                f"than {limit:,} nodes. Renumber the nodes from 0, or pass num_nodes if there really are that many."
            )
        return largest + 1
    check_integer("num_nodes", num_nodes, 1)
    check_node_count("num_nodes", int(num_nodes))
    if largest >= num_nodes:
        k = int((pairs >= num_nodes).any(axis=0).argmax())
        raise ValueError(
            f"`edges` must lie in [0, num_nodes={num_nodes}), but edge {k} is ({pairs[0, k]}, {pairs[1, k]}). "
            f"Pass num_nodes={largest + 1} or remove the edge."
        )
    return int(num_nodes)


def weight_array(weights: Any, pairs: Array, signed: bool) -> Array:
    """Return weights as finite float64 [E], negative only if ``signed``, or raise a ValueError."""
    array = to_numpy(weights)
    num_edges = pairs.shape[1]
    if array.size == 0 and num_edges == 0:
        return np.zeros(0)
    if array.shape != (num_edges,):
        raise ValueError(
            f"`weights` must have shape [num_edges={num_edges}], but has shape {array.shape}. Pass one weight per edge."
        )
    if array.dtype.kind not in "iufb":
        raise ValueError(f"`weights` must be real numbers, but has dtype {array.dtype}. Use .astype(float).")
    values = array.astype(np.float64)
    if (k := first_true(~np.isfinite(values))) is not None:
        raise ValueError(
            f"`weights` must be finite, but edge {k}, ({pairs[0, k]}, {pairs[1, k]}), has weight {values[k]}. "
            "Remove the edge or fix its weight."
        )
    if not signed and (k := first_true(values < 0)) is not None:
        raise ValueError(
            f"`weights` must not be negative, but edge {k}, ({pairs[0, k]}, {pairs[1, k]}), has weight {values[k]}. "
            "Pass signed=True to allow negative weights."
        )
    return values


def starts_in_pyg(data: Any, num_nodes: int) -> Array:
    """Return where each graph of PyG's data starts, and the end of the last one, from ``ptr`` or else ``batch``."""
    ptr, batch = getattr(data, "ptr", None), getattr(data, "batch", None)
    if ptr is not None:
        starts = to_numpy(ptr)
        whole = starts.ndim == 1 and len(starts) > 1 and starts.dtype.kind in "iu"
        if not whole or starts[0] != 0 or starts[-1] != num_nodes or descends(starts):
            raise ValueError(
                f"`ptr` must be ascending integers from 0 to num_nodes={num_nodes}, the first node of each graph, but "
                f"is {starts.tolist() if starts.size <= 10 else starts.dtype}. Rebuild it with PyG's Batch."
            )
        return starts
    if batch is None:
        return np.array([0, num_nodes])
    owner = to_numpy(batch)
    fits = owner.shape == (num_nodes,) and owner.dtype.kind in "iu"
    if not fits or (num_nodes and (owner[0] < 0 or descends(owner))):
        raise ValueError(
            f"`batch` must be the graph of each of the {num_nodes} nodes as ascending non-negative integers, but has "
            f"shape {owner.shape} and dtype {owner.dtype}. Rebuild it with PyG's Batch, or sort the nodes by graph."
        )
    if num_nodes and owner[-1] >= max_nodes():
        raise ValueError(f"`batch` must be less than {max_nodes():,}, but has {owner[-1]}. Renumber the graphs.")
    return np.concatenate([[0], np.cumsum(np.bincount(owner))])


def merge_edges(pairs: Array, values: Array, directed: bool, duplicates: Duplicates) -> tuple[Array, Array]:
    """Merge edges [2, E] that are listed more than once, in either direction unless directed, and their weights [E]."""
    if not pairs.size:
        return pairs, values
    pairs = pairs if directed else np.sort(pairs, axis=0)
    # Stable, so the first of equal edges is the one listed first.
    order = np.lexsort(pairs[::-1])
    pairs, values = pairs[:, order], values[order]
    starts = np.flatnonzero(np.concatenate([[True], (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)]))
    merged = values[starts]
    if duplicates != "first":
        counts = np.diff(np.append(starts, len(values)))
        # Average differences from the first weight, so the mean of equal weights is exact.
        offsets = np.add.reduceat(values - np.repeat(merged, counts), starts)
        with np.errstate(over="ignore", invalid="ignore"):
            merged = merged + offsets / counts if duplicates == "mean" else np.add.reduceat(values, starts)
    if (k := first_true(~np.isfinite(merged))) is not None:
        i, j = pairs[:, starts[k]]
        raise ValueError(f"The weights of edge ({i}, {j}) overflow when they are merged. Scale them down.")
    return pairs[:, starts], merged


def sort_entries(source: Array, target: Array, values: Array) -> tuple[Array, Array, Array]:
    """Sort the entries of a matrix, drop zeros and duplicates; raise a ValueError if duplicates differ."""
    rises, stays = source[1:] > source[:-1], source[1:] == source[:-1]
    # Neighbour lists are usually sorted already, and sorting would take longer than everything else.
    if not (rises | (stays & (target[1:] > target[:-1]))).all():
        order = np.lexsort((values, target, source))
        source, target, values = source[order], target[order], values[order]
    repeated = (source[1:] == source[:-1]) & (target[1:] == target[:-1])
    if (k := first_true(repeated & (values[1:] != values[:-1]))) is not None:
        raise ValueError(
            f"Edge ({source[k]}, {target[k]}) is listed with different weights, {values[k]} and {values[k + 1]}. "
            "Pass duplicates='sum', 'mean' or 'first' to merge them, or list the edge once."
        )
    keep = np.concatenate([[True], ~repeated])[: len(source)] & (values != 0)
    return source[keep], target[keep], values[keep]


def row_totals(indptr: Array, values: Array) -> Array:
    """Return the row sums of a matrix, [N]; the bits of each depend on no other row."""
    with plainly(), torch.device("cpu"):
        row_ptr = torch.from_numpy(indptr)
        return segments.last(segments.cumulative_sum(torch.from_numpy(values), row_ptr), row_ptr).numpy()


def scipy_entries(matrix: Any, summed: bool) -> tuple[Array, Array]:
    """Return rows and columns [2, P] and values [P] of a square SciPy matrix, with duplicates ``summed`` or kept."""
    if not sp.issparse(matrix):
        raise ValueError(
            f"`matrix` must be a SciPy sparse matrix, but is a {type(matrix).__name__}. "
            "Wrap it in scipy.sparse.csr_array first."
        )
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"`matrix` must be square, but has shape {matrix.shape}. Pass an N x N adjacency matrix.")
    check_node_count("matrix", matrix.shape[0])
    check_scipy(matrix)
    # Sum first: the terms of a sum may be negative, and SciPy sums booleans to a boolean.
    coo = sp.coo_array(sp.csr_array(matrix) if summed else matrix)
    return np.stack([coo.row, coo.col]).astype(np.int64), coo.data


def networkx_edges(graph: Any, weight: str) -> tuple[Array, int, list[Any]]:
    """Return all edges [2, E] of a NetworkX graph, parallel ones too, the number of nodes, and the weights."""
    number = {node: k for k, node in enumerate(graph)}
    edges = list(graph.edges(data=weight, default=1.0))
    pairs = np.array([(number[i], number[j]) for i, j, _ in edges], dtype=np.int64).reshape(-1, 2)
    return pairs.T, len(number), [value for *_, value in edges]


def check_crossing(graph_index: Array, rows: Array, columns: Array, fix: str) -> None:
    """Raise a ValueError if an edge joins two graphs of a batch."""
    if (k := first_true(graph_index[rows] != graph_index[columns])) is not None:
        raise ValueError(f"Edge ({rows[k]}, {columns[k]}) joins two graphs of the batch. {fix}")


def check_scipy(matrix: Any) -> None:
    """Raise a ValueError if indices of a SciPy matrix are out of range: SciPy writes to memory by them, unchecked."""
    if matrix.format not in ("coo", "csr", "csc", "bsr"):
        return
    size = len(matrix.data)
    axes = [(matrix.row, matrix.shape[0]), (matrix.col, matrix.shape[1])] if matrix.format == "coo" else []
    if not axes:
        blocks = matrix.blocksize if matrix.format == "bsr" else (1, 1)
        major, minor = (length // block for length, block in zip(matrix.shape, blocks, strict=True))
        major, minor = (minor, major) if matrix.format == "csc" else (major, minor)
        axes, indptr = [(matrix.indices, minor)], matrix.indptr
        if not _are_integers(indptr) or len(indptr) != major + 1 or indptr[0] != 0 or descends(indptr):
            raise ValueError(_BROKEN.format(f"`indptr` must be {major + 1} integers that ascend from 0"))
        if indptr[-1] != size:
            raise ValueError(_BROKEN.format(f"`indptr` ends at {indptr[-1]}, but there are {size} entries"))
    for indices, end in axes:
        if not _are_integers(indices) or len(indices) != size:
            raise ValueError(_BROKEN.format(f"there must be {size} integer indices, one per entry"))
        if size and not 0 <= indices.min() <= indices.max() < end:
            found = f"range from {indices.min()} to {indices.max()}"
            raise ValueError(_BROKEN.format(f"indices must lie in [0, {end}), but {found}"))


def _are_integers(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind == "i"


def descends(array: Array) -> bool:
    """Whether any number is less than the one before it; unlike np.diff, safe against overflow."""
    return bool((array[1:] < array[:-1]).any())


def symmetrize(matrix: Any, name: str, add: str, merge: str, rounding: float = ROUNDING) -> Any:
    """Average the weights of both directions if they differ by rounding; return None if all are equal.

    If they differ by more, raise a ValueError with the advice to ``add`` a missing direction or to ``merge`` weights.
    """
    mirrored = sp.csr_array(matrix.T)
    difference = sp.coo_array(matrix - mirrored)
    differs = difference.data != 0
    if not differs.any():
        return None
    rows, columns = difference.row[differs], difference.col[differs]
    smaller = np.minimum(*(np.abs(side[rows, columns]) for side in (matrix, mirrored)))
    if (k := first_true(np.abs(difference.data[differs]) > rounding * smaller)) is not None:
        i, j = int(rows[k]), int(columns[k])
        raise ValueError(
            f"{name} must be symmetric for an undirected graph, but entry ({i}, {j}) is {matrix[i, j]} "
            f"and entry ({j}, {i}) is {matrix[j, i]}. Pass directed=True, or {merge if smaller[k] else add}."
        )
    return sp.coo_array((matrix + mirrored) / 2)
