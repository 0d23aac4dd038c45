"""Reading node numbers, edges and weights; what is wrong is named, with the fix."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

# A node number beyond this is taken for an identifier that was not renumbered.
_MAX_NODES = 1 << 32


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


def check_nodes(nodes: Any, num_nodes: int, name: str) -> Tensor:
    """Node numbers as an int64 CPU tensor, or a ValueError that names the wrong one."""
    try:
        tensor = torch.as_tensor(nodes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"`{name}` must be integer node numbers of shape [n] ({error}).") from error
    if torch.compiler.is_compiling():
        return tensor.to(torch.int64)
    tensor = tensor.cpu()
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
    limit = _MAX_NODES if num_nodes is None else num_nodes
    if num_nodes is None and largest >= limit:
        raise ValueError(
            f"`edges` holds the node number {largest}, which would make a graph of more than {limit:,} nodes. Renumber "
            "the nodes from 0, or pass num_nodes if there are that many."
        )
    if num_nodes is None:
        if largest < 0:
            raise ValueError("`num_nodes` cannot be read off an empty `edges`. Pass num_nodes.")
        return largest + 1
    if not isinstance(num_nodes, (int, np.integer)) or isinstance(num_nodes, bool) or num_nodes < 1:
        raise ValueError(
            f"`num_nodes` must be a positive integer, but is {num_nodes!r}. A graph needs at least one node."
        )
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
        if not whole or starts[0] != 0 or starts[-1] != num_nodes or (np.diff(starts) < 0).any():
            raise ValueError(
                f"`ptr` must ascend from 0 to the {num_nodes} nodes: where graphs start, and the last ends. It is "
                f"{starts.tolist() if starts.size <= 10 else starts.dtype}. Rebuild it with PyG's Batch."
            )
        return starts
    if batch is None:
        return np.array([0, num_nodes])
    owner = to_numpy(batch)
    fits = owner.shape == (num_nodes,) and owner.dtype.kind in "iu"
    if not fits or (num_nodes and (owner[0] < 0 or (np.diff(owner) < 0).any())):
        raise ValueError(
            f"`batch` must hold the graph of each of the {num_nodes} nodes, ascending integers that are not negative. "
            f"It is {owner.dtype} of shape {owner.shape}. Rebuild it with PyG's Batch, or sort nodes by their graph."
        )
    return np.concatenate([[0], np.cumsum(np.bincount(owner))])
