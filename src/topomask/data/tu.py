"""TUDataset: benchmarks for graph classification, as text files in a folder or a zip archive."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.data.archives import DAMAGE
from topomask.data.degrees import MAX_DEGREE, DegreeInput, degree_features
from topomask.data.graph_set import GraphSet
from topomask.data.limits import check_bytes, limit_of, unpacked_limit
from topomask.data.root import data_root, missing
from topomask.graph import Graph
from topomask.graph.input import Array
from topomask.support.checks import did_you_mean

_CHUNK = 1 << 24
# Stored in the record of a run: increase it when the same files and options give different graphs or features.
TU_VERSION = 2
_HOW = "Download it from www.chrsmrrs.com/graphkerneldatasets."
_AGAIN = f"Get it again. {_HOW}"


@dataclass(frozen=True)
class TUEntry:
    """Facts about a known set, and its defaults, which are those of the fair comparison.

    Edges of all graphs are counted once, without self-loops; None if their number is unknown. `attributes`, `degree`
    and `max_degree` are defaults of :func:`tu_dataset`.
    """

    num_graphs: int
    num_classes: int
    num_edges: int | None = None
    attributes: bool = False
    degree: DegreeInput = "none"
    max_degree: int = MAX_DEGREE
    in_fair_comparison: bool = True


TU_SETS: dict[str, TUEntry] = {
    "COLLAB": TUEntry(5000, 3, 12_286_079, degree="one-hot"),
    "DD": TUEntry(1178, 2, 843_046),
    "ENZYMES": TUEntry(600, 6, 37_282, attributes=True),
    "IMDB-BINARY": TUEntry(1000, 2, 96_531, degree="one-hot"),
    "IMDB-MULTI": TUEntry(1500, 3, 98_903, degree="one-hot"),
    "MUTAG": TUEntry(188, 2, 3_721, in_fair_comparison=False),
    "NCI1": TUEntry(4110, 2, 132_753),
    "PROTEINS": TUEntry(1113, 2, 81_044),
    # Some nodes have thousands of neighbours: almost all one-hot columns would be empty.
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
    """Read a set of TUDataset from ``tudataset/<name>.zip`` or the folder ``tudataset/<name>`` of the data root.

    The features of a node are its one-hot label, if the set has labels; its attributes, if asked for; and its degree,
    if asked for. If there are none of these, the feature is the constant 1. As in PyG, each edge counts once, whichever
    directions are listed and however often, and self-loops are dropped. Edge labels and attributes are ignored. A
    folder has the layout of the archive, or PyG's layout with the files in ``raw``.

    Args:
        name: One of :data:`TU_SETS`, or a set of your own in the same format.
        root: The data root, see :func:`topomask.data.data_root`.
        attributes: Use node attributes. Default: only for ENZYMES, as in the fair comparison.
        degree: ``"one-hot"``, ``"log"`` for log(1 + degree), or ``"none"``. Default: ``"log"`` for REDDIT-BINARY,
            ``"one-hot"`` for IMDB and COLLAB, else ``"none"``.
        max_degree: One-hot degrees from this one on share a column. Default: 128.
        standardize: Standardise attributes and logarithms over all graphs. To do so over the training graphs, pass
            False and call :meth:`GraphSet.standardized` with their indices.
        max_bytes: Largest size of the unpacked files, of the numbers in one file, and of the features. Default: the
            environment variable ``TOPOMASK_MAX_BYTES``, else 512 MiB, and for an archive at most 50 times its size, or
            16 MiB if that is more.

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
            f"{entry.num_classes}: a file is truncated. {_HOW}"
        )
    graphs = _graphs(files, owner)
    num_edges = sum(graph.num_edges for graph in graphs)
    if entry.num_edges not in (None, num_edges):
        raise ValueError(
            f"{files.locate('A')} has {num_edges:,} edges, but {name} has {entry.num_edges:,}: it is truncated, or "
            f"belongs to another set. {_AGAIN}"
        )
    if degree == "one-hot":
        max_degree = entry.max_degree if max_degree is None else max_degree
        largest = max(int(np.diff(graph.indptr).max()) for graph in graphs)
        _check_one_hot(files, len(owner), 1 + min(max_degree, largest))
    degrees = degree_features(graphs, degree, max_degree)
    # Known sets without node labels use degrees.
    is_labelled = (name in TU_SETS and entry.degree == "none") or files.find("node_labels") is not None
    node_labels = files.numbers("node_labels", count=len(owner)) if is_labelled else None
    x, quantities = _inputs(files, len(owner), node_labels, attributes, degrees, degree == "log")
    features = x.split([graph.num_nodes for graph in graphs])
    found = GraphSet(name, graphs, features, torch.from_numpy(labels), classes, quantities)
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
                raise ValueError(f"{self.where} is not a complete zip archive: {error}. {_AGAIN}") from None
            size = sum(member.file_size for member in self.archive.infolist())
            check_bytes(self.where, size, unpacked_limit(self.where, max_bytes))

    def locate(self, kind: str) -> str:
        """Name and place of a file, for errors."""
        return f"{self.name}_{kind}.txt in {self.where}"

    def find(self, kind: str) -> str | None:
        """The name of a file, such as ``A`` or ``graph_labels``, where it is stored; None if it does not exist."""
        file = f"{self.name}_{kind}.txt"
        if self.archive is None:
            return file if (self.where / file).is_file() else None
        return next((member for member in self.archive.namelist() if member.rpartition("/")[2] == file), None)

    def open(self, kind: str) -> IO[bytes]:
        """Open a file; a MissingDataError if it does not exist."""
        file = self.find(kind)
        if file is None:
            raise missing(self.name, self.where, [f"{self.name}_{kind}.txt"], _HOW)
        if self.archive is not None:
            return self.archive.open(file)
        check_bytes(self.where / file, (self.where / file).stat().st_size, self.max_bytes)
        return (self.where / file).open("rb")

    def numbers(self, kind: str, dtype: Any = np.int64, count: int | None = None, what: str = "nodes") -> Array:
        """All numbers of a file, one row per line, of which there must be `count`."""
        place = self.locate(kind)
        parts, lines, size = [], 0, 0
        try:
            with self.open(kind) as source:
                for text in _whole_lines(source):
                    lines += text.count(b"\n")
                    parts.append(_parse(text, dtype, place))
                    # A number of one digit takes more memory than its text.
                    size += parts[-1].nbytes
                    check_bytes(place, size, self.max_bytes)
        except DAMAGE as error:
            raise ValueError(f"{place} is damaged: {error}. {_AGAIN}") from None
        values = np.concatenate(parts) if parts else np.empty(0, dtype)
        if not len(values) or len(values) % lines:
            raise ValueError(f"{place} has {len(values)} numbers in {lines} lines: it is truncated. {_AGAIN}")
        if count not in (None, lines):
            raise ValueError(f"{place} has {lines} lines for {count} {what}: a file is truncated. {_AGAIN}")
        return values.reshape(lines, -1)


def _whole_lines(source: IO[bytes]) -> Iterator[bytes]:
    """Large chunks of whole lines; empty lines at the end do not count."""
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
        # NumPy stops with a warning at anything that is not a number.
        with warnings.catch_warnings(action="error"):
            return np.fromstring(plain, dtype, sep=" ")
    except (ValueError, DeprecationWarning):
        kind = "whole number" if np.issubdtype(dtype, np.integer) else "number"
        raise ValueError(f"{place} has something that is not a {kind}. {_AGAIN}") from None


def _owners(files: _Files) -> Array:
    """The graph of each node, from 0."""
    owner = files.numbers("graph_indicator")[:, 0] - 1
    if owner[0] != 0 or ((owner[1:] - owner[:-1]) < 0).any() or ((owner[1:] - owner[:-1]) > 1).any():
        raise ValueError(
            f"{files.locate('graph_indicator')} must number graphs 1, 2, 3, ... in ascending order. {_AGAIN}"
        )
    return owner


def _labels(files: _Files, owner: Array) -> tuple[Array, tuple[str, ...]]:
    table = files.numbers("graph_labels", count=int(owner[-1]) + 1, what="graphs")
    if table.shape[1] != 1:
        raise ValueError(
            f"{files.locate('graph_labels')} must have one class per line, but has {table.shape[1]} numbers. Sets with "
            "several targets per graph are not for classification: keep one of them."
        )
    classes, labels = np.unique(table[:, 0], return_inverse=True)
    return labels.reshape(-1), tuple(str(label) for label in classes)


def _graphs(files: _Files, owner: Array) -> list[Graph]:
    edges = files.numbers("A") - 1
    if edges.shape[1] != 2:
        raise ValueError(f"{files.locate('A')} must have two numbers per line. {_AGAIN}")
    num_nodes = len(owner)
    low, high = edges.min(axis=1), edges.max(axis=1)
    if low.min() < 0:
        raise ValueError(
            f"{files.locate('A')} has an edge of node {int(low.min()) + 1}, but nodes are numbered from 1."
        )
    if high.max() >= num_nodes:
        raise ValueError(
            f"{files.locate('A')} has an edge of node {int(high.max()) + 1}, but there are {num_nodes} nodes, numbered "
            f"from 1: a file is truncated. {_AGAIN}"
        )
    crossing = np.flatnonzero(owner[low] != owner[high])
    if crossing.size:
        i, j = edges[crossing[0]] + 1
        raise ValueError(f"Edge ({i}, {j}) of {files.locate('A')} joins two graphs. {_AGAIN}")
    # Each edge once, whichever directions are listed. `np.unique` hashes integers, and is many times slower here.
    keys = np.sort((low * num_nodes + high)[low != high])
    keys = keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
    low, high = keys // num_nodes, keys % num_nodes
    starts = np.searchsorted(owner, np.arange(int(owner[-1]) + 2))
    cuts = np.searchsorted(low, starts)
    return [
        Graph.from_edges(np.stack([low[a:b], high[a:b]]) - start, int(end - start))
        for a, b, start, end in zip(cuts[:-1], cuts[1:], starts[:-1], starts[1:], strict=True)
    ]


def _inputs(
    files: _Files, num_nodes: int, labels: Array | None, attributes: bool, degrees: Tensor, log: bool
) -> tuple[Tensor, list[int]]:
    """Features of all nodes, and which columns are quantities: attributes and logarithms of degrees."""
    parts: list[Tensor] = []
    is_quantity: list[bool] = []
    if labels is not None:
        for column in labels.T:
            kinds, places = np.unique(column, return_inverse=True)
            _check_one_hot(files, num_nodes, len(is_quantity) + len(kinds))
            parts.append(F.one_hot(torch.from_numpy(places.reshape(-1)), len(kinds)).float())
            is_quantity += [False] * len(kinds)
    if attributes:
        values = files.numbers("node_attributes", np.float64, num_nodes)
        if not np.isfinite(values).all():
            line = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0]) + 1
            raise ValueError(
                f"{files.locate('node_attributes')} must have finite numbers, but line {line} has "
                f"{values[line - 1].tolist()}. Fix it, or pass attributes=False."
            )
        parts.append(torch.from_numpy(values).float())
        is_quantity += [True] * values.shape[1]
    elif labels is None and not degrees.shape[1] and files.find("node_attributes") is not None:
        warnings.warn(
            f"{files.name} in {files.where} has node attributes, but no node labels: the only feature is the constant "
            "1. Pass attributes=True (--data.attributes True), or `degree`.",
            stacklevel=3,
        )
    parts.append(degrees)
    is_quantity += [log] * degrees.shape[1]
    x = torch.cat(parts, dim=1) if is_quantity else torch.ones(num_nodes, 1)
    return x, [column for column, measured in enumerate(is_quantity) if measured]


def _check_one_hot(files: _Files, num_nodes: int, columns: int) -> None:
    # One-hot columns are int64 before they are float.
    check_bytes(f"One-hot input of {num_nodes:,} nodes in {files.where}", 8 * num_nodes * columns, files.max_bytes)
