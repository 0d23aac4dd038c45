"""Graphs for the comparison of strategies."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import networkx as nx
import numpy as np

import topomask as tm
from topomask.data import npz

DATA_SETS = ("coauthor-physics", "tolokers")


def star(num_leaves: int) -> tm.Graph:
    """A central node, connected to all others."""
    leaves = np.arange(1, num_leaves + 1)
    return tm.Graph.from_edges(np.stack([np.zeros_like(leaves), leaves]))


def barabasi_albert(num_nodes: int) -> tm.Graph:
    """A graph with hubs: every new node is connected to 3 others, preferably those with many neighbours."""
    return tm.Graph.from_networkx(nx.barabasi_albert_graph(num_nodes, 3, seed=0))


def random_tree(num_nodes: int, seed: int = 0) -> tm.Graph:
    """A random recursive tree: every new node is connected to a uniformly drawn earlier node."""
    child = np.arange(1, num_nodes)
    parent = np.floor(np.random.default_rng(seed).random(num_nodes - 1) * child).astype(np.int64)
    return tm.Graph.from_edges(np.stack([parent, child]), num_nodes)


def read_npz(path: Path) -> tm.Graph:
    """Read the graph of a data set, with arrays ``y``, one per node, and undirected ``edges``, [E, 2]."""
    arrays = npz.read_npz(path)
    return tm.Graph.from_edges(arrays["edges"].T, num_nodes=len(arrays["y"]))


def read_mesh(path: Path) -> tm.Graph:
    """Read the sides of the faces of a Wavefront mesh."""
    sides: list[tuple[int, int]] = []
    for line in path.read_text().splitlines():
        kind, *fields = line.split() or [""]
        if kind == "f":
            corners = [int(field.split("/")[0]) - 1 for field in fields]
            sides += zip(corners, corners[1:] + corners[:1], strict=True)
    return tm.Graph.from_edges(np.array(sides))


def synthetic(quick: bool) -> dict[str, Callable[[], tm.Graph]]:
    """Grids, a path, stars and graphs with hubs, by name."""
    small: dict[str, Callable[[], tm.Graph]] = {
        "grid 16 x 16": partial(tm.grid_graph, 16, 16),
        "star, 4,096 leaves": partial(star, 4096),
    }
    if quick:
        return small
    return small | {
        "grid 64 x 64": partial(tm.grid_graph, 64, 64),
        "grid 128 x 128": partial(tm.grid_graph, 128, 128),
        "path, 4,096": partial(tm.path_graph, 4096),
        "star, 32,768 leaves": partial(star, 32_768),
        "Barabasi-Albert, 2,048": partial(barabasi_albert, 2048),
        "Barabasi-Albert, 16,384": partial(barabasi_albert, 16_384),
    }


def data_sets() -> dict[str, Callable[[], tm.Graph]]:
    """Graphs of data sets in ``$TOPOMASK_DATA/node``; missing ones are reported and skipped."""
    root = os.environ.get("TOPOMASK_DATA")
    found: dict[str, Callable[[], tm.Graph]] = {}
    for name in DATA_SETS:
        path = Path(root or "", "node", f"{name}.npz")
        if root and path.is_file():
            found[name] = partial(read_npz, path)
        else:
            print(f"{name} is left out: it is not in node/ of the data folder (--data or TOPOMASK_DATA).")
    return found
