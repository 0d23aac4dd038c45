"""Sets of graphs with one class each, and batches of them."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from topomask.data.batches import ShardedEpochs
from topomask.data.checks import check_finite, check_labels, class_numbers
from topomask.data.degrees import DegreeInput, degree_features
from topomask.graph import Graph
from topomask.support.files import write_atomically


class GraphBatch(NamedTuple):
    """Several graphs as one."""

    x: Tensor  # features of all nodes, [N, F]
    labels: Tensor  # class of each graph, [G]
    graph: Graph  # all graphs as one block-diagonal graph, which keeps its parts: they recur in other batches


@final
class GraphSet(Dataset[tuple[Graph, Tensor, int]]):
    """Graphs with node features and one class each.

    Args:
        name: Name of the set.
        graphs: The graphs.
        features: Node features of each graph, float, [n, F].
        labels: Class of each graph, integers in [0, num_classes), [G].
        classes: Names of the classes.
        quantities: Columns of the features that are quantities rather than categories; see :meth:`standardized`.

    Example:
        >>> import topomask as tm
        >>> graphs = [tm.cycle_graph(5), tm.path_graph(3)]
        >>> found = GraphSet("two", graphs, [torch.ones(5, 2), torch.ones(3, 2)], torch.tensor([1, 0]), ("a", "b"))
        >>> found
        GraphSet('two', 2 graphs of 4.0 nodes, 2 features, 2 classes)
    """

    def __init__(
        self,
        name: str,
        graphs: Sequence[Graph],
        features: Sequence[Tensor],
        labels: Tensor,
        classes: Sequence[str],
        quantities: Sequence[int] = (),
    ) -> None:
        if not len(graphs) == len(features) == len(labels) or not len(graphs):
            raise ValueError(
                f"`graphs`, `features` and `labels` must have the same length, at least 1, but have {len(graphs)}, "
                f"{len(features)} and {len(labels)}."
            )
        if labels.shape != (len(graphs),):
            raise ValueError(f"`labels` must have shape ({len(graphs)},), but have {tuple(labels.shape)}.")
        width = features[0].shape[-1]
        for number, (graph, x) in enumerate(zip(graphs, features, strict=True)):
            if x.shape != (graph.num_nodes, width) or not x.is_floating_point():
                raise ValueError(
                    f"`features` of graph {number} must be floats of shape [num_nodes={graph.num_nodes}, {width}], but "
                    f"are {x.dtype} of shape {tuple(x.shape)}."
                )
            check_finite(x, f"`features` of graph {number}")
        check_labels(labels, len(classes), "graph")
        _check_columns(quantities, width, "the features")
        self.name, self.graphs, self.features = name, tuple(graphs), tuple(features)
        self.labels, self.classes, self.quantities = labels.long(), tuple(classes), tuple(quantities)
        # Mean and standard deviation by which quantities were standardised, in float64.
        self._scale: tuple[Tensor, Tensor] | None = None

    @classmethod
    def from_pyg(
        cls,
        name: str,
        dataset: Iterable[Any],
        *,
        degree: DegreeInput = "none",
        max_degree: int | None = None,
        quantities: Sequence[int] = (),
        directed: bool = False,
    ) -> GraphSet:
        """Make a set from a list of PyG's ``Data`` with ``x`` and ``y``, such as its ``TUDataset``.

        Args:
            name: Name of the set.
            dataset: The graphs.
            degree: Add node degrees to the features, as :func:`topomask.data.tu_dataset` does: ``"one-hot"`` or
                ``"log"``. Graphs then need no ``x``, as in IMDB, COLLAB and REDDIT.
            max_degree: One-hot degrees from this one on share a column. Default: 128.
            quantities: Columns of ``x`` that are quantities, such as the attributes of ENZYMES. These, and logarithms
                of degrees, are standardised over all graphs; use :meth:`standardized` to do so over the training set.
            directed: Whether edges are directed; if not, each must be listed in both directions.
        """
        items = list(dataset)
        if not items:
            raise ValueError(f"`dataset` of {name} is empty. Pass a list of PyG's Data.")
        graphs, classes = [], []
        for number, data in enumerate(items):
            what = f"Graph {number} of {name}"
            if not hasattr(data, "edge_index"):
                raise ValueError(
                    f"`dataset` must be a list of PyG's Data, but element {number} is a {type(data).__name__}. Pass "
                    "[data] for a single graph, and batch.to_data_list() for a Batch."
                )
            if getattr(data, "y", None) is None:
                raise ValueError(f"{what} has no `y`, its class. Set data.y.")
            if getattr(data, "x", None) is None:
                if degree == "none":
                    raise ValueError(
                        f"{what} has no `x`, its node features. Pass degree='one-hot' or degree='log' to use node "
                        "degrees, or load the set with transform=OneHotDegree."
                    )
            elif data.x.ndim != 2:
                raise ValueError(f"{what} must have `x` of shape [num_nodes, features], not {tuple(data.x.shape)}.")
            classes.append(class_numbers(data.y, 1, f"`y` of graph {number} of {name}"))
            try:
                graphs.append(Graph.from_pyg(data, directed=directed))
            except ValueError as error:
                raise ValueError(f"{what}: {error}") from None
        labels = torch.cat(classes)
        degrees = degree_features(graphs, degree, max_degree).split([graph.num_nodes for graph in graphs])
        given = [getattr(data, "x", None) for data in items]
        features = [y if x is None else torch.cat([x.float(), y], dim=1) for x, y in zip(given, degrees, strict=True)]
        width = 0 if given[0] is None else given[0].shape[1]
        _check_columns(quantities, width, "`x`")
        last = [features[0].shape[1] - 1] if degree == "log" else []
        names = [str(number) for number in range(int(labels.max()) + 1)]
        found = cls(name, graphs, features, labels, names, [*quantities, *last])
        return found.standardized() if found.quantities else found

    def save(self, file: str | Path) -> None:
        """Write an archive for :func:`topomask.data.tu_dataset` and ``topomask train graphs``, in TUDataset's format.

        Quantities are saved as before they were standardised, other features as they are; read them with
        ``attributes=True`` (``--data.attributes True``), which standardises all of them. Names of classes are not
        saved, and classes without a graph are left out.

        Args:
            file: ``tudataset/<name>.zip`` in the data root.

        Example:
            >>> import tempfile, topomask as tm
            >>> found = GraphSet("two", [tm.path_graph(2)] * 2, [torch.rand(2, 3)] * 2, torch.tensor([0, 1]), "ab")
            >>> with tempfile.TemporaryDirectory() as root:
            ...     found.save(Path(root) / "tudataset" / "mine.zip")
            ...     tm.data.tu_dataset("mine", root, attributes=True)
            GraphSet('mine', 2 graphs of 2.0 nodes, 3 features, 2 classes)
        """
        file = Path(file)
        if file.suffix != ".zip":
            raise ValueError(f"`file` must end in .zip, but is {file}. Save to tudataset/{self.name}.zip.")
        edges = [graph.to_edge_index()[0] for graph in self.graphs]
        for number, (graph, ends) in enumerate(zip(self.graphs, edges, strict=True)):
            loops = bool((ends[0] == ends[1]).any())
            if graph.directed or graph.num_graphs > 1 or loops or (graph.weights != 1).any():
                raise ValueError(
                    f"Graph {number} of {self.name} must be a single undirected graph without weights and self-loops "
                    "to be saved: the file format cannot store anything else."
                )
        if not sum(ends.numel() for ends in edges) or not self.num_features:
            raise ValueError(f"{self.name} must have at least one edge and one feature to be saved.")
        sizes = np.array([graph.num_nodes for graph in self.graphs])
        starts = np.cumsum(sizes) - sizes
        tables = {
            "A": np.concatenate([ends.numpy().T + start for ends, start in zip(edges, starts, strict=True)]) + 1,
            "graph_indicator": np.repeat(np.arange(len(self)) + 1, sizes),
            "graph_labels": self.labels.cpu().numpy(),
            "node_attributes": torch.cat(list(map(self._raw, range(len(self))))).detach().cpu().numpy(),
        }

        def write(path: Path) -> None:
            # Not compressed: readers refuse archives that grow a lot.
            with zipfile.ZipFile(path, "w") as archive:
                for kind, table in tables.items():
                    with archive.open(f"{file.stem}/{file.stem}_{kind}.txt", "w", force_zip64=True) as text:
                        np.savetxt(text, table, "%d" if table.dtype.kind == "i" else "%.9g", ", ")

        write_atomically(file, write)

    @property
    def num_features(self) -> int:
        """Number of features per node."""
        return self.features[0].shape[-1]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def __len__(self) -> int:
        return len(self.graphs)

    @overload
    def __getitem__(self, index: int) -> tuple[Graph, Tensor, int]: ...
    @overload
    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> GraphSet: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.subset(range(len(self))[index])
        if getattr(index, "ndim", 0) or isinstance(index, Sequence):
            return self.subset(index)
        return self.graphs[index], self.features[index], int(self.labels[index])

    def subset(self, indices: Iterable[int] | Tensor) -> GraphSet:
        """Return the graphs at these indices, in this order, or where a mask is true; graphs are not copied."""
        places = self._places(indices)
        graphs, features = [self.graphs[k] for k in places], [self.features[k] for k in places]
        return self._like(graphs, features, self.labels[places], self._scale)

    def standardized(self, reference: Iterable[int] | GraphSet | None = None) -> GraphSet:
        """Return the same graphs, with quantities shifted and scaled to mean 0 and standard deviation 1.

        Args:
            reference: Graphs over which mean and deviation are computed, usually the training set: their indices, or a
                set. Default: all. If they or these graphs were standardised before, that is undone first.

        Only `quantities` are; without any, nothing is done, with a warning if features are not only 0 and 1.
        """
        if not self.quantities:
            if any(((x != 0) & (x != 1)).any() for x in self.features):
                warnings.warn(
                    f"{self.name} has no `quantities`, so nothing is standardised, but its features are not all 0 or "
                    "1. Name the columns to standardise when you make the set, as in quantities=[0, 1].",
                    stacklevel=2,
                )
            return self
        columns = list(self.quantities)
        other, places = (reference, None) if isinstance(reference, GraphSet) else (self, reference)
        if other.num_features != self.num_features or other.quantities != self.quantities:
            raise ValueError(
                f"`reference` must have the columns of {self.name}, {self.num_features} features with quantities "
                f"{columns}, but has {other.num_features} features with quantities {list(other.quantities)}."
            )
        chosen = range(len(other)) if places is None else other._places(places)
        known = torch.cat([other._quantities_of(k) for k in chosen])
        mean, deviation = known.mean(dim=0), known.std(dim=0, correction=0)
        # Do not magnify the rounding errors of a constant column.
        deviation = torch.where(deviation <= 1e-7 * mean.abs(), 1.0, deviation)
        features = [x.clone() for x in self.features]
        for number, x in enumerate(features):
            x[:, columns] = ((self._quantities_of(number) - mean) / deviation).to(x.dtype)
        return self._like(self.graphs, features, self.labels, (mean, deviation))

    def _quantities_of(self, number: int) -> Tensor:
        """Quantities of the nodes of a graph before standardisation, float64."""
        values = self.features[number][:, list(self.quantities)].double()
        return values if self._scale is None else values * self._scale[1] + self._scale[0]

    def _raw(self, number: int) -> Tensor:
        """Features of the nodes of a graph before standardisation, float64."""
        x = self.features[number].to(torch.float64, copy=True)
        x[:, list(self.quantities)] = self._quantities_of(number)
        return x

    def _like(
        self, graphs: Sequence[Graph], features: Sequence[Tensor], labels: Tensor, scale: tuple[Tensor, Tensor] | None
    ) -> GraphSet:
        made = GraphSet(self.name, graphs, features, labels, self.classes, self.quantities)
        made._scale = scale
        return made

    def batch(self, indices: Iterable[int] | Tensor) -> GraphBatch:
        """Join some graphs into one batch."""
        places = self._places(indices)
        if not places:
            raise ValueError("`indices` is empty. Pass at least one graph.")
        x = torch.cat([self.features[k] for k in places])
        return GraphBatch(x, self.labels[places], Graph.batch([self.graphs[k] for k in places]))

    def _places(self, indices: Iterable[int] | Tensor) -> list[int]:
        """Indices of graphs as a list; for a mask, those where it is true."""
        given = torch.as_tensor(indices if hasattr(indices, "dtype") else list(indices))
        if given.dtype == torch.bool:
            if given.shape != (len(self),):
                raise ValueError(f"A mask for {self.name} must have shape ({len(self)},), not {tuple(given.shape)}.")
            return given.nonzero().flatten().tolist()
        if given.ndim != 1 or (given.is_floating_point() and len(given)):
            raise ValueError(
                f"`indices` must be integers of shape [n], but are {given.dtype} of shape {tuple(given.shape)}."
            )
        return [int(index) for index in given.tolist()]

    def __repr__(self) -> str:
        nodes = sum(graph.num_nodes for graph in self.graphs) / len(self)
        sizes = f"{len(self)} graphs of {nodes:.1f} nodes, {self.num_features} features, {self.num_classes} classes"
        return f"GraphSet({self.name!r}, {sizes})"


def _check_columns(columns: Sequence[int], width: int, what: str) -> None:
    if any(not 0 <= column < width for column in columns):
        raise ValueError(f"`quantities` must lie in [0, {width}), the columns of {what}, but are {tuple(columns)}.")


@final
class GraphBatches(ShardedEpochs):
    """Batches of graphs, epoch by epoch, in an order that depends only on the seed and the epoch.

    Without shuffling, batches are joined once and cached.

    Args:
        dataset: The graphs.
        batch_size: Graphs per batch, over all processes.
        seed: Seed of the order.
        shuffle: Shuffle each epoch; else keep the order of the set.
        min_graphs: Drop the last batch of an epoch if a process would get fewer graphs of it: a norm over graphs
            cannot learn from one.

    Example:
        >>> from topomask.data import motifs
        >>> batches = GraphBatches(motifs("cycle", "test", num_pairs=5), batch_size=4)
        >>> len(batches), [batch.graph.num_graphs for batch in batches.epoch(0)]
        (3, [4, 4, 2])
    """

    def __init__(
        self, dataset: GraphSet, batch_size: int, *, seed: int = 0, shuffle: bool = True, min_graphs: int = 1
    ) -> None:
        if not isinstance(dataset, GraphSet):
            raise ValueError(
                f"`dataset` must be a GraphSet, but is a {type(dataset).__name__}. Convert PyG's data with "
                "GraphSet.from_pyg(name, dataset)."
            )
        super().__init__(len(dataset), batch_size, seed, shuffle)
        if not 1 <= min_graphs <= batch_size:
            raise ValueError(f"`min_graphs` must lie in [1, batch_size={batch_size}], but is {min_graphs}.")
        self.dataset, self.min_graphs = dataset, min_graphs
        # By rank, number of processes, and number of the batch.
        self._kept: dict[tuple[int, int, int], GraphBatch] = {}

    def _fewest(self) -> int:
        return self._rank + 1 if self.min_graphs == 1 else self.min_graphs * self._world_size

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[GraphBatch]:
        """Iterate over the batches of one epoch, without the first ``skip``."""
        for number, places in enumerate(self._indices(epoch, skip), start=skip):
            key = (self._rank, self._world_size, number)
            batch = self._kept.get(key) or self.dataset.batch(places)
            if not self.shuffle:
                self._kept[key] = batch
            yield batch
