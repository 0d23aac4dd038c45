"""Graphs from files: lists of edges, SciPy and NumPy archives, Matrix Market, GML, GraphML and Wavefront meshes."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import topomask as tm
from topomask.graph.input import Array

# A graph, and coordinates of its nodes [N, 2 or 3] where the file has them.
Read = tuple[tm.Graph, Array | None]


def read_graph(path: Path, directed: bool = False) -> Read:
    """Read a graph; what is wrong is named with the file."""
    if path.suffix.lower() not in READERS:
        raise ValueError(f"Cannot tell what {path} holds. Files of graphs end in {', '.join(READERS)}.")
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    try:
        return READERS[path.suffix.lower()](path, directed)
    except ModuleNotFoundError as error:
        if error.name != "networkx":
            raise
        raise ValueError(
            f"Reading {path.name} needs networkx. Install it with: pip install 'topomask[networkx]'"
        ) from None
    except (ValueError, KeyError, IndexError, OSError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: {error}") from error


def _read_edges(path: Path, directed: bool) -> Read:
    """Two node numbers and perhaps a weight per line, with commas, semicolons or blanks between them."""
    rows: list[tuple[int, int]] = []
    weights: list[float] = []
    width = 0
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        fields = re.split(r"[,;\s]+", line.split("#")[0].split("%")[0].strip())
        if fields == [""]:
            continue
        try:
            edge, weight = (int(fields[0]), int(fields[1])), float(fields[2]) if len(fields) > 2 else 1.0
        except (ValueError, IndexError):
            # Names of columns.
            if not rows and not any(_is_number(field) for field in fields):
                continue
            raise ValueError(
                f"line {number} must hold two node numbers and perhaps a weight, but is {line.strip()!r}."
            ) from None
        if len(fields) > 3 or (rows and len(fields) != width):
            expected = f"{width} columns, as the lines before" if rows else "two or three columns"
            raise ValueError(f"line {number} must have {expected}, but has {len(fields)}: {line.strip()!r}.")
        width = len(fields)
        rows.append(edge)
        weights.append(weight)
    if not rows:
        raise ValueError("there are no edges in it.")
    edges = np.array(rows).T
    return _from_edges(edges, None, weights if width == 3 else None, directed), None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _from_edges(edges: Array, num_nodes: int | None, weights: Any, directed: bool) -> tm.Graph:
    return tm.Graph.from_edges(edges, num_nodes, weights, directed=directed, signed=True)


def _from_matrix(matrix: Any, directed: bool) -> tm.Graph:
    import scipy.sparse as sp

    return tm.Graph.from_scipy(sp.csr_array(matrix), directed=directed, signed=True)


def _read_npz(path: Path, directed: bool) -> Read:
    """A sparse matrix as SciPy saves it; or arrays ``edges``, perhaps ``weights``, ``num_nodes`` and ``points``."""
    import scipy.sparse as sp

    if not zipfile.is_zipfile(path):
        raise ValueError("it is no .npz archive, or a damaged one.")
    with np.load(path, allow_pickle=False) as archive:
        found = set(archive.files)
        if "edges" in found:
            size = int(archive["num_nodes"]) if "num_nodes" in found else None
            weights = archive["weights"] if "weights" in found else None
            graph = _from_edges(archive["edges"], size, weights, directed)
            return graph, _check_points(archive["points"], graph) if "points" in found else None
    if not {"format", "shape", "data"} <= found:
        raise ValueError(f"it must hold a SciPy matrix or an array `edges`, but holds {sorted(found)}.")
    return _from_matrix(sp.load_npz(path), directed), None


def _check_points(points: Array, graph: tm.Graph) -> Array:
    if points.ndim != 2 or points.shape[0] != graph.num_nodes or points.shape[1] not in (2, 3):
        raise ValueError(f"`points` must have shape [{graph.num_nodes}, 2 or 3], but has shape {points.shape}.")
    if not np.isfinite(points).all():
        raise ValueError("`points` must be finite.")
    return points.astype(float)


def _read_mtx(path: Path, directed: bool) -> Read:
    import scipy.io

    return _from_matrix(scipy.io.mmread(path), directed), None


def _read_networkx(path: Path, directed: bool) -> Read:
    import networkx as nx

    reader = nx.read_gml if path.suffix.lower() == ".gml" else nx.read_graphml
    try:
        graph = reader(path)
    except (nx.NetworkXError, SyntaxError) as error:
        raise ValueError(f"networkx cannot read it ({error}).") from error
    if directed and not graph.is_directed():
        graph = graph.to_directed()
    return tm.Graph.from_networkx(graph, signed=True), None


def _read_obj(path: Path, directed: bool) -> Read:
    """The mesh of a Wavefront file: vertices are nodes, sides of faces are edges."""
    if directed:
        raise ValueError("a mesh has no directed edges. Leave out --directed.")
    points: list[list[float]] = []
    sides: list[tuple[int, int]] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        kind, *fields = line.split("#")[0].split() or [""]
        try:
            if kind == "v":
                points.append([float(field) for field in fields[:3]])
            elif kind in ("f", "l"):
                corners = [int(field.split("/")[0]) for field in fields]
                # Negative numbers count back from the last vertex so far.
                corners = [corner - 1 if corner > 0 else len(points) + corner for corner in corners]
                ring = corners[1:] + corners[:1] if kind == "f" else corners[1:]
                sides += [(a, b) for a, b in zip(corners, ring, strict=False) if a != b]
        except ValueError:
            raise ValueError(f"line {number} cannot be read: {line.strip()!r}.") from None
    if not points:
        raise ValueError("there are no vertices in it.")
    if any(len(point) != 3 for point in points):
        raise ValueError("every vertex must have three coordinates.")
    edges = np.array(sides, dtype=np.int64).reshape(-1, 2).T
    graph = _from_edges(edges, len(points), None, directed=False)
    return graph, _check_points(np.array(points), graph)


READERS: dict[str, Callable[[Path, bool], Read]] = {
    ".txt": _read_edges,
    ".csv": _read_edges,
    ".tsv": _read_edges,
    ".edges": _read_edges,
    ".npz": _read_npz,
    ".mtx": _read_mtx,
    ".gml": _read_networkx,
    ".graphml": _read_networkx,
    ".obj": _read_obj,
}
