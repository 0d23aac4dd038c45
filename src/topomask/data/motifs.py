"""Motif detection: does a random graph contain a motif, or a random subgraph of the same size?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from topomask.data.graph_set import GraphSet
from topomask.data.splits import check_split, derived_seed
from topomask.graph import Graph, cycle_graph, grid_graph
from topomask.support.checks import check_sizes

Array = npt.NDArray[np.int64]
_SPLITS = {"train": 768, "val": 256, "test": 256}
_BASE_NODES = 100
_JOIN_PROB = 0.004
_NUM_DEGREES = 5
# Stored in the record of a run: increase it when the same seed gives different graphs or features.
MOTIF_VERSION = 4


def _caveman() -> Array:
    """Three triangles whose last nodes form a fourth: NetworkX's ``caveman_graph(3, 3)``, connected."""
    triangle = ((0, 1), (0, 2), (1, 2))
    caves = [(3 * cave + i, 3 * cave + j) for cave in range(3) for i, j in triangle]
    return np.array(caves + [(3 * i + 2, 3 * j + 2) for i, j in triangle])


def _edges(graph: Graph) -> Array:
    """Each edge once, [E, 2]."""
    ends = graph.to_edge_index()[0].T.numpy()
    return ends[ends[:, 0] < ends[:, 1]]


# The motif, and the probability of an edge of the base graph.
MOTIFS: dict[str, tuple[Callable[[], Array], float]] = {
    "caveman": (_caveman, 0.027),
    "cycle": (lambda: _edges(cycle_graph(10)), 0.018),
    "grid": (lambda: _edges(grid_graph(3, 3)), 0.026666),
    "ladder": (lambda: _edges(grid_graph(2, 5)), 0.026),
    "circular-ladder": (lambda: np.concatenate([_edges(grid_graph(2, 5)), [(0, 4), (5, 9)]]), 0.03),
}


def motifs(name: str, split: str = "train", *, num_pairs: int | None = None, seed: int = 0) -> GraphSet:
    """Generate random graphs, half of which contain a motif.

    A base graph is an Erdos-Renyi graph of 100 nodes, without its isolated nodes. It is joined to the motif (class 1)
    by each possible edge with probability 0.004, and by at least one. The same base is also joined, by new edges, to a
    random graph with as many nodes and edges as the motif (class 0), which is drawn until it has no isolated node:
    motifs have none, so an isolated node would give the class away. The features of a node are the five largest
    degrees of its neighbours, padded with zeros. Standardise them over the training graphs
    (:meth:`GraphSet.standardized`): with raw degrees, networks may stay at 50 % accuracy for many epochs.

    The motifs are ``caveman`` (three triangles, of which nodes 2, 5 and 8 form a fourth, as the authors have it),
    ``cycle`` (10 nodes), ``grid`` (3 x 3), ``ladder`` and ``circular-ladder`` (5 rungs each). :data:`MOTIFS` has the
    edge probability of the base graph.

    Args:
        name: Name of the motif.
        split: ``"train"``, ``"val"`` or ``"test"``.
        num_pairs: Number of graphs with the motif, and of graphs without. Default: 768 for training, else 256.
        seed: Seed of all random numbers.

    Example:
        >>> motifs("grid", "test", num_pairs=3)
        GraphSet('grid', 6 graphs of ... nodes, 5 features, 2 classes)

    References:
        Choromanski et al. (2022), GKAT.
    """
    if name not in MOTIFS:
        raise ValueError(f"`name` must be one of {', '.join(MOTIFS)}, but is {name!r}.")
    check_split(split, tuple(_SPLITS), name)
    num_pairs = _SPLITS[split] if num_pairs is None else num_pairs
    check_sizes(num_pairs=num_pairs)
    make, base_prob = MOTIFS[name]
    motif = make()
    num_nodes = int(motif.max()) + 1
    where = (list(MOTIFS).index(name), list(_SPLITS).index(split))
    graphs = []
    for number in range(num_pairs):
        draw = np.random.Generator(np.random.PCG64(derived_seed("motifs", seed, *where, number)))
        # Edges of an Erdos-Renyi graph, [E, 2], renumbered without isolated nodes.
        low, high = np.triu_indices(_BASE_NODES, 1)
        chosen = draw.random(len(low)) < base_prob
        _, numbers = np.unique(np.stack([low[chosen], high[chosen]], axis=1), return_inverse=True)
        base = numbers.reshape(-1, 2)
        graphs += [
            _joined(base, pattern, num_nodes, draw) for pattern in (motif, _random_like(len(motif), num_nodes, draw))
        ]
    labels = torch.tensor([1, 0]).repeat(num_pairs)
    features = [largest_neighbor_degrees(graph, _NUM_DEGREES) for graph in graphs]
    return GraphSet(name, graphs, features, labels, ("random", name), range(_NUM_DEGREES))


def largest_neighbor_degrees(graph: Graph, count: int) -> Tensor:
    """The largest degrees among the neighbours of each node, descending, padded with zeros, [N, count]."""
    degrees = np.diff(graph.indptr)
    rows = np.repeat(np.arange(graph.num_nodes), degrees)
    values = degrees[graph.indices]
    out = np.zeros((graph.num_nodes, max(count, degrees.max(initial=0))), np.float32)
    out[rows, np.arange(len(rows)) - graph.indptr[rows]] = values[np.lexsort((-values, rows))]
    return torch.from_numpy(out[:, :count].copy())


def _random_like(num_edges: int, num_nodes: int, draw: np.random.Generator) -> Array:
    """Edges of a random graph without isolated nodes, [E, 2]."""
    low, high = np.triu_indices(num_nodes, 1)
    while True:
        chosen = draw.choice(len(low), num_edges, replace=False)
        edges = np.stack([low[chosen], high[chosen]], axis=1)
        if len(np.unique(edges)) == num_nodes:
            return edges


def _joined(base: Array, pattern: Array, num_pattern: int, draw: np.random.Generator) -> Graph:
    num_base = int(base.max()) + 1
    possible = np.indices((num_base, num_pattern)).reshape(2, -1)
    chosen = draw.random(possible.shape[1]) < _JOIN_PROB
    if not chosen.any():
        chosen[draw.integers(len(chosen))] = True
    bridges = possible[:, chosen].T + np.array([0, num_base])
    edges = np.concatenate([base, pattern + num_base, bridges]).T
    return Graph.from_edges(edges, num_base + num_pattern)
