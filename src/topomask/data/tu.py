"""TUDataset: benchmarks of graph classification, as text files in a folder or a zip archive."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.data.archives import DAMAGE
from topomask.data.degrees import MAX_DEGREE, DegreeInput, degree_features
from topomask.data.graph_set import GraphSet
from topomask.data.limits import check_bytes, limit_of, unpacked_limit
from topomask.data.root import data_root, missing
from topomask.graph import Graph
from topomask.support.near_names import did_you_mean

Array = npt.NDArray[Any]
_CHUNK = 1 << 24
# Part of the record of a run: raise it where the same files and fields give other graphs or features.
TU_VERSION = 2
_HOW = "Download it from www.chrsmrrs.com/graphkerneldatasets."


@dataclass(frozen=True)
class TUEntry:
    """What is known about a set.

    Args:
        num_graphs: Graphs.
        num_classes: Classes.
        num_edges: Edges of all graphs, each pair of nodes counted once, without loops; none where it is not known.
        attributes: Whether node attributes are part of the input by default, as in the fair comparison.
        degree: The degree of nodes as input by default: for sets whose nodes have no labels.
        max_degree: The degree from which on one-hot degrees are one.
        in_fair_comparison: Whether the fair comparison has folds of it.
    """

    num_graphs: int
    num_classes: int
    num_edges: int | None = None
    attributes: bool = False
    degree: DegreeInput = "none"
    max_degree: int = MAX_DEGREE
    in_fair_comparison: bool = True

    @property
    def has_node_labels(self) -> bool:
        """Whether it is a known set whose nodes have labels."""
        return self.num_graphs > 0 and self.degree == "none"


TU_SETS: dict[str, TUEntry] = {
    "COLLAB": TUEntry(5000, 3, 12_286_079, degree="one-hot"),
    "DD": TUEntry(1178, 2, 843_046),
    "ENZYMES": TUEntry(600, 6, 37_282, attributes=True),
    "IMDB-BINARY": TUEntry(1000, 2, 96_531, degree="one-hot"),
    "IMDB-MULTI": TUEntry(1500, 3, 98_903, degree="one-hot"),
    "MUTAG": TUEntry(188, 2, 3_721, in_fair_comparison=False),
    "NCI1": TUEntry(4110, 2, 132_753),
    "PROTEINS": TUEntry(1113, 2, 81_044),
    # Hubs of thousands of neighbours: almost all one-hot columns would be empty.
    "REDDIT-BINARY": TUEntry(2000, 2, 995_508, degree="log"),
}


def tu_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    attributes: bool | None = None,
    degree: DegreeInput | None = None,
    max_degree: int | None = None,
    standardize: bool = True,
    max_bytes: int | None = None,
) -> GraphSet:
    """A set of TUDataset, from ``tudataset/<name>.zip`` or the folder ``tudataset/<name>`` of the data root.

    The input of a node is its label, one-hot, where the set has labels; its attributes, where asked for; and its
    degree, where asked for. A set that has none of these has the constant 1. Every edge counts once, in whichever
    directions and however often it is listed, and loops are left out, as PyG does. Labels and attributes of edges are
    not read. A folder is that of the archive, or PyG's with the files in ``raw``.

    Args:
        name: One of :data:`TU_SETS`, or of your own in the same format.
        root: The data root, see :func:`topomask.data.data_root`.
        attributes: Take node attributes. Default: for ENZYMES only, as in the fair comparison.
        degree: ``"one-hot"`` up to ``max_degree``; ``"log"`` for log(1 + degree); or ``"none"``.
            Default: ``"log"`` for REDDIT-BINARY, ``"one-hot"`` for IMDB and COLLAB, else ``"none"``.
        max_degree: Degrees from here on share a column, where they are one-hot. Default: 128.
        standardize: Standardise attributes and logarithms over all graphs. To do so over those of training, pass
            false and call :meth:`GraphSet.standardized` with their numbers.
        max_bytes: Largest size of the files, unpacked, of the numbers in one of them, and of the input. Default: the
            environment variable ``TOPOMASK_MAX_BYTES``, else 512 MiB, and 50 times the size of an archive, or 16 MiB
            where this is more.

    References:
        Morris et al. (2020), TUDataset. Errica et al. (2020), A fair comparison of graph neural networks.
    """
    entry = TU_SETS.get(name, TUEntry(0, 0))
    attributes = entry.attributes if attributes is None else attributes
    degree = entry.degree if degree is None else degree
    files = _Files(name, data_root(root) / "tudataset", max_bytes)
    owner = _owners(files)
    labels, classes = _labels(files, owner)
    if name in TU_SETS and (len(labels), len(classes)) != (entry.num_graphs, entry.num_classes):
        raise ValueError(
            f"{files.where} has {len(labels)} graphs in {len(classes)} classes, but {name} has {entry.num_graphs} in "
            f"{entry.num_classes}: a file is cut off. {_HOW}"
        )
    graphs = _graphs(files, owner)
    num_edges = sum(graph.num_edges for graph in graphs)
    if entry.num_edges not in (None, num_edges):
        raise ValueError(
            f"{name}_A.txt in {files.where} has {num_edges:,} edges, but {name} has {entry.num_edges:,}: it is cut "
            f"off, or of another set. Get it again. {_HOW}"
        )
    if max_degree is None and degree == "one-hot":
        max_degree = entry.max_degree
    if degree == "one-hot":
        largest = max(int(np.diff(graph.indptr).max()) for graph in graphs)
        _check_one_hot(files, len(owner), 1 + (largest if max_degree is None else min(max_degree, largest)))
    degrees = degree_features(graphs, degree, max_degree)
    labels_of_nodes = files.need("node_labels") if entry.has_node_labels else files.numbers("node_labels")
    x, quantities = _inputs(files, len(owner), labels_of_nodes, attributes, degrees, degree == "log")
    found = GraphSet(
        name, graphs, x.split([graph.num_nodes for graph in graphs]), torch.from_numpy(labels), classes, quantities
    )
    return found.standardized() if standardize else found


class _Files:
    """The text files of a set, in a folder or a zip archive."""

    def __init__(self, name: str, place: Path, max_bytes: int | None) -> None:
        self.name = name
        self.max_bytes = limit_of("max_bytes", max_bytes)
        self.archive: zipfile.ZipFile | None = None
        folders = [place / name / "raw", place / name, place / f"{name}.zip"]
        held = [path for path in folders if path.is_file() or (path / f"{name}_A.txt").is_file()]
        if not held:
            how = f"{_HOW}{did_you_mean(name, TU_SETS)}"
            raise missing(name, place, [f"{name}.zip or {name}/{name}_A.txt"], how)
        self.where = held[0]
        if self.where.is_file():
            try:
                self.archive = zipfile.ZipFile(self.where)
            except DAMAGE as error:
                raise ValueError(f"{self.where} is no whole zip archive: {error}. Get it again. {_HOW}") from None
            size = sum(member.file_size for member in self.archive.infolist())
            check_bytes(self.where, size, unpacked_limit(self.where, max_bytes))

    def open(self, kind: str) -> IO[bytes] | None:
        """A file, such as ``A`` or ``graph_labels``, or None."""
        file = f"{self.name}_{kind}.txt"
        if self.archive is None:
            path = self.where / file
            if not path.is_file():
                return None
            check_bytes(path, path.stat().st_size, self.max_bytes)
            return path.open("rb")
        members = [member for member in self.archive.namelist() if member.rpartition("/")[2] == file]
        return self.archive.open(members[0]) if members else None

    def has(self, kind: str) -> bool:
        """Whether there is such a file."""
        source = self.open(kind)
        if source is not None:
            source.close()
        return source is not None

    def numbers(self, kind: str, dtype: Any = np.int64) -> Array | None:
        """All numbers of a file, one row per line; None where there is no such file."""
        place = f"{self.name}_{kind}.txt in {self.where}"
        parts, lines, size = [], 0, 0
        try:
            source = self.open(kind)
            if source is None:
                return None
            with source:
                for text in _whole_lines(source):
                    lines += text.count(b"\n")
                    parts.append(_parse(text, dtype, place))
                    # Numbers of a digit take more than their text.
                    size += parts[-1].nbytes
                    check_bytes(place, size, self.max_bytes)
        except DAMAGE as error:
            raise ValueError(f"{place} breaks off: {error}. Get it again. {_HOW}") from None
        values = np.concatenate(parts) if parts else np.empty(0, dtype)
        if not len(values) or len(values) % lines:
            raise ValueError(f"{place} has {len(values)} numbers in {lines} lines: it is cut off. Get it again. {_HOW}")
        return values.reshape(lines, -1)

    def need(self, kind: str, dtype: Any = np.int64) -> Array:
        """The same, or an error where there is no such file."""
        values = self.numbers(kind, dtype)
        if values is None:
            raise missing(self.name, self.where, [f"{self.name}_{kind}.txt"], _HOW)
        return values


def _whole_lines(source: IO[bytes]) -> Iterator[bytes]:
    """Large pieces that end with a line; empty lines at the end are no lines."""
    rest = b""
    while chunk := source.read(_CHUNK):
        text, _, rest_of_line = (rest + chunk).rpartition(b"\n")
        if text := text.rstrip():
            yield text + b"\n"
        rest = rest_of_line
    if rest.strip():
        yield rest.rstrip() + b"\n"


def _parse(text: bytes, dtype: Any, place: str) -> Array:
    plain = text.translate(bytes.maketrans(b",\n\r\t", b"    "))
    try:
        # Where it meets something else, NumPy stops with a warning.
        with warnings.catch_warnings(action="error"):
            return np.fromstring(plain, dtype, sep=" ")
    except (ValueError, DeprecationWarning):
        kind = "whole number" if np.issubdtype(dtype, np.integer) else "number"
        raise ValueError(f"{place} has something that is no {kind}. Get it again. {_HOW}") from None


def _owners(files: _Files) -> Array:
    """The graph that every node belongs to, from 0."""
    owner = files.need("graph_indicator")[:, 0] - 1
    if owner[0] != 0 or ((owner[1:] - owner[:-1]) < 0).any() or ((owner[1:] - owner[:-1]) > 1).any():
        raise ValueError(
            f"{files.name}_graph_indicator.txt in {files.where} must number graphs 1, 2, 3, ... in ascending order. "
            f"Get it again. {_HOW}"
        )
    return owner


def _labels(files: _Files, owner: Array) -> tuple[Array, tuple[str, ...]]:
    table = files.need("graph_labels")
    if table.shape[1] != 1:
        raise ValueError(
            f"{files.name}_graph_labels.txt in {files.where} must have one class per line, but has {table.shape[1]} "
            "numbers. Sets with several targets per graph are not for classification: keep one of them."
        )
    found = table[:, 0]
    num_graphs = int(owner[-1]) + 1
    if len(found) != num_graphs:
        raise ValueError(
            f"{files.where} has labels of {len(found)} graphs and nodes of {num_graphs}: a file is cut off. Get it "
            f"again. {_HOW}"
        )
    classes, labels = np.unique(found, return_inverse=True)
    return labels.reshape(-1), tuple(str(label) for label in classes)


def _graphs(files: _Files, owner: Array) -> list[Graph]:
    edges = files.need("A") - 1
    if edges.shape[1] != 2:
        raise ValueError(f"{files.name}_A.txt in {files.where} must have two numbers per line. Get it again. {_HOW}")
    num_nodes = len(owner)
    low, high = edges.min(axis=1), edges.max(axis=1)
    if low.min() < 0:
        raise ValueError(
            f"{files.name}_A.txt in {files.where} has edges of node {int(low.min()) + 1}, but nodes are numbered from "
            "1 on."
        )
    if high.max() >= num_nodes:
        raise ValueError(
            f"{files.name}_A.txt in {files.where} has edges of node {int(high.max()) + 1}, but there are {num_nodes} "
            f"nodes, from 1: a file is cut off. Get it again. {_HOW}"
        )
    crossing = np.flatnonzero(owner[low] != owner[high])
    if crossing.size:
        i, j = edges[crossing[0]] + 1
        raise ValueError(
            f"Edge ({i}, {j}) of {files.name}_A.txt in {files.where} joins two graphs. Get it again. {_HOW}"
        )
    # Every edge once, whichever directions are listed.
    keys = _distinct((low * num_nodes + high)[low != high])
    low, high = keys // num_nodes, keys % num_nodes
    starts = np.searchsorted(owner, np.arange(int(owner[-1]) + 2))
    cuts = np.searchsorted(low, starts)
    return [
        Graph.from_edges(np.stack([low[a:b], high[a:b]]) - start, int(end - start))
        for a, b, start, end in zip(cuts[:-1], cuts[1:], starts[:-1], starts[1:], strict=True)
    ]


def _distinct(keys: Array) -> Array:
    """As np.unique, which hashes integers, and on millions of edges takes many times as long."""
    keys = np.sort(keys)
    return keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]


def _inputs(
    files: _Files, num_nodes: int, labels: Array | None, attributes: bool, degrees: Tensor, log: bool
) -> tuple[Tensor, list[int]]:
    """The input of all nodes, and which columns of it are quantities: attributes, and degrees where they are."""
    parts: list[Tensor] = []
    is_quantity: list[bool] = []
    if labels is not None:
        _check_rows(files, "node_labels", labels, num_nodes)
        for column in labels.T:
            kinds, places = np.unique(column, return_inverse=True)
            _check_one_hot(files, num_nodes, len(is_quantity) + len(kinds))
            parts.append(F.one_hot(torch.from_numpy(places.reshape(-1)), len(kinds)).float())
            is_quantity += [False] * len(kinds)
    if attributes:
        values = files.need("node_attributes", np.float64)
        _check_rows(files, "node_attributes", values, num_nodes)
        if not np.isfinite(values).all():
            line = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0]) + 1
            raise ValueError(
                f"{files.name}_node_attributes.txt in {files.where} must have finite numbers, but line {line} has "
                f"{values[line - 1].tolist()}. Mend it, or pass attributes=False."
            )
        parts.append(torch.from_numpy(values).float())
        is_quantity += [True] * values.shape[1]
    elif labels is None and not degrees.shape[1] and files.has("node_attributes"):
        warnings.warn(
            f"{files.name} in {files.where} has attributes of nodes, but no labels: nodes have the constant 1 as "
            "input. To take attributes pass attributes=True (--data.attributes True); else, perhaps, degrees.",
            stacklevel=3,
        )
    parts.append(degrees)
    is_quantity += [log] * degrees.shape[1]
    x = torch.cat(parts, dim=1) if is_quantity else torch.ones(num_nodes, 1)
    return x, [column for column, measured in enumerate(is_quantity) if measured]


def _check_one_hot(files: _Files, num_nodes: int, columns: int) -> None:
    # They are int64 before they are float.
    check_bytes(f"One-hot input of {num_nodes:,} nodes in {files.where}", 8 * num_nodes * columns, files.max_bytes)


def _check_rows(files: _Files, kind: str, values: Array, num_nodes: int) -> None:
    if len(values) != num_nodes:
        raise ValueError(
            f"{files.name}_{kind}.txt in {files.where} has {len(values)} lines for {num_nodes} nodes: a file is cut "
            f"off. Get it again. {_HOW}"
        )
