"""Symmetric matrices of a graph: Laplacians and the negated adjacency matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from topomask.graph import Graph
from topomask.graph.input import Array
from topomask.graph.records import map_tensors, pattern_of
from topomask.ops.diffusion import bound_spectral_radius
from topomask.ops.sparse_product import Pattern

GraphMatrix = Literal["laplacian", "normalized_laplacian", "negated_adjacency"]


@dataclass(eq=False)
class ScaledMatrix:
    """A symmetric matrix T = radius (I + B) - shift, with the eigenvalues of B in [-1, 1]."""

    pattern: Pattern  # where B has entries, [N, N]
    entries: Tensor  # [P], float64: a product takes them in its own precision
    absolute: Tensor  # [P], the entries of B for the absolute weights; the same tensor if none is negative
    radius: float
    shift: Tensor  # [N], constant in a connected component, so that it commutes with T; not negative
    growth: float  # the largest shift: exp(-t T) may be as large as exp(t growth)
    bounds: Tensor  # [2], radius and growth on the CPU: inputs of compiled code, which then works on any graph
    grows: bool  # whether the growth is positive
    component: Tensor  # [N], the connected component of every node
    num_components: int
    longest_row: Tensor  # [], the most entries in a row of B, float64

    def to(self, device: torch.device) -> ScaledMatrix:
        """Return the matrix on another device."""
        moved: ScaledMatrix = map_tensors(self, lambda tensor: tensor.to(device))
        return replace(moved, bounds=self.bounds)


def scale_matrix(graph: Graph, name: GraphMatrix) -> ScaledMatrix:
    r"""Return the matrix T of an undirected graph, on the CPU.

    The eigenvalues of the Laplacian D - A lie between 0 and a bound on the spectral radius of D + \|A\|, those of the
    normalised Laplacian between 0 and 2, and those of the negated adjacency matrix -A, per component, between bounds on
    the spectral radius of \|A\|. This also holds for negative weights and for their absolute values.
    """
    num_nodes = graph.num_nodes
    sides, loops = _split(graph.adjacency("sym" if name == "normalized_laplacian" else "none"))
    num_components, component = connected_components(graph.to_scipy(), directed=False)
    shift, base = np.zeros(num_nodes), np.zeros(num_nodes)
    if name == "normalized_laplacian":
        # Heat stays on an isolated node.
        radius, base = 1.0, np.where(graph.degrees > 0, 1.0, 0.0)
    else:
        base = graph.degrees if name == "laplacian" else base
        bounds = bound_spectral_radius(sp.csr_array(sides + sp.diags_array(base - loops)), component, num_components)
        radius = float(bounds.max()) / 2.0
        if name == "negated_adjacency":
            radius, shift = 2.0 * radius, bounds[component]
    # Two matrices on one pattern: real parts are for the weights, imaginary parts for their absolute values.
    diagonal, absolute = (base + shift - part - radius for part in (loops, np.abs(loops)))
    joined = sp.csr_array(sp.diags_array(diagonal + 1j * absolute) - (sides + 1j * abs(sides)))
    pattern, unit = pattern_of(joined), radius if radius > 0 else 1.0
    entries = torch.tensor(joined.data.real / unit)
    return ScaledMatrix(
        pattern=pattern,
        entries=entries,
        absolute=torch.tensor(joined.data.imag / unit) if graph.signed else entries,
        radius=radius,
        shift=torch.tensor(shift),
        growth=float(shift.max()),
        bounds=torch.tensor([radius, shift.max()], dtype=torch.float64),
        grows=bool(shift.max() > 0),
        component=torch.tensor(component, dtype=torch.int64),
        num_components=int(num_components),
        longest_row=pattern.row_ptr.diff().max().double(),
    )


def walk_graph(graph: Graph, name: GraphMatrix) -> tuple[Graph, float]:
    """Return a graph whose adjacency W gives the matrix as s (I - W), or as -W for the negated adjacency, and s.

    For the normalised Laplacian it is the graph with self-loops on isolated nodes, and s = 1. For the Laplacian,
    self-loops bring every degree to s, the largest degree. W is the ``"sym"`` adjacency of the returned graph.
    """
    if name == "negated_adjacency":
        return graph, 1.0
    _, loops = _split(graph.to_scipy())
    if name == "normalized_laplacian":
        isolated = graph.degrees == 0
        return _with_loops(graph, loops + isolated, graph.degrees + isolated), 1.0
    if (loops < 0).any():
        raise ValueError(
            f"Node {int(np.argmin(loops))} has a self-loop with negative weight {loops.min():.4g}, but walks for a "
            "Laplacian need nonnegative self-loops. Remove it from the graph."
        )
    totals = graph.degrees - loops
    scale = float(totals.max())
    return _with_loops(graph, scale - totals, np.full(graph.num_nodes, scale)), scale


def _with_loops(graph: Graph, loops: Array, degrees: Array) -> Graph:
    """Return the graph with other self-loops, [N]; nodes keep their ids."""
    return with_matrix(graph, sp.csr_array(_split(graph.to_scipy())[0] + sp.diags_array(loops)), degrees)


def with_matrix(graph: Graph, matrix: Any, degrees: Array) -> Graph:
    """Return a graph with the same nodes and other edges, those of a SciPy matrix with sorted rows."""
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
    return replace(graph, indptr=indptr, indices=indices, weights=matrix.data, degrees=degrees, parts=())


def _split(matrix: Any) -> tuple[Any, Array]:
    """Split an adjacency matrix into the entries off the diagonal and the weight of every self-loop, [N]."""
    loops = matrix.diagonal()
    return sp.csr_array(matrix - sp.diags_array(loops)), loops
