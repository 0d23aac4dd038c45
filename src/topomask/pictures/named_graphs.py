"""Graphs by name, such as ``grid:16x16``, and from files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import topomask as tm
from topomask.graph.input import Array
from topomask.pictures import graph_files
from topomask.pictures.graph_files import check_size
from topomask.pictures.layouts import to_plane


@dataclass(frozen=True)
class NamedGraph:
    """A graph with a title and, if known, positions to draw its nodes at."""

    graph: tm.Graph
    title: str
    places: Array | None = None  # [N, 2]
    shape: tuple[int, ...] | None = None  # of a grid
    dim: int | None = None  # of a hypercube


def load_graph(text: str, seed: int = 0, directed: bool = False) -> NamedGraph:
    """Build a graph by name, ``name:size`` with a name of ``BUILDERS``; or read it from a file of ``FILE_TYPES``."""
    path = Path(text)
    if path.suffix.lower() in graph_files.READERS or path.is_file():
        graph, points = graph_files.read_graph(path, directed)
        if points is not None:
            points = to_plane(points) if points.shape[1] > 2 and len(points) > 1 else points[:, :2]
        return NamedGraph(graph, path.name, points)
    name, _, size = text.partition(":")
    if name not in BUILDERS:
        examples = ", ".join(f"{other}:{builder.example}" for other, builder in BUILDERS.items())
        files = graph_files.FILE_TYPES
        raise ValueError(f"There is no graph {text!r}. Pass a name and a size, such as {examples}; or a file: {files}.")
    if directed:
        raise ValueError(f"`directed` is only for files, but {text} is undirected. Leave out --directed.")
    builder = BUILDERS[name]
    parts = size.split(builder.separator)
    if len(parts) not in builder.counts or not all(part.isdecimal() for part in parts):
        raise ValueError(f"The graph must be given as in {name}:{builder.example}, but is {text!r}.")
    try:
        return builder.build([int(part) for part in parts], np.random.default_rng(seed))
    except ValueError as error:
        raise ValueError(f"Cannot build {text}: {error} An example that works is {name}:{builder.example}.") from None


def _grid(sizes: list[int], _: np.random.Generator) -> NamedGraph:
    check_size(math.prod(sizes))
    graph = tm.grid_graph(*sizes)
    if len(sizes) == 1:
        # Rows of alternating direction.
        columns = max(1, math.ceil(math.sqrt(sizes[0])))
        row, column = np.divmod(np.arange(sizes[0]), columns)
        column = np.where(row % 2 == 1, columns - 1 - column, column)
        places = np.stack([column, -row], axis=1).astype(float)
        return NamedGraph(graph, f"path of {sizes[0]} nodes", places, tuple(sizes))
    title = f"{' x '.join(map(str, sizes))} grid"
    index = np.stack(np.unravel_index(np.arange(graph.num_nodes), sizes), axis=1)
    # The last two axes make a layer; layers along further axes are placed in rows.
    x, y = index[:, -1].astype(float), -index[:, -2].astype(float)
    if len(sizes) > 2:
        frame = np.ravel_multi_index(tuple(index[:, :-2].T), sizes[:-2])
        height, width, count = sizes[-2] + 1.0, sizes[-1] + 1.0, math.prod(sizes[:-2])
        # As many per row as make the whole about square.
        across = min(count, max(1, round(math.sqrt(count * height / width))))
        x, y = x + frame % across * width, y - frame // across * height
    return NamedGraph(graph, title, np.stack([x, y], axis=1), tuple(sizes))


def _cycle(sizes: list[int], _: np.random.Generator) -> NamedGraph:
    (size,) = sizes
    check_size(size)
    graph, angle = tm.cycle_graph(size), 2 * np.pi * np.arange(size) / max(1, size)
    return NamedGraph(graph, f"cycle of {size} nodes", np.stack([np.sin(angle), np.cos(angle)], axis=1))


def _hypercube(sizes: list[int], _: np.random.Generator) -> NamedGraph:
    (dim,) = sizes
    check_size(2 ** min(dim, 62))
    bits = (np.arange(2**dim)[:, None] >> np.arange(dim)) & 1
    # Each bit moves a node in its own direction; pairs of bits make squares within squares.
    length = 2.4 ** (np.arange(dim) // 2)
    angle = np.pi / 2 * (np.arange(dim) % 2) + 0.22 * (1 + np.arange(dim) // 2)
    directions = length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return NamedGraph(tm.hypercube_graph(dim), f"hypercube of dimension {dim}", bits @ directions, dim=dim)


def _knn(sizes: list[int], rng: np.random.Generator) -> NamedGraph:
    size, k = sizes if len(sizes) > 1 else (sizes[0], 4)
    check_size(size)
    points = rng.random((size, 2))
    return NamedGraph(tm.knn_graph(points, k), f"{k}-NN graph of {size} random points", points)


def _tree(sizes: list[int], rng: np.random.Generator) -> NamedGraph:
    (size,) = sizes
    check_size(size)
    child = np.arange(1, max(1, size))
    graph = tm.Graph.from_edges(np.stack([rng.integers(0, child), child]), size)
    return NamedGraph(graph, f"random tree of {size} nodes")


def _barabasi_albert(sizes: list[int], rng: np.random.Generator) -> NamedGraph:
    size, count = sizes if len(sizes) > 1 else (sizes[0], 2)
    check_size(size)
    if not 1 <= count < size:
        raise ValueError(f"A Barabasi-Albert graph of {size} nodes needs 1 to {size - 1} edges per node, not {count}.")
    # A node is listed once per edge, so a uniform draw prefers nodes of high degree.
    ends = list(range(count))
    edges: list[tuple[int, int]] = []
    for node in range(count, size):
        targets: set[int] = set()
        while len(targets) < count:
            targets.add(ends[int(rng.integers(len(ends)))])
        edges += [(node, target) for target in sorted(targets)]
        ends += [*sorted(targets), *[node] * count]
    return NamedGraph(tm.Graph.from_edges(edges, size), f"Barabasi-Albert graph of {size} nodes, {count} edges each")


@dataclass(frozen=True)
class _Builder:
    """A kind of graph: a description, an example of its size, the separator of sizes and how many there may be."""

    build: Callable[[list[int], np.random.Generator], NamedGraph]
    about: str
    example: str
    separator: str = ":"
    counts: tuple[int, ...] = (1,)


BUILDERS: dict[str, _Builder] = {
    "grid": _Builder(_grid, "a grid of one to four dimensions", "16x16", "x", (1, 2, 3, 4)),
    "path": _Builder(_grid, "a path", "64"),
    "cycle": _Builder(_cycle, "a ring", "32"),
    "hypercube": _Builder(_hypercube, "a hypercube of this dimension", "6"),
    "knn": _Builder(_knn, "nearest neighbours of random points, and how many", "200:4", counts=(1, 2)),
    "tree": _Builder(_tree, "a random recursive tree", "100"),
    "ba": _Builder(_barabasi_albert, "preferential attachment, and edges per node", "100:2", counts=(1, 2)),
}
