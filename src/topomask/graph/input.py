"""Reading node numbers, edges and weights; what is wrong is named, with the fix."""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.derived import plainly

Array = npt.NDArray[Any]

_BROKEN = "`matrix` is broken: {}. Build it anew from rows, columns and values."

# What the listed weights of one edge become.
Duplicates = Literal["sum", "mean", "first"]

# Nodes of a graph: 8 GB of memory, were none of them joined.
_MAX_NODES = 1 << 28
# Where nodes are not counted by the user, a number beyond this and this many times the edges is taken for an identifier
# that was not renumbered.
_MAX_GUESSED_NODES, _GUESSED_PER_EDGE = 1 << 24, 16
# Weights of the two directions of an edge may differ by this part: what is left of float32 after a few operations.
_ROUNDING = 1e-6


def read_limit(name: str, default: int) -> int:
    """A limit, or what the environment variable of this name raises it to."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ValueError(f"{name} must be an integer that is not negative, but is {text!r}.")
    return max(default, int(text))


def max_nodes() -> int:
    """Nodes that a graph may have."""
    return read_limit("TOPOMASK_MAX_NODES", _MAX_NODES)


def check_node_count(name: str, count: int, fix: str = "Renumber the nodes from 0 without gaps") -> None:
    """A ValueError where a graph would have more nodes than the limit."""
    if count > _MAX_NODES and count > max_nodes():
        raise ValueError(
            f"`{name}` asks for {count:,} nodes, but a graph has at most {max_nodes():,}. {fix}; if that many are "
            "meant, set the environment variable TOPOMASK_MAX_NODES."
        )


def check_integer(name: str, value: int, low: int, high: int | None = None) -> None:
    """A ValueError unless this is an integer within bounds."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or value < low
        or (high is not None and value > high)
    ):
        upper = "" if high is None else f" and at most {high}"
        raise ValueError(f"`{name}` must be an integer of at least {low}{upper}, but is {value!r}.")


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
    """Node numbers as an int64 CPU tensor, or a ValueError that names the wrong one."""
    if torch.compiler.is_compiling():
        return torch.as_tensor(nodes).to(torch.int64)
    # Numbers that a transform of torch.func has wrapped could not be looked at.
    with plainly():
        return _checked_nodes(nodes, num_nodes, name)


def _checked_nodes(nodes: Any, num_nodes: int, name: str) -> Tensor:
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
    """An array of what may be a tensor or nested lists."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"Cannot read an array: {error}. Pass a rectangular array or tensor.") from error


def edge_array(edges: Any) -> Array:
    """Edges as int64 [2, E], none of them negative."""
    array = to_numpy(edges)
    if array.size == 0:
        return np.zeros((2, 0), dtype=np.int64)
    if array.ndim != 2 or 2 not in array.shape:
        raise ValueError(
            f"`edges` must have shape [2, E] or [E, 2], but has shape {array.shape}. Pass two node numbers per edge."
        )
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"`edges` must hold integers, but has dtype {array.dtype}. Convert them with .astype(int) or .long()."
        )
    pairs = array if array.shape[0] == 2 else array.T
    if pairs.dtype == np.uint64 and pairs.max() > np.iinfo(np.int64).max:
        raise ValueError(
            f"`edges` holds the node number {pairs.max()}, which does not fit in int64. Renumber the nodes."
        )
    pairs = pairs.astype(np.int64)
    negative = np.flatnonzero((pairs < 0).any(axis=0))
    if negative.size:
        k = negative[0]
        raise ValueError(
            f"`edges` must not hold negative node numbers, but edge {k} is ({pairs[0, k]}, {pairs[1, k]}). "
            "Number the nodes from 0."
        )
    return pairs


def node_count(pairs: Array, num_nodes: int | None) -> int:
    """The number of nodes, given or read off the edges, which must lie within."""
    largest = int(pairs.max()) if pairs.size else -1
    if num_nodes is None:
        if largest < 0:
            raise ValueError("`num_nodes` cannot be read off an empty `edges`. Pass num_nodes.")
        check_node_count("edges", largest + 1)
        limit = max(_MAX_GUESSED_NODES, _GUESSED_PER_EDGE * pairs.shape[1])
        if largest >= limit:
            raise ValueError(
                f"`edges` holds the node number {largest:,}, so {pairs.shape[1]:,} edges would make a graph of more "
                f"than {limit:,} nodes. Renumber the nodes from 0, or pass num_nodes if there are that many."
            )
        return largest + 1
    if not isinstance(num_nodes, (int, np.integer)) or isinstance(num_nodes, bool) or num_nodes < 1:
        raise ValueError(
            f"`num_nodes` must be a positive integer, but is {num_nodes!r}. A graph needs at least one node."
        )
    check_node_count("num_nodes", int(num_nodes))
    if largest >= num_nodes:
        k = int(np.flatnonzero((pairs >= num_nodes).any(axis=0))[0])
        raise ValueError(
            f"`edges` must lie in [0, num_nodes={num_nodes}), but edge {k} is ({pairs[0, k]}, {pairs[1, k]}). "
            f"Pass num_nodes={largest + 1} or remove the edge."
        )
    return int(num_nodes)


def weight_array(weights: Any, pairs: Array, signed: bool) -> Array:
    """Weights as finite float64 [E], not negative unless signed."""
    array = to_numpy(weights)
    num_edges = pairs.shape[1]
    if array.size == 0 and num_edges == 0:
        return np.zeros(0)
    if array.shape != (num_edges,):
        raise ValueError(
            f"`weights` must have shape [num_edges={num_edges}], but has shape {array.shape}. Pass one weight per edge."
        )
    if array.dtype.kind not in "iufb":
        raise ValueError(
            f"`weights` must be real numbers, but has dtype {array.dtype}. Convert them with .astype(float)."
        )
    values = array.astype(np.float64)
    not_finite = np.flatnonzero(~np.isfinite(values))
    if not_finite.size:
        k = not_finite[0]
        raise ValueError(
            f"`weights` must be finite, but edge {k}, ({pairs[0, k]}, {pairs[1, k]}), has weight {values[k]}. "
            "Remove the edge or repair its weight."
        )
    negative = np.flatnonzero(values < 0)
    if negative.size and not signed:
        k = negative[0]
        raise ValueError(
            f"`weights` must not be negative, but edge {k}, ({pairs[0, k]}, {pairs[1, k]}), has weight {values[k]}. "
            "Pass signed=True to allow negative weights."
        )
    return values


def starts_in_pyg(data: Any, num_nodes: int) -> Array:
    """Where the graphs of PyG's data start, and where the last ends: by ``ptr``, else by ``batch``."""
    ptr, batch = getattr(data, "ptr", None), getattr(data, "batch", None)
    if ptr is not None:
        starts = to_numpy(ptr)
        whole = starts.ndim == 1 and len(starts) > 1 and starts.dtype.kind in "iu"
        if not whole or starts[0] != 0 or starts[-1] != num_nodes or descends(starts):
            raise ValueError(
                f"`ptr` must ascend from 0 to the {num_nodes} nodes: where graphs start, and the last ends. It is "
                f"{starts.tolist() if starts.size <= 10 else starts.dtype}. Rebuild it with PyG's Batch."
            )
        return starts
    if batch is None:
        return np.array([0, num_nodes])
    owner = to_numpy(batch)
    fits = owner.shape == (num_nodes,) and owner.dtype.kind in "iu"
    if not fits or (num_nodes and (owner[0] < 0 or descends(owner))):
        raise ValueError(
            f"`batch` must hold the graph of each of the {num_nodes} nodes, ascending integers that are not negative. "
            f"It is {owner.dtype} of shape {owner.shape}. Rebuild it with PyG's Batch, or sort nodes by their graph."
        )
    if num_nodes and owner[-1] >= max_nodes():
        raise ValueError(
            f"`batch` must number at most {max_nodes():,} graphs, but goes up to {owner[-1]}. Renumber them."
        )
    return np.concatenate([[0], np.cumsum(np.bincount(owner))])


def check_duplicates(duplicates: Any) -> None:
    """A ValueError unless this says what to do with edges that are listed more than once."""
    if duplicates is not None and duplicates not in get_args(Duplicates):
        raise ValueError(f"`duplicates` must be one of {get_args(Duplicates)} or None, but is {duplicates!r}.")


def merge_edges(pairs: Array, values: Array, directed: bool, duplicates: Duplicates) -> tuple[Array, Array]:
    """Edges [2, E] and weights [E] with every edge once; in either direction where the graph is undirected."""
    if not pairs.size:
        return pairs, values
    pairs = pairs if directed else np.sort(pairs, axis=0)
    # Stable, so that the first of equal edges is the one that is listed first.
    order = np.lexsort(pairs[::-1])
    pairs, values = pairs[:, order], values[order]
    starts = np.flatnonzero(np.concatenate([[True], (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)]))
    merged = values[starts]
    if duplicates != "first":
        counts = np.diff(np.append(starts, len(values)))
        # Differences: the mean of equal weights is that weight, without rounding.
        offsets = np.add.reduceat(values - np.repeat(merged, counts), starts)
        with np.errstate(over="ignore", invalid="ignore"):
            merged = merged + offsets / counts if duplicates == "mean" else np.add.reduceat(values, starts)
    wrong = np.flatnonzero(~np.isfinite(merged))
    if wrong.size:
        i, j = pairs[:, starts[wrong[0]]]
        raise ValueError(f"The weights of edge ({i}, {j}) overflow when they are merged. Scale them down.")
    return pairs[:, starts], merged


def sort_entries(source: Array, target: Array, values: Array) -> tuple[Array, Array, Array]:
    """Entries of a matrix by row and column, each once and none of them 0; a ValueError where listed weights differ."""
    rises, stays = source[1:] > source[:-1], source[1:] == source[:-1]
    # Neighbour lists usually come in order, and sorting them would take longer than all the rest.
    if not (rises | (stays & (target[1:] > target[:-1]))).all():
        order = np.lexsort((values, target, source))
        source, target, values = source[order], target[order], values[order]
    repeated = (source[1:] == source[:-1]) & (target[1:] == target[:-1])
    conflict = np.flatnonzero(repeated & (values[1:] != values[:-1]))
    if conflict.size:
        k = conflict[0]
        raise ValueError(
            f"Edge ({source[k]}, {target[k]}) is listed with different weights, {values[k]} and {values[k + 1]}. "
            "Pass duplicates='sum', 'mean' or 'first' to add them up, to average them or to take the one that is "
            "listed first; or list the edge once."
        )
    keep = np.concatenate([[True], ~repeated])[: len(source)] & (values != 0)
    return source[keep], target[keep], values[keep]


def row_totals(indptr: Array, values: Array) -> Array:
    """Sums of the rows of a matrix, [N], each independent of the other rows to the last bit."""
    with plainly(), torch.device("cpu"):
        row_ptr = torch.from_numpy(indptr)
        return segments.last(segments.cumulative_sum(torch.from_numpy(values), row_ptr), row_ptr).numpy()


def scipy_entries(matrix: Any, summed: bool) -> tuple[Array, Array]:
    """Row and column [2, P] of the stored entries of a square SciPy matrix, and the entries; summed, or all of them."""
    if not sp.issparse(matrix):
        raise ValueError(
            f"`matrix` must be a SciPy sparse matrix, but is a {type(matrix).__name__}. "
            "Wrap it in scipy.sparse.csr_array first."
        )
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"`matrix` must be square, but has shape {matrix.shape}. Pass an N x N adjacency matrix.")
    check_node_count("matrix", matrix.shape[0])
    check_scipy(matrix)
    # Summed before they are read: parts of a sum may be negative, and SciPy's sum of truth values is one.
    coo = sp.coo_array(sp.csr_array(matrix) if summed else matrix)
    return np.stack([coo.row, coo.col]).astype(np.int64), coo.data


def networkx_edges(graph: Any, weight: str) -> tuple[Array, int, list[Any]]:
    """Edges [2, E] of a NetworkX graph, all parallel ones, the number of nodes, and weights."""
    place = {node: k for k, node in enumerate(graph)}
    listed = [(place[i], place[j], value) for i, j, value in graph.edges(data=weight, default=1.0)]
    pairs = np.array([pair for *pair, _ in listed], dtype=np.int64).reshape(-1, 2)
    return pairs.T, len(place), [value for *_, value in listed]


def check_crossing(graph_index: Array, rows: Array, columns: Array, fix: str) -> None:
    """A ValueError where an edge joins two graphs of a batch."""
    crossing = np.flatnonzero(graph_index[rows] != graph_index[columns])
    if crossing.size:
        i, j = rows[crossing[0]], columns[crossing[0]]
        raise ValueError(f"Edge ({i}, {j}) joins two graphs of the batch. {fix}")


def check_scipy(matrix: Any) -> None:
    """A ValueError where a SciPy matrix has entries outside of itself: SciPy writes to memory by them, unchecked."""
    places: tuple[Any, ...]
    if matrix.format == "coo":
        sizes, places = matrix.shape, (matrix.row, matrix.col)
    elif matrix.format in ("csr", "csc", "bsr"):
        blocks = matrix.blocksize if matrix.format == "bsr" else (1, 1)
        rows, columns = (size // block for size, block in zip(matrix.shape, blocks, strict=True))
        major, sizes = (columns, (rows,)) if matrix.format == "csc" else (rows, (columns,))
        places, indptr = (matrix.indices,), matrix.indptr
        if not _are_integers(indptr) or len(indptr) != major + 1 or indptr[0] != 0 or descends(indptr):
            raise ValueError(_BROKEN.format(f"`indptr` must be {major + 1} integers that ascend from 0"))
        if indptr[-1] != len(matrix.data):
            raise ValueError(_BROKEN.format(f"`indptr` ends at {indptr[-1]}, but there are {len(matrix.data)} entries"))
    else:
        return
    for place, size in zip(places, sizes, strict=True):
        if not _are_integers(place) or len(place) != len(matrix.data):
            raise ValueError(_BROKEN.format(f"there must be {len(matrix.data)} integer indices, one per entry"))
        if len(place) and not 0 <= place.min() <= place.max() < size:
            raise ValueError(_BROKEN.format(f"indices must lie in [0, {size}), but go to {place.min()}, {place.max()}"))


def _are_integers(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind == "i"


def descends(array: Array) -> bool:
    """Whether a number is smaller than the one before it; differences may wrap."""
    return bool((array[1:] < array[:-1]).any())


def symmetrize(matrix: Any, what: str, add: str, join: str) -> Any:
    """A matrix with equal weights of both directions, or None where they are; a ValueError where they clearly differ.

    Args:
        matrix: The matrix.
        what: What is to be symmetric.
        add: How to add a direction that is missing.
        join: How to make two weights one.
    """
    mirrored = sp.csr_array(matrix.T)
    difference = sp.coo_array(matrix - mirrored)
    differs = difference.data != 0
    if not differs.any():
        return None
    rows, columns = difference.row[differs], difference.col[differs]
    smaller = np.minimum(*(np.abs(side[rows, columns]) for side in (matrix, mirrored)))
    wrong = np.flatnonzero(np.abs(difference.data[differs]) > _ROUNDING * smaller)
    if wrong.size:
        i, j = int(rows[wrong[0]]), int(columns[wrong[0]])
        fix = join if smaller[wrong[0]] else add
        raise ValueError(
            f"{what} must be symmetric for an undirected graph, but entry ({i}, {j}) is {matrix[i, j]} "
            f"and entry ({j}, {i}) is {matrix[j, i]}. Pass directed=True, or {fix}."
        )
    return sp.coo_array((matrix + mirrored) / 2)
