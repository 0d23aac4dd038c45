"""Recipes for nodes with a class each, in one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from tyro.conf import Suppress

from topomask.data import NODE_SETS, NodeBatch, NodeSet, data_root, node_set
from topomask.data.node_sets import Metric, NodeEntry, Scaling
from topomask.models import GraphNetworkConfig, GraphTransformerConfig
from topomask.recipes.experiment import ValidatedExperiment
from topomask.recipes.parts import digest_of
from topomask.support.near_names import look_up
from topomask.train import NodeClassification, OptimConfig, Task, TrainConfig


@dataclass(frozen=True)
class NodeData:
    """A graph whose nodes have classes.

    Args:
        name: Name of the set, see topomask list.
        root: The data root; None is $TOPOMASK_DATA, or a folder in the user's cache.
        split: Which of the splits of the set.
        scaling: What is done to features: "none", "binary" or "row"; default is that of the set.
        metric: What is reported and chosen by: "accuracy" or "roc_auc"; None is as usual for the set.
        parts: A digest of the nodes for training, validation and test; filled in, for the record: where masks are
            others later, a run would be tested on nodes that it has trained on.
    """

    name: str
    root: Path | None = None
    split: int = 0
    scaling: Scaling | None = None
    metric: Metric | None = None
    parts: Suppress[str | None] = None

    def resolved(self) -> Self:
        """The same with the defaults of the set written out, so that a record has all that shapes the input."""
        entry = NODE_SETS.get(self.name, NodeEntry(0, 0))
        scaling = entry.scaling if self.scaling is None else self.scaling
        return replace(self, scaling=scaling, metric=entry.metric if self.metric is None else self.metric)

    def load(self) -> NodeSet:
        """The set: a known one, or any of the same layout."""
        root = data_root(self.root)
        if not (root / "node" / f"{self.name}.npz").is_file():
            look_up(NODE_SETS, "set of nodes", self.name)
        whole = self.resolved()
        return _load(self.name, root, whole.scaling, whole.metric)

    def recorded(self) -> Self:
        """The same with all that it stands for written out, down to the nodes of its split."""
        return replace(self.resolved(), parts=self._digest() if self.parts is None else self.parts)

    def batch(self, split: str) -> NodeBatch:
        """The whole graph, with the nodes of a part of the split."""
        found = self._checked()
        if self.parts is not None and self.parts != self._digest():
            raise ValueError(
                f"Split {self.split} of {self.name} has other nodes than when the run was made: its masks have "
                "changed. Put them back, or run again in another folder."
            )
        return found.batch(split, self.split)

    def _checked(self) -> NodeSet:
        found = self.load()
        if not 0 <= self.split < found.num_splits:
            raise ValueError(
                f"`data.split` must lie in [0, {found.num_splits}), the splits of {found.name}, but is {self.split}."
            )
        return found

    def _digest(self) -> str:
        masks = self._checked().masks
        return digest_of(masks[part][self.split].nonzero().flatten() for part in ("train", "val", "test"))


@lru_cache(maxsize=1)
def _load(name: str, root: Path, scaling: Scaling | None, metric: Metric | None) -> NodeSet:
    return node_set(name, root, scaling=scaling, metric=metric)


@dataclass(frozen=True, kw_only=True)
class NodeExperiment(ValidatedExperiment):
    """A classifier of nodes and its graph, which is one batch; the weights that are best on validation nodes count.

    Args:
        data: The graph.
    """

    data: NodeData

    def fitted(self) -> Self:
        """The same with the number of features and classes taken from the data."""
        return replace(self, data=self.data.recorded()).fitted_to(self.data.load())

    def with_seed(self, seed: int) -> Self:
        """The same with other weights and walks, and with another split where the set has several.

        The defaults of the set are written out.
        """
        known = NODE_SETS.get(self.data.name)
        count = self.data.load().num_splits if known is None else known.num_splits
        if count > 1 and not 0 <= seed < count:
            raise ValueError(
                f"Seeds of {self.data.name} are its splits and must lie in [0, {count}), but one is {seed}: a split "
                "would count twice."
            )
        split = seed if count > 1 else 0
        return replace(super().with_seed(seed), data=replace(self.data.resolved(), split=split, parts=None))

    def batches(self, split: str, training: bool = False) -> Sequence[NodeBatch]:  # noqa: ARG002
        """The whole graph, with the nodes of a split."""
        return [self.data.batch(split)]

    def _task(self) -> Task:
        """Cross entropy, and the metric of the set."""
        return NodeClassification(self.data.load().metric)


@dataclass(frozen=True, kw_only=True)
class NodeTransformerExperiment(NodeExperiment):
    """A graph transformer and its graph.

    Args:
        model: The model.
    """

    model: GraphTransformerConfig = field(default_factory=GraphTransformerConfig)


@dataclass(frozen=True, kw_only=True)
class NodeNetworkExperiment(NodeExperiment):
    """A graph network of PyG and its graph.

    Args:
        model: The model.
    """

    model: GraphNetworkConfig = field(default_factory=GraphNetworkConfig)


def _training(epochs: int, lr: float, weight_decay: float) -> TrainConfig:
    optim = OptimConfig(lr=lr, warmup=0.0, weight_decay=weight_decay)
    return TrainConfig(optim, epochs=epochs, patience=epochs // 4, log_every=10, checkpoint_every=20)


def nodes() -> NodeTransformerExperiment:
    """Nodes with a class each, in one graph: set data.name, such as coauthor-physics."""
    return NodeTransformerExperiment(
        recipe="nodes",
        data=NodeData("cora"),
        model=GraphTransformerConfig.preset("grf", local="gcn", dropout=0.5, input_dropout=0.5),
        train=_training(200, 5e-3, 5e-4),
    )


def nodes_baseline() -> NodeNetworkExperiment:
    """The same with a graph network of PyG: set model.layer to gcn, gat, or sgc with model.dropout 0."""
    return NodeNetworkExperiment(
        recipe="nodes-baseline",
        data=NodeData("cora"),
        model=GraphNetworkConfig(layer="gcn", dim=16, dropout=0.5, input_dropout=0.5),
        train=_training(200, 1e-2, 5e-4),
    )
