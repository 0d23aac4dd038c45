"""One graph whose nodes have classes: citations, coauthors, and graphs where neighbours differ."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, final, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from topomask.data.checks import check_finite, check_labels, class_numbers
from topomask.data.limits import check_bytes, limit_of
from topomask.data.npz import read_npz
from topomask.data.root import data_root, missing
from topomask.data.splits import check_split
from topomask.graph import Graph
from topomask.nn import SparseRows
from topomask.support.files import write_atomically

Array = npt.NDArray[Any]
Scaling = Literal["none", "binary", "row"]
Metric = Literal["accuracy", "roc_auc"]
_KEYS = ("x_data", "x_indices", "x_indptr", "x_shape", "y", "edges", "train_mask", "val_mask", "test_mask")
_SPLITS = ("train", "val", "test")
# Features that are kept sparse have a smaller part that is not 0.
_SPARSE = 0.1
# Columns of features that may be empty: there are at most as many others as there are entries.
_EMPTY_COLUMNS = 1 << 16


@dataclass(frozen=True)
class NodeEntry:
    """What is known about a set.

    Args:
        num_nodes: Nodes.
        num_edges: Edges, each pair of nodes counted once.
        metric: What is reported of it.
        scaling: What is done to its features.
        sparse: Whether features are kept sparse; none where nine in ten are 0.
        num_splits: Splits that it is published with.
        summary: What it is, in a few words.
    """

    num_nodes: int
    num_edges: int
    metric: Metric = "accuracy"
    scaling: Scaling = "none"
    sparse: bool | None = None
    num_splits: int = 1
    summary: str = ""


NODE_SETS: dict[str, NodeEntry] = {
    "citeseer": NodeEntry(3327, 4552, scaling="row", summary="3,327 papers in 6 classes, public split"),
    "coauthor-cs": NodeEntry(18_333, 81_894, scaling="binary", summary="18,333 authors in 15 fields"),
    "coauthor-physics": NodeEntry(34_493, 247_962, scaling="binary", summary="34,493 authors in 5 fields"),
    "cora": NodeEntry(2708, 5278, scaling="row", summary="2,708 papers in 7 classes, public split"),
    "minesweeper": NodeEntry(
        10_000, 39_402, "roc_auc", sparse=False, num_splits=10, summary="a grid of 10,000 cells, some with mines"
    ),
    "tolokers": NodeEntry(
        11_758, 519_000, "roc_auc", sparse=False, num_splits=10, summary="11,758 workers, some of them banned"
    ),
}


class NodeBatch(NamedTuple):
    """A graph, and the nodes of it whose class is asked for."""

    x: Tensor | SparseRows  # features of all nodes, [N, F]
    labels: Tensor  # class of the nodes asked for, [n]
    graph: Graph
    nodes: Tensor  # the nodes asked for, [n]


@final
@dataclass(frozen=True, eq=False, repr=False)
class NodeSet:
    """A graph whose nodes have features and classes, with one split or several.

    Args:
        name: Name of the set.
        graph: The graph.
        x: Features of the nodes, [N, F], dense or sparse.
        labels: Class of every node, integers, [N]; of a node that is in no split it may be anything, such as -1.
        num_classes: Classes.
        masks: For ``"train"``, ``"val"`` and ``"test"``, which nodes belong to it in every split, bool, [splits, N].
        metric: What is reported of it: ``"accuracy"`` or ``"roc_auc"``.
    """

    name: str
    graph: Graph
    x: Tensor | SparseRows
    labels: Tensor
    num_classes: int
    masks: dict[str, Tensor]
    metric: Metric = "accuracy"

    def __post_init__(self) -> None:
        count = self.graph.num_nodes
        if len(self.x) != count or len(self.labels) != count:
            raise ValueError(
                f"There must be features and a label for each of the {count} nodes, but there are {len(self.x)} and "
                f"{len(self.labels)}."
            )
        check_metric(self.metric)
        if self.metric == "roc_auc" and self.num_classes != 2:
            raise ValueError(f"`metric` 'roc_auc' is for two classes, but there are {self.num_classes}.")
        if isinstance(self.x, Tensor):
            check_finite(self.x, "`x`, the features of nodes,")
        for split in _SPLITS:
            _check_mask(split, self.masks.get(split), count)
        self._check_splits()
        check_labels(self.labels, self.num_classes, "node", _in_a_split(self.masks))

    def _check_splits(self) -> None:
        """A ValueError unless every split has nodes of all three kinds, and none of two."""
        train, val, test = (self.masks[split] for split in _SPLITS)
        if not len(train) == len(val) == len(test) > 0:
            raise ValueError(
                "There must be as many splits in all of `masks`, and one at least, but there are "
                f"{len(train)}, {len(val)} and {len(test)} of train, val and test. Repeat a mask that is the same in "
                "all."
            )
        for number in range(len(train)):
            parts = {split: self.masks[split][number] for split in _SPLITS}
            for split, mask in parts.items():
                if not mask.any():
                    raise ValueError(f"Split {number} of `masks[{split!r}]` must have nodes, but has none.")
            for first, second in combinations(parts, 2):
                shared = int((parts[first] & parts[second]).sum())
                if shared:
                    raise ValueError(
                        f"{first} and {second} of split {number} must have no node in common, but share {shared}. "
                        "Take these out of one of the masks."
                    )

    @classmethod
    def from_pyg(
        cls,
        name: str,
        data: Any,
        metric: Metric = "accuracy",
        *,
        scaling: Scaling = "none",
        directed: bool = False,
    ) -> NodeSet:
        """From PyG's ``Data`` with ``x``, ``y`` and masks [N] or [N, splits], such as its ``Planetoid``.

        A mask [N] beside others [N, splits] counts for all of these, as the test nodes of ``WikiCS``. Features of which
        nine in ten are 0, such as words, are kept sparse.

        Args:
            name: Name of the set.
            data: The graph.
            metric: What is reported of it: ``"accuracy"``, or ``"roc_auc"`` for two classes.
            scaling: ``"binary"``, ``"row"`` or ``"none"``, see :func:`node_set`.
            directed: Whether edges have a direction; else each must stand there in both.
        """
        for field, what in (("x", "features of its nodes"), ("y", "classes of its nodes")):
            if getattr(data, field, None) is None:
                raise ValueError(f"{name} has no `{field}`, {what}. Set data.{field}.")
        if data.x.layout != torch.strided or data.x.ndim != 2:
            raise ValueError(
                f"`x` of {name} must be dense, of shape [num_nodes, features], but has layout {data.x.layout} and "
                f"shape {tuple(data.x.shape)}."
            )
        labels = class_numbers(data.y, data.num_nodes, f"`y` of {name}").cpu()
        masks = {}
        for split in _SPLITS:
            mask = getattr(data, f"{split}_mask", None)
            if mask is None:
                raise ValueError(f"{name} must have `{split}_mask`. Make one with PyG's RandomNodeSplit.")
            masks[split] = (mask[None] if mask.ndim == 1 else mask.mT if mask.ndim == 2 else mask).cpu()
        masks = _repeated(masks, labels)
        graph = Graph.from_pyg(data, directed=directed)
        given = data.x.detach().float().cpu()
        check_finite(given, f"`x` of {name}")
        x = _features_of(_scaled(sp.csr_array(given.numpy()), scaling), sparse=None)
        return cls(name, graph, x, labels, _count_classes(labels, masks), masks, metric)

    def save(self, file: str | Path) -> None:
        """Write an npz file that :func:`node_set` and ``topomask train nodes`` read, features as they are here.

        The metric is not kept: say it again where the set is read.

        Example:
            >>> import tempfile, topomask as tm
            >>> masks = {split: torch.arange(3)[None] == k for k, split in enumerate(("train", "val", "test"))}
            >>> found = NodeSet("mine", tm.path_graph(3), torch.ones(3, 2), torch.tensor([0, 1, 1]), 2, masks)
            >>> with tempfile.TemporaryDirectory() as root:
            ...     found.save(Path(root) / "node" / "mine.npz")
            ...     node_set("mine", root)
            NodeSet('mine', 3 nodes, 2 edges, 2 features, 2 classes, 1 splits)
        """
        graph = self.graph
        if graph.directed or graph.num_graphs > 1 or (graph.weights != 1).any():
            raise ValueError(
                f"{self.name} must be one graph without directions and weights to be saved, which the layout has no "
                "room for."
            )
        ends = graph.to_edge_index()[0].numpy()
        x = self.x.to_scipy() if isinstance(self.x, SparseRows) else sp.csr_array(self.x.detach().cpu().numpy())
        arrays = {
            "x_data": x.data,
            "x_indices": x.indices,
            "x_indptr": x.indptr,
            "x_shape": np.array(x.shape),
            "y": self.labels.cpu().numpy(),
            "edges": ends[:, ends[0] <= ends[1]].T,
            **{f"{split}_mask": self.masks[split].cpu().numpy() for split in _SPLITS},
        }

        def write(path: Path) -> None:
            # To a file that is open: to a name without .npz, NumPy would add it.
            with path.open("wb") as target:
                np.savez_compressed(target, **arrays)

        write_atomically(Path(file), write)

    @property
    def num_features(self) -> int:
        """Features of a node."""
        return self.x.shape[1]

    @property
    def num_splits(self) -> int:
        """How many splits there are."""
        return len(self.masks["train"])

    def batch(self, split: str, number: int = 0) -> NodeBatch:
        """The whole graph with the nodes of one part of a split; a list of this is what training takes.

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``.
            number: Which of the splits.
        """
        check_split(split, _SPLITS, self.name)
        if not 0 <= number < self.num_splits:
            raise ValueError(
                f"`number` must lie in [0, {self.num_splits}), the splits of {self.name}, but is {number}."
            )
        nodes = self.masks[split][number].nonzero().flatten()
        return NodeBatch(self.x, self.labels[nodes], self.graph, nodes)

    def __repr__(self) -> str:
        graph = f"{self.graph.num_nodes} nodes, {self.graph.num_edges} edges, {self.num_features} features"
        return f"NodeSet({self.name!r}, {graph}, {self.num_classes} classes, {self.num_splits} splits)"


def node_set(
    name: str,
    root: str | Path | None = None,
    *,
    scaling: Scaling | None = None,
    metric: Metric | None = None,
    max_bytes: int | None = None,
) -> NodeSet:
    """A graph with classes of its nodes, from ``node/<name>.npz`` of the data root. Nothing is unpickled.

    Args:
        name: One of :data:`NODE_SETS`, or of your own in the same layout: ``x_data``, ``x_indices``, ``x_indptr`` and
            ``x_shape`` (features as compressed sparse rows), ``y``, ``edges`` [E, 2] without direction, and
            ``train_mask``, ``val_mask`` and ``test_mask`` [splits, N], where a single split counts beside several.
        root: The data root, see :func:`topomask.data.data_root`.
        scaling: ``"binary"`` for counts as 0 and 1; ``"row"`` to divide rows by their sum; or ``"none"``. Default:
            ``"binary"`` for coauthors and ``"row"`` for papers, as usual; else ``"none"``.
        metric: What is reported of it: ``"accuracy"``, or ``"roc_auc"`` for two classes. Default: ``"roc_auc"`` for
            minesweeper and tolokers, else ``"accuracy"``.
        max_bytes: Largest size of the file, unpacked, and of features that are kept dense. Default: the environment
            variable ``TOPOMASK_MAX_BYTES``, else 512 MiB, and 50 times the size of the file, or 16 MiB where this is
            more.

    References:
        Yang et al. (2016), Planetoid; Shchur et al. (2018), coauthors; Platonov et al. (2023), the others.
    """
    file = data_root(root) / "node" / f"{name}.npz"
    if not file.is_file():
        how = (
            f"It is an npz file with the arrays {', '.join(_KEYS)}. PyG downloads the original, and "
            "NodeSet.from_pyg(...).save(file) writes it."
        )
        raise missing(name, file.parent, [file.name], how)
    entry = NODE_SETS.get(name, NodeEntry(0, 0))
    found = _read(file, max_bytes)
    x = _features(file, found, entry.scaling if scaling is None else scaling)
    labels, num_nodes = found["y"], x.shape[0]
    if entry.num_nodes not in (0, num_nodes):
        raise ValueError(f"{file} has {num_nodes} nodes, but {name} has {entry.num_nodes}. Get it again.")
    if labels.shape != (num_nodes,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"`y` of {file} must be {num_nodes} classes, integers from 0, but is {labels.dtype} of shape "
            f"{labels.shape}. Get it again."
        )
    metric = check_metric(entry.metric if metric is None else metric)
    try:
        inputs = _features_of(x, entry.sparse, limit_of("max_bytes", max_bytes))
        classes = torch.from_numpy(labels.astype(np.int64))
        for split in _SPLITS:
            if found[f"{split}_mask"].dtype != bool:
                raise ValueError(f"{split}_mask must be bool, but is {found[f'{split}_mask'].dtype}.")
        masks = _repeated({split: torch.from_numpy(found[f"{split}_mask"]) for split in _SPLITS}, classes)
        edges = found["edges"]
        # Two edges are a 2 x 2 array, which would be read the other way.
        graph = Graph.from_edges(edges.T if edges.ndim == 2 else edges, num_nodes)
        if entry.num_edges not in (0, graph.num_edges):
            raise ValueError(f"there are {graph.num_edges:,} edges, but {name} has {entry.num_edges:,}.")
        num_classes = _count_classes(classes, masks)
        if num_classes > num_nodes:
            raise ValueError(f"there are {num_nodes} nodes, but a class has the number {num_classes - 1}.")
        return NodeSet(name, graph, inputs, classes, num_classes, masks, metric)
    except ValueError as error:
        raise ValueError(f"{file} contradicts itself: {error} Get it again.") from None


def check_metric(metric: Metric) -> Metric:
    """A metric, or a ValueError."""
    if metric not in get_args(Metric):
        raise ValueError(f"`metric` must be one of {get_args(Metric)}, but is {metric!r}.")
    return metric


def _in_a_split(masks: dict[str, Tensor]) -> Tensor:
    """Which nodes are in a split, bool, [N]."""
    return torch.stack([masks[split].any(dim=0) for split in _SPLITS]).any(dim=0)


def _check_mask(split: str, mask: Tensor | None, num_nodes: int) -> None:
    """A ValueError unless it says of every node, in one split or several, whether it is in it."""
    if mask is None or mask.ndim != 2 or mask.shape[1] != num_nodes or mask.dtype != torch.bool:
        found = "missing" if mask is None else f"{mask.dtype} of shape {tuple(mask.shape)}"
        raise ValueError(f"`masks[{split!r}]` must be bool of shape [splits, num_nodes={num_nodes}], but is {found}.")


def _count_classes(labels: Tensor, masks: dict[str, Tensor]) -> int:
    """Classes of the nodes that are in a split; a label of another node may be anything."""
    used = labels[_in_a_split(masks)]
    return int(used.max()) + 1 if len(used) else 0


def _repeated(masks: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
    """Masks of a single split as often as the others have splits."""
    for split, mask in masks.items():
        _check_mask(split, mask, len(labels))
    most = max(len(mask) for mask in masks.values())
    return {split: mask.expand(most, -1) if len(mask) == 1 else mask for split, mask in masks.items()}


def _read(file: Path, max_bytes: int | None) -> dict[str, Array]:
    try:
        found = read_npz(file, max_bytes)
        lacking = [key for key in _KEYS if key not in found]
        if lacking:
            raise ValueError(f"it has no {', '.join(lacking)}.")
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error} It is cut off or another file. Get it again.") from None
    return found


def _features(file: Path, found: dict[str, Array], scaling: Scaling) -> Any:
    parts = (found["x_data"], found["x_indices"], found["x_indptr"])
    if found["x_data"].dtype.kind not in "biuf":
        raise ValueError(f"`x_data` of {file} must be real numbers, but is {found['x_data'].dtype}. Get it again.")
    try:
        for part in parts[1:]:
            if part.dtype.kind not in "iu":
                raise ValueError(f"x_indices and x_indptr must be integers, but one is {part.dtype}")
        shape = tuple(int(size) for size in found["x_shape"])
        if len(shape) != 2 or not 0 <= shape[1] <= len(parts[0]) + _EMPTY_COLUMNS:
            raise ValueError(f"x_shape is {shape}, but there are {len(parts[0]):,} entries")
        x = sp.csr_array(parts, shape=shape)
        x.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"The features in {file} are no sparse matrix: {error}. Get it again.") from None
    if not np.isfinite(x.data).all():
        node = int(x.tocoo().coords[0][~np.isfinite(x.data)][0])
        raise ValueError(f"The features in {file} must be finite, but those of node {node} are not. Mend them.")
    return _scaled(x, scaling)


def _features_of(x: Any, sparse: bool | None, max_bytes: int | None = None) -> Tensor | SparseRows:
    """Features, a sparse matrix, as they are kept."""
    if sparse is None:
        sparse = x.count_nonzero() < _SPARSE * x.shape[0] * x.shape[1]
    if not sparse and max_bytes is not None:
        check_bytes("`x`, dense,", 4 * x.shape[0] * x.shape[1], max_bytes)
    return SparseRows.from_scipy(x) if sparse else torch.from_numpy(x.toarray().astype(np.float32))


def _scaled(x: Any, scaling: Scaling) -> Any:
    """Features, a sparse matrix that is changed."""
    if scaling == "binary":
        x.data = (x.data != 0).astype(np.float32)
    elif scaling == "row":
        sums = np.asarray(x.sum(axis=1)).reshape(-1)
        x.data = x.data / np.repeat(np.where(sums == 0, 1.0, sums), np.diff(x.indptr))
    elif scaling != "none":
        raise ValueError(f"`scaling` must be 'none', 'binary' or 'row', but is {scaling!r}.")
    return x
