"""Graphs from files: edge lists, SciPy and NumPy archives, Matrix Market, GML, GraphML and Wavefront meshes.

Files are not trusted: their size, and the number of nodes they claim to have, are checked before anything is allocated.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import topomask as tm
from topomask.data.limits import read_bounded, read_text
from topomask.data.npz import read_npz
from topomask.graph.input import Array, edge_array
from topomask.support.imports import need

# A graph, and the coordinates of its nodes, [N, 2 or 3], if the file has them.
Read = tuple[tm.Graph, Array | None]
# All of READERS, for errors.
FILE_TYPES = (
    "edge lists (.txt, .csv, .tsv, .edges), SciPy or NumPy archives (.npz), Matrix Market (.mtx), .gml, .graphml, and "
    "Wavefront meshes (.obj)"
)
# Largest graph that can be drawn.
MAX_NODES = 20_000
# Longest part of a line that an error quotes.
_SHOWN = 80
# Larger coordinates would overflow in the margins of a picture.
_MAX_POINT = 1e100
# Arrays that SciPy saves besides the entries of a matrix, by format.
_PARTS = dict.fromkeys(("csr", "csc", "bsr"), ("indices", "indptr")) | {"coo": ("row", "col"), "dia": ("offsets",)}


def read_graph(path: Path, directed: bool = False) -> Read:
    """Read a graph; errors name the file."""
    if path.suffix.lower() not in READERS:
        raise ValueError(
            f"{path} has an unknown suffix. Graphs are read from {FILE_TYPES}. Convert or rename the file."
        )
    if not path.is_file():
        raise ValueError(f"There is no file {path}. Check the path.")
    try:
        return READERS[path.suffix.lower()](path, directed)
    except (ValueError, OSError) as error:
        why = str(error).replace("directed=True", "directed=True (on the command line: --directed)")
        raise ValueError(f"{path}: {why}") from error


def check_size(num_nodes: int) -> None:
    """Raise a ValueError if a graph is too large to be drawn."""
    if num_nodes > MAX_NODES:
        raise ValueError(
            f"The graph has {num_nodes:,} nodes, but at most {MAX_NODES:,} can be drawn. Choose a smaller one, or save "
            "part of it to a file."
        )


def _read_edges(path: Path, directed: bool) -> Read:
    """Two node numbers and an optional weight per line, separated by commas, semicolons or blanks, after a header."""
    rows: list[tuple[int, int]] = []
    weights: list[float] = []
    width = header = 0
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        fields = re.split(r"[,;\s]+", line.split("#")[0].split("%")[0].strip(), maxsplit=3)
        if fields == [""]:
            continue
        try:
            edge, weight = (int(fields[0]), int(fields[1])), float(fields[2]) if len(fields) > 2 else 1.0
        except (ValueError, IndexError):
            names = not any(map(_is_number, fields))
            if names and not rows and not header:
                header = number
                continue
            expected = "two node numbers and an optional weight"
            advice = " Number the names: np.unique(names, return_inverse=True)." if names else ""
            raise ValueError(f"line {number} must have {expected}, but is {_shown(line)}.{advice}") from None
        if len(fields) > 3 or (rows and len(fields) != width):
            expected = f"{width} columns, as the lines above" if rows else "two or three columns"
            raise ValueError(f"line {number} must have {expected}, but has {len(fields)}: {_shown(line)}.")
        width = len(fields)
        # Checked here, because larger numbers may not fit into an array.
        if max(edge) >= MAX_NODES:
            check_size(max(edge) + 1)
        if min(edge) < 0:
            raise ValueError(f"line {number} must not have negative node numbers, but is {_shown(line)}. Count from 0.")
        rows.append(edge)
        weights.append(weight)
    if not rows:
        raise ValueError("it has no edges" + (f" below its header, line {header}." if header else "."))
    return _from_edges(np.array(rows).T, None, weights if width == 3 else None, directed), None


def _shown(line: str) -> str:
    text = line.strip()
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _from_edges(edges: Any, num_nodes: int | None, weights: Any, directed: bool) -> tm.Graph:
    pairs = edge_array(edges)
    check_size(int(pairs.max(initial=-1)) + 1 if num_nodes is None else num_nodes)
    return tm.Graph.from_edges(pairs, num_nodes, weights, directed=directed, signed=True)


def _from_matrix(matrix: Any, directed: bool) -> tm.Graph:
    check_size(max(matrix.shape))
    return tm.Graph.from_scipy(sp.csr_array(matrix), directed=directed, signed=True)


def _read_npz(path: Path, directed: bool) -> Read:
    """A sparse matrix saved by SciPy; or arrays ``edges``, and optionally ``weights``, ``num_nodes``, ``points``."""
    found = read_npz(path)
    if "edges" in found:
        size = _integers("num_nodes", found["num_nodes"], 1)[0] if "num_nodes" in found else None
        graph = _from_edges(found["edges"], size, found.get("weights"), directed)
        return graph, _check_points(found["points"], graph) if "points" in found else None
    if not {"format", "shape", "data"} <= found.keys():
        raise ValueError(f"it must have a SciPy matrix or an array `edges`, but has {sorted(found)[:10]}.")
    return _from_matrix(_scipy_matrix(found), directed), None


def _integers(name: str, array: Array, count: int) -> list[int]:
    if array.size != count or array.dtype.kind not in "iu":
        expected = "an integer" if count == 1 else f"{count} integers"
        raise ValueError(f"`{name}` must be {expected}, but is {array.dtype} of shape {array.shape}.")
    return [int(value) for value in array.flat]


def _scipy_matrix(found: dict[str, Array]) -> Any:
    shape = _integers("shape", found["shape"], 2)
    check_size(max(shape))
    kind = str(found["format"].astype(str)) if found["format"].dtype.kind in "SU" else ""
    if kind not in _PARTS:
        raise ValueError(f"`format` must be one of {', '.join(_PARTS)}, but is {kind!r}. Save matrix.tocsr().")
    parts = []
    for name in _PARTS[kind]:
        if name not in found or found[name].ndim != 1 or found[name].dtype.kind not in "iu":
            raise ValueError(f"it must have `{name}`, integers of shape [n], as SciPy saves a {kind} matrix.")
        parts.append(found[name])
    make = getattr(sp, f"{kind}_array")
    try:
        matrix = make((found["data"], tuple(parts)) if kind == "coo" else (found["data"], *parts), shape=shape)
        if kind in ("csr", "csc", "bsr"):
            matrix.check_format(full_check=True)
        return matrix.tocsr()
    except (TypeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"it is not a valid matrix: {error}.") from None


def _check_points(points: Array, graph: tm.Graph) -> Array:
    if points.ndim != 2 or points.shape[0] != graph.num_nodes or points.shape[1] not in (2, 3):
        raise ValueError(f"`points` must have shape [{graph.num_nodes}, 2 or 3], but has shape {points.shape}.")
    if points.dtype.kind not in "biuf":
        raise ValueError(f"`points` must be real numbers, but has dtype {points.dtype}.")
    if not (np.abs(points) < _MAX_POINT).all():
        raise ValueError(f"`points` must be finite numbers below {_MAX_POINT:g}.")
    return points.astype(float)


def _read_mtx(path: Path, directed: bool) -> Read:
    import scipy.io

    content = read_bounded(path, "max_text_bytes")
    try:
        rows, columns, entries, kind, *_ = scipy.io.mminfo(io.BytesIO(content))
        if not rows == columns > 0:
            # On an array without entries, SciPy divides by zero, which ends the process.
            raise ValueError(f"it must be a square matrix with at least one row, but is {rows} x {columns}.")
        check_size(rows)
        # SciPy allocates as many entries as the header says. A line has at least two numbers, or one if all entries are
        # listed; of a symmetric matrix, only those on one side of the diagonal are.
        least = 4 * entries if kind == "coordinate" else entries - columns
        if least > len(content) + 1:
            raise ValueError(f"its header says {entries:,} entries, but it has {len(content):,} bytes.")
        matrix = scipy.io.mmread(io.BytesIO(content))
    except OverflowError as error:
        raise ValueError(f"it has a number that is too large ({error}).") from None
    return _from_matrix(matrix, directed), None


def _read_networkx(path: Path, directed: bool) -> Read:
    nx = need("networkx", f"Reading {path.name}")
    content = io.BytesIO(read_bounded(path, "max_text_bytes"))
    reader = nx.read_gml if path.suffix.lower() == ".gml" else nx.read_graphml
    try:
        graph = reader(content)
        count = graph.number_of_nodes()
    # networkx raises almost anything on invalid files.
    except Exception as error:
        why = str(error).partition("\n")[0][:_SHOWN] or type(error).__name__
        raise ValueError(f"networkx cannot read it ({why.encode('unicode_escape').decode()}).") from error
    check_size(count)
    for one, other, weight in graph.edges(data="weight", default=1.0):
        if not isinstance(weight, int | float) or abs(weight) > sys.float_info.max:
            raise ValueError(f"the weight of edge ({one}, {other}) must be a finite number, but is {weight!r:.40}.")
    if directed and not graph.is_directed():
        graph = graph.to_directed()
    return tm.Graph.from_networkx(graph, signed=True), None


def _read_obj(path: Path, directed: bool) -> Read:
    """A Wavefront mesh: vertices are nodes, and sides of faces are edges."""
    if directed:
        raise ValueError("a mesh has no directed edges. Leave out --directed.")
    points: list[list[float]] = []
    sides: list[tuple[int, int]] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        kind, *fields = line.split("#")[0].split() or [""]
        try:
            if kind == "v":
                points.append([float(field) for field in fields[:3]])
            elif kind in ("f", "l"):
                corners = [int(field.split("/")[0]) for field in fields]
                # Negative numbers count back from the last vertex so far.
                corners = [corner - 1 if corner > 0 else len(points) + corner for corner in corners]
                if min(corners, default=0) < 0:
                    raise ValueError
                ring = corners[1:] + corners[:1] if kind == "f" else corners[1:]
                sides += [(a, b) for a, b in zip(corners, ring, strict=False) if a != b]
        except ValueError:
            raise ValueError(f"line {number} cannot be read: {_shown(line)}.") from None
    if not points:
        raise ValueError("it has no vertices.")
    if any(len(point) != 3 for point in points):
        raise ValueError("each vertex must have three coordinates.")
    last = 1 + max(map(max, sides), default=0)
    if last > len(points):
        raise ValueError(f"a face or line refers to vertex {last}, but the last one is {len(points)}.")
    edges = np.array(sides, dtype=np.int64).reshape(-1, 2).T
    graph = _from_edges(edges, len(points), None, directed=False)
    return graph, _check_points(np.array(points), graph)


READERS: dict[str, Callable[[Path, bool], Read]] = {
    **dict.fromkeys((".txt", ".csv", ".tsv", ".edges"), _read_edges),
    ".npz": _read_npz,
    ".mtx": _read_mtx,
    **dict.fromkeys((".gml", ".graphml"), _read_networkx),
    ".obj": _read_obj,
}
