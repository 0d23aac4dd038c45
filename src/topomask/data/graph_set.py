"""Graphs with a class each, and batches of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, final, overload

import torch
from torch import Tensor
from torch.utils.data import Dataset

from topomask.data.checks import check_finite, check_labels, class_numbers
from topomask.data.degrees import DegreeInput, degree_features
from topomask.data.splits import seeded_generator
from topomask.graph import Graph


class GraphBatch(NamedTuple):
    """Graphs side by side."""

    x: Tensor  # features of all nodes, [N, F]
    labels: Tensor  # class of every graph, [G]
    graph: Graph  # all graphs as one, block by block; it remembers its parts, which come again in other batches


@final
class GraphSet(Dataset[tuple[Graph, Tensor, int]]):
    """Graphs, features of their nodes, and a class each.

    Args:
        name: Name of the set.
        graphs: The graphs.
        features: Features of the nodes of every graph, float, [n, F] each.
        labels: Class of every graph, integers in [0, num_classes), [G].
        classes: Names of the classes.
        quantities: Columns of the features that are quantities, not categories; see :meth:`standardized`.

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
                f"There must be as many graphs as features and labels, and at least one, but there are {len(graphs)}, "
                f"{len(features)} and {len(labels)}."
            )
        if labels.shape != (len(graphs),):
            raise ValueError(f"`labels` must have shape ({len(graphs)},), but have {tuple(labels.shape)}.")
        width = features[0].shape[-1]
        for number, (graph, x) in enumerate(zip(graphs, features, strict=True)):
            if x.shape != (graph.num_nodes, width):
                raise ValueError(
                    f"`features` of graph {number} must have shape [num_nodes={graph.num_nodes}, {width}], but have "
                    f"shape {tuple(x.shape)}."
                )
            if not x.is_floating_point():
                raise ValueError(
                    f"`features` of graph {number} must have a floating dtype, but have {x.dtype}. Pass x.float()."
                )
            check_finite(x, f"`features` of graph {number}")
        check_labels(labels, len(classes), "graph")
        self.name, self.graphs, self.features = name, tuple(graphs), tuple(features)
        if any(not 0 <= column < width for column in quantities):
            raise ValueError(f"`quantities` must lie in [0, {width}), the columns, but are {tuple(quantities)}.")
        self.labels, self.classes, self.quantities = labels.long(), tuple(classes), tuple(quantities)
        # What was taken from quantities, and what they were divided by, in float64.
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
        """From a list of PyG's ``Data`` with ``x`` and ``y``, such as its ``TUDataset``.

        Args:
            name: Name of the set.
            dataset: The graphs.
            degree: Add the degree of nodes to their input, as :func:`topomask.data.tu_dataset` does: ``"one-hot"`` or
                ``"log"``. Graphs may then lack ``x``, as those of IMDB, COLLAB and REDDIT do.
            max_degree: Degrees from here on share a column, where they are one-hot. Default: 128.
            quantities: Columns of ``x`` that are quantities, such as the attributes of ENZYMES. These, and logarithms
                of degrees, are standardised over all graphs; :meth:`standardized` does so again over those of training.
            directed: Whether edges have a direction; else each must stand there in both.
        """
        found = list(dataset)
        if not found:
            raise ValueError(f"`dataset` has no graphs of {name}. Pass a list of PyG's Data.")
        for number, data in enumerate(found):
            if not hasattr(data, "edge_index"):
                raise ValueError(
                    f"`dataset` must be a list of PyG's Data, but number {number} of it is a {type(data).__name__}. "
                    "Pass [data] for one graph, and batch.to_data_list() for a Batch."
                )
            if getattr(data, "y", None) is None:
                raise ValueError(f"Graph {number} of {name} has no `y`, its class. Set data.y.")
            if getattr(data, "x", None) is None and degree == "none":
                raise ValueError(
                    f"Graph {number} of {name} has no `x`, features of its nodes. Pass degree='one-hot' or "
                    "degree='log' to take the degrees of nodes, or load the set with transform=OneHotDegree."
                )
            if getattr(data, "x", None) is not None and data.x.ndim != 2:
                raise ValueError(
                    f"`x` of graph {number} of {name} must have shape [num_nodes, features], but has shape "
                    f"{tuple(data.x.shape)}."
                )
        each = [class_numbers(data.y, 1, f"`y` of graph {number} of {name}") for number, data in enumerate(found)]
        labels = torch.cat(each)
        classes = tuple(str(number) for number in range(int(labels.max()) + 1))
        graphs = [_graph(data, directed, f"Graph {number} of {name}") for number, data in enumerate(found)]
        degrees = degree_features(graphs, degree, max_degree).split([graph.num_nodes for graph in graphs])
        given = [getattr(data, "x", None) for data in found]
        features = [y if x is None else torch.cat([x.float(), y], dim=1) for x, y in zip(given, degrees, strict=True)]
        width = 0 if given[0] is None else given[0].shape[1]
        if any(not 0 <= column < width for column in quantities):
            raise ValueError(f"`quantities` must lie in [0, {width}), the columns of `x`, but are {tuple(quantities)}.")
        last = [features[0].shape[1] - 1] if degree == "log" else []
        return cls(name, graphs, features, labels, classes, [*quantities, *last]).standardized()

    @property
    def num_features(self) -> int:
        """Features of a node."""
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
        """The graphs at these places, in this order, or where a mask is true; they stay the same objects."""
        places = self._places(indices)
        graphs, features = [self.graphs[k] for k in places], [self.features[k] for k in places]
        return self._like(graphs, features, self.labels[places], self._scale)

    def standardized(self, reference: Iterable[int] | GraphSet | None = None) -> GraphSet:
        """The same graphs, with columns that are quantities shifted and scaled to mean 0 and deviation 1.

        Args:
            reference: The graphs whose nodes decide by how much, those of training: their places, or a set of them.
                Default: all. What was done so before, to these or those, is undone first.
        """
        if not self.quantities:
            return self
        columns = list(self.quantities)
        other, places = (reference, None) if isinstance(reference, GraphSet) else (self, reference)
        if other.num_features != self.num_features or other.quantities != self.quantities:
            raise ValueError(
                f"`reference` must have the columns of {self.name}, but has {other.num_features} features, of which "
                f"{list(other.quantities)} are quantities, where these have {self.num_features} and {columns}."
            )
        chosen = range(len(other)) if places is None else other._places(places)
        known = torch.cat([other._quantities_of(k) for k in chosen])
        mean, deviation = known.mean(dim=0), known.std(dim=0, correction=0)
        # A column that is constant says nothing; its rounding errors should not, either.
        constant = deviation <= 1e-7 * mean.abs()
        deviation = torch.where(constant, 1.0, deviation)
        features = [x.clone() for x in self.features]
        for number, x in enumerate(features):
            x[:, columns] = ((self._quantities_of(number) - mean) / deviation).to(x.dtype)
        return self._like(self.graphs, features, self.labels, (mean, deviation))

    def _quantities_of(self, number: int) -> Tensor:
        """Quantities of the nodes of a graph as they were before they were standardised, float64."""
        values = self.features[number][:, list(self.quantities)].double()
        return values if self._scale is None else values * self._scale[1] + self._scale[0]

    def _like(
        self, graphs: Sequence[Graph], features: Sequence[Tensor], labels: Tensor, scale: tuple[Tensor, Tensor] | None
    ) -> GraphSet:
        made = GraphSet(self.name, graphs, features, labels, self.classes, self.quantities)
        made._scale = scale
        return made

    def batch(self, indices: Iterable[int] | Tensor) -> GraphBatch:
        """Some graphs, side by side."""
        places = self._places(indices)
        if not places:
            raise ValueError("`indices` has no graphs. Pass at least one.")
        x = torch.cat([self.features[k] for k in places])
        return GraphBatch(x, self.labels[places], Graph.batch([self.graphs[k] for k in places]))

    def _places(self, indices: Iterable[int] | Tensor) -> list[int]:
        """Places of graphs; of a mask, those where it is true."""
        given = torch.as_tensor(indices if hasattr(indices, "dtype") else list(indices))
        if given.dtype == torch.bool:
            if given.shape != (len(self),):
                raise ValueError(f"A mask of {self.name} must have shape ({len(self)},), but has {tuple(given.shape)}.")
            return given.nonzero().flatten().tolist()
        if given.ndim != 1 or (given.is_floating_point() and len(given)):
            raise ValueError(
                f"`indices` must be integers, places of graphs, but are {given.dtype} of shape {tuple(given.shape)}."
            )
        return [int(index) for index in given.tolist()]

    def __repr__(self) -> str:
        nodes = sum(graph.num_nodes for graph in self.graphs) / len(self)
        sizes = f"{len(self)} graphs of {nodes:.1f} nodes, {self.num_features} features, {self.num_classes} classes"
        return f"GraphSet({self.name!r}, {sizes})"


def _graph(data: Any, directed: bool, what: str) -> Graph:
    try:
        return Graph.from_pyg(data, directed=directed)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


@final
class GraphBatches:
    """Batches of graphs, epoch by epoch, in an order that depends on the seed and the epoch only.

    Batches that are not shuffled are put together once and kept.

    Args:
        dataset: The graphs.
        batch_size: Graphs per batch, over all processes.
        seed: Seed of the order.
        shuffle: A new order every epoch; else the order of the set.
        min_graphs: Leave out the last batch of an epoch where a process would have fewer graphs of it: a norm over
            graphs cannot learn from one.

    Example:
        >>> from topomask.data import motifs
        >>> batches = GraphBatches(motifs("cycle", "test", num_pairs=5), batch_size=4)
        >>> len(batches), [batch.graph.num_graphs for batch in batches.epoch(0)]
        (3, [4, 4, 2])
    """

    def __init__(
        self, dataset: GraphSet, batch_size: int, *, seed: int = 0, shuffle: bool = True, min_graphs: int = 1
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, but is {batch_size}.")
        if not 1 <= min_graphs <= batch_size:
            raise ValueError(f"`min_graphs` must lie in [1, batch_size={batch_size}], but is {min_graphs}.")
        self.dataset, self.batch_size, self.seed, self.shuffle = dataset, batch_size, seed, shuffle
        self.min_graphs = min_graphs
        self._rank, self._world_size = 0, 1
        self._kept: dict[int, GraphBatch] = {}

    def shard(self, rank: int, world_size: int) -> GraphBatches:
        """The part of every batch that one of several processes takes."""
        if not 0 <= rank < world_size <= self.batch_size:
            raise ValueError(
                f"`rank` must lie in [0, world_size), and world_size in [1, batch_size={self.batch_size}], but they "
                f"are {rank} and {world_size}."
            )
        part = copy.copy(self)
        part._rank, part._world_size, part._kept = rank, world_size, {}
        return part

    def __len__(self) -> int:
        """Batches of an epoch; the last is left out by processes for which it has too few graphs."""
        whole, left_over = divmod(len(self.dataset), self.batch_size)
        least = self._rank + 1 if self.min_graphs == 1 else self.min_graphs * self._world_size
        return whole + (left_over >= least)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[GraphBatch]:
        """The batches of one epoch, without the first ``skip``."""
        if not 0 <= skip <= len(self):
            raise ValueError(f"`skip` must lie between 0 and the {len(self)} batches of an epoch, but is {skip}.")
        count = len(self.dataset)
        order = torch.arange(count)
        if self.shuffle:
            order = torch.randperm(count, generator=seeded_generator("order", self.seed, epoch))
        for number, part in enumerate(order.split(self.batch_size)[: len(self)]):
            if number >= skip:
                yield self._batch(number, part.tensor_split(self._world_size)[self._rank])

    def _batch(self, number: int, places: Tensor) -> GraphBatch:
        if self.shuffle:
            return self.dataset.batch(places)
        if number not in self._kept:
            self._kept[number] = self.dataset.batch(places)
        return self._kept[number]
