"""Node classification: one graph whose nodes have classes, such as citations, coauthors and heterophilous graphs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, final, get_args

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from topomask.data.checks import check_finite, check_labels, class_numbers
from topomask.data.limits import check_bytes, limit_of
from topomask.data.npz import read_npz, write_npz
from topomask.data.root import data_root, missing
from topomask.data.splits import SPLITS, check_split
from topomask.graph import Graph
from topomask.graph.input import Array
from topomask.nn import SparseRows
from topomask.support.checks import check_choice

Scaling = Literal["none", "binary", "row"]
Metric = Literal["accuracy", "roc_auc"]
_KEYS = ("x_data", "x_indices", "x_indptr", "x_shape", "y", "edges", *(f"{split}_mask" for split in SPLITS))
# Features are stored as sparse rows if a smaller fraction than this is nonzero.
_SPARSE = 0.1
# Number of empty feature columns to allow; no more than the number of entries can be non-empty.
_EMPTY_COLUMNS = 1 << 16


@dataclass(frozen=True)
class NodeEntry:
    """Facts about a known set, and its defaults.

    Each pair of connected nodes counts as one edge. `metric` and `scaling` are defaults of :func:`node_set`; if
    `sparse` is None, features are stored sparse if most are 0.
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
    """A graph, and the nodes to classify."""

    x: Tensor | SparseRows  # features of all nodes in the form that models take, :attr:`NodeSet.features`, [N, F]
    labels: Tensor  # class of the nodes to classify, [n]
    graph: Graph
    nodes: Tensor  # the nodes to classify, [n]


@final
class NodeSet:
    """A graph whose nodes have features and classes, with one or more splits.

    As in PyG, ``x`` is always a dense tensor, [N, F]. ``features`` is the same matrix in the form that models take and
    batches contain: :class:`topomask.nn.SparseRows` if the argument `x` is one, as :func:`node_set` and
    :meth:`from_pyg` choose if fewer than one entry in ten is nonzero (bags of words); else the tensor ``x`` itself. If
    it is sparse, ``x`` is built on first access: for coauthor-physics it takes 1.2 GB, and ``features`` 14 MB.

    Args:
        name: Name of the set.
        graph: The graph.
        x: Features of the nodes, [N, F], dense or sparse.
        labels: Class of each node, integers, [N]; nodes that are in no split may have any label, such as -1.
        num_classes: Number of classes.
        masks: For ``"train"``, ``"val"`` and ``"test"``, which nodes belong to it in each split, bool, [splits, N];
            a mask [1, N] is used in all splits.
        metric: The metric to report: ``"accuracy"`` or ``"roc_auc"``.
    """

    def __init__(
        self,
        name: str,
        graph: Graph,
        x: Tensor | SparseRows,
        labels: Tensor,
        num_classes: int,
        masks: dict[str, Tensor],
        metric: Metric = "accuracy",
    ) -> None:
        count = graph.num_nodes
        if len(x) != count or len(labels) != count:
            raise ValueError(
                f"`x` and `labels` must have {count} rows, one per node, but have {len(x)}, {len(labels)}."
            )
        check_choice("metric", metric, get_args(Metric))
        if metric == "roc_auc" and num_classes != 2:
            raise ValueError(f"`metric` 'roc_auc' needs two classes, but there are {num_classes}.")
        if isinstance(x, Tensor):
            check_finite(x, "`x`, the features of nodes,")
        masks = _checked(masks, count)
        check_labels(labels, num_classes, "node", _in_a_split(masks))
        self.name, self.graph, self.features, self.labels = name, graph, x, labels
        self.num_classes, self.masks, self.metric = num_classes, masks, metric
        self._dense = x if isinstance(x, Tensor) else None

    @property
    def x(self) -> Tensor:
        """Features of the nodes as a dense tensor, [N, F]; built on first access if :attr:`features` is sparse."""
        if self._dense is None:
            self._dense = self.features.to_dense()
        return self._dense

    @classmethod
    def from_pyg(
        cls, name: str, data: Any, metric: Metric = "accuracy", *, scaling: Scaling = "none", directed: bool = False
    ) -> NodeSet:
        """Make a set from PyG's ``Data`` with ``x``, ``y`` and masks [N] or [N, splits], such as its ``Planetoid``.

        If other masks are [N, splits], a mask [N] is used in all splits, as the test nodes of ``WikiCS``.

        Args:
            name: Name of the set.
            data: The graph.
            metric: The metric to report: ``"accuracy"``, or ``"roc_auc"`` for two classes.
            scaling: ``"binary"``, ``"row"`` or ``"none"``, see :func:`node_set`.
            directed: Whether edges are directed; if not, each must be listed in both directions.
        """
        if not hasattr(data, "edge_index"):
            raise ValueError(
                f"`data` of {name} must be one PyG Data, but is a {type(data).__name__}. Pass one Data, like "
                "dataset[0]."
            )
        for field, what in (("x", "features of its nodes"), ("y", "classes of its nodes")):
            if getattr(data, field, None) is None:
                raise ValueError(f"{name} has no `{field}`, {what}. Set data.{field}.")
        if data.x.layout != torch.strided or data.x.ndim != 2:
            raise ValueError(
                f"`x` of {name} must be dense, of shape [num_nodes, features], but has layout {data.x.layout} and "
                f"shape {tuple(data.x.shape)}."
            )
        labels = class_numbers(data.y, data.num_nodes, f"`y` of {name}").cpu()
        masks: dict[str, Any] = {split: getattr(data, f"{split}_mask", None) for split in SPLITS}
        lacking = [f"`{split}_mask`" for split, mask in masks.items() if mask is None]
        if lacking:
            raise ValueError(f"{name} must have {' and '.join(lacking)}. Create masks with PyG's RandomNodeSplit.")
        for split, mask in masks.items():
            masks[split] = (mask[None] if mask.ndim == 1 else mask.mT if mask.ndim == 2 else mask).cpu()
        masks = _checked(masks, len(labels))
        graph = Graph.from_pyg(data, directed=directed)
        given = data.x.detach().float().cpu()
        check_finite(given, f"`x` of {name}")
        x = _features_of(_scaled(sp.csr_array(given.numpy()), scaling), sparse=None)
        return cls(name, graph, x, labels, _count_classes(labels, masks), masks, metric)

    def save(self, file: str | Path) -> None:
        """Write an npz file for :func:`node_set` and ``topomask train nodes``, with the features as they are here.

        The metric is not saved: pass it again when you read the file.

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
                f"{self.name} must be a single undirected graph without weights to be saved: the file format cannot "
                "store anything else."
            )
        ends = graph.to_edge_index()[0].numpy()
        x = self.features
        x = x.to_scipy() if isinstance(x, SparseRows) else sp.csr_array(x.detach().cpu().numpy())
        arrays: dict[str, Any] = {
            **{f"x_{part}": np.array(getattr(x, part)) for part in ("data", "indices", "indptr", "shape")},
            "y": self.labels.cpu().numpy(),
            "edges": ends[:, ends[0] <= ends[1]].T,
            **{f"{split}_mask": self.masks[split].cpu().numpy() for split in SPLITS},
        }
        write_npz(Path(file), **arrays)

    @property
    def num_features(self) -> int:
        """Number of features per node."""
        return self.features.shape[1]

    @property
    def num_splits(self) -> int:
        """Number of splits."""
        return len(self.masks["train"])

    def batch(self, split: str, number: int = 0) -> NodeBatch:
        """Return the graph with the nodes of ``"train"``, ``"val"`` or ``"test"`` in the split of this number."""
        check_split(split, SPLITS, self.name)
        if not 0 <= number < self.num_splits:
            raise ValueError(
                f"`number` must lie in [0, {self.num_splits}), the splits of {self.name}, but is {number}."
            )
        nodes = self.masks[split][number].nonzero().flatten()
        return NodeBatch(self.features, self.labels[nodes], self.graph, nodes)

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
    """Read a graph with node classes from ``node/<name>.npz`` of the data root. Nothing is unpickled.

    Args:
        name: One of :data:`NODE_SETS`, or a set of your own in the same layout: ``x_data``, ``x_indices``, ``x_indptr``
            and ``x_shape`` (features as compressed sparse rows), ``y``, undirected ``edges`` [E, 2], and
            ``train_mask``, ``val_mask`` and ``test_mask`` [splits, N]; a mask [1, N] is used in all splits.
        root: The data root, see :func:`topomask.data.data_root`.
        scaling: ``"binary"`` for counts as 0 and 1; ``"row"`` to divide rows by their sum; or ``"none"``. Default:
            ``"binary"`` for coauthors and ``"row"`` for papers, as usual; else ``"none"``.
        metric: The metric to report: ``"accuracy"``, or ``"roc_auc"`` for two classes. Default: ``"roc_auc"`` for
            minesweeper and tolokers, else ``"accuracy"``.
        max_bytes: Largest size of the unpacked file, and of features that are stored dense. Default: the environment
            variable ``TOPOMASK_MAX_BYTES``, else 512 MiB, and for the file at most 50 times its size, or 16 MiB if that
            is more.

    References:
        Yang et al. (2016), Planetoid; Shchur et al. (2018), coauthors; Platonov et al. (2023), the others.
    """
    file = data_root(root) / "node" / f"{name}.npz"
    if not file.is_file():
        how = "PyG downloads the original, and NodeSet.from_pyg(...).save(file) writes it."
        raise missing(name, file.parent, [file.name], f"It is an npz file with the arrays {', '.join(_KEYS)}. {how}")
    entry = NODE_SETS.get(name, NodeEntry(0, 0))
    try:
        found = read_npz(file, max_bytes)
        lacking = [key for key in _KEYS if key not in found]
        if lacking:
            raise ValueError(f"it has no {', '.join(lacking)}.")
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error} It is truncated or another file. Get it again.") from None
    x = _scaled(_sparse_features(file, found), entry.scaling if scaling is None else scaling)
    labels, edges, num_nodes = found["y"], found["edges"], x.shape[0]
    if entry.num_nodes not in (0, num_nodes):
        raise ValueError(f"{file} has {num_nodes} nodes, but {name} has {entry.num_nodes}. Get it again.")
    if labels.shape != (num_nodes,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"`y` of {file} must be {num_nodes} classes, integers from 0, but is {labels.dtype} of shape "
            f"{labels.shape}. Get it again."
        )
    metric = entry.metric if metric is None else metric
    check_choice("metric", metric, get_args(Metric))
    try:
        inputs = _features_of(x, entry.sparse, limit_of("max_bytes", max_bytes))
        classes = torch.from_numpy(labels.astype(np.int64))
        for split in SPLITS:
            if found[f"{split}_mask"].dtype != bool:
                raise ValueError(f"{split}_mask must be bool, but is {found[f'{split}_mask'].dtype}.")
        masks = _checked({split: torch.from_numpy(found[f"{split}_mask"]) for split in SPLITS}, num_nodes)
        # Transposed, because two edges are a 2 x 2 array, which would be read as [2, E].
        graph = Graph.from_edges(edges.T if edges.ndim == 2 else edges, num_nodes)
        if entry.num_edges not in (0, graph.num_edges):
            raise ValueError(f"there are {graph.num_edges:,} edges, but {name} has {entry.num_edges:,}.")
        num_classes = _count_classes(classes, masks)
        if num_classes > num_nodes:
            raise ValueError(f"there are {num_nodes} nodes, but a class has the number {num_classes - 1}.")
        return NodeSet(name, graph, inputs, classes, num_classes, masks, metric)
    except ValueError as error:
        raise ValueError(f"{file} is inconsistent: {error} Get it again.") from None


def _in_a_split(masks: dict[str, Tensor]) -> Tensor:
    """Which nodes are in any split, bool, [N]."""
    return torch.stack([masks[split].any(dim=0) for split in SPLITS]).any(dim=0)


def _checked(masks: dict[str, Tensor], num_nodes: int) -> dict[str, Tensor]:
    """Return the masks, repeating those of a single split, if the three parts of each split are disjoint and not empty.

    Otherwise, raise a ValueError.
    """
    for split in SPLITS:
        mask = masks.get(split)
        if mask is None or mask.ndim != 2 or mask.shape[1] != num_nodes or mask.dtype != torch.bool:
            found = "missing" if mask is None else f"{mask.dtype} of shape {tuple(mask.shape)}"
            raise ValueError(
                f"`masks[{split!r}]` must be bool of shape [splits, num_nodes={num_nodes}], but is {found}."
            )
    most = max(len(masks[split]) for split in SPLITS)
    masks = {split: masks[split].expand(most, -1) if len(masks[split]) == 1 else masks[split] for split in SPLITS}
    sizes = [len(masks[split]) for split in SPLITS]
    if not sizes[0] == sizes[1] == sizes[2] > 0:
        raise ValueError(
            f"All `masks` must have the same number of splits, at least 1, but train, val and test have {sizes[0]}, "
            f"{sizes[1]} and {sizes[2]}. Repeat a mask that is the same in all splits."
        )
    for number in range(sizes[0]):
        for split in SPLITS:
            if not masks[split][number].any():
                raise ValueError(f"Split {number} of `masks[{split!r}]` must have nodes, but has none.")
        for first, second in combinations(SPLITS, 2):
            shared = int((masks[first][number] & masks[second][number]).sum())
            if shared:
                raise ValueError(
                    f"{first} and {second} of split {number} must have no node in common, but share {shared}. Remove "
                    "these from one of the masks."
                )
    return masks


def _count_classes(labels: Tensor, masks: dict[str, Tensor]) -> int:
    """Number of classes among the nodes in a split; other nodes may have any label."""
    used = labels[_in_a_split(masks)]
    return int(used.max()) + 1 if len(used) else 0


def _sparse_features(file: Path, found: dict[str, Array]) -> Any:
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
        raise ValueError(f"The features in {file} are not a valid sparse matrix: {error}. Get it again.") from None
    if not np.isfinite(x.data).all():
        node = int(x.tocoo().coords[0][~np.isfinite(x.data)][0])
        raise ValueError(f"The features in {file} must be finite, but node {node} has NaN or inf. Fix or replace them.")
    return x


def _features_of(x: Any, sparse: bool | None, max_bytes: int | None = None) -> Tensor | SparseRows:
    """Convert a sparse matrix to the form in which features are stored."""
    if sparse is None:
        sparse = x.count_nonzero() < _SPARSE * x.shape[0] * x.shape[1]
    if not sparse and max_bytes is not None:
        check_bytes("`x`, dense,", 4 * x.shape[0] * x.shape[1], max_bytes)
    return SparseRows.from_scipy(x) if sparse else torch.from_numpy(x.toarray().astype(np.float32))


def _scaled(x: Any, scaling: Scaling) -> Any:
    """Scale a sparse matrix in place."""
    if scaling == "binary":
        x.data = (x.data != 0).astype(np.float32)
    elif scaling == "row":
        sums = np.asarray(x.sum(axis=1)).reshape(-1)
        x.data = x.data / np.repeat(np.where(sums == 0, 1.0, sums), np.diff(x.indptr))
    elif scaling != "none":
        raise ValueError(f"`scaling` must be 'none', 'binary' or 'row', but is {scaling!r}.")
    return x
