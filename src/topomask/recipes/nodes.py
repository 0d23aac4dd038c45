"""Recipes for node classification in one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from tyro.conf import Suppress

from topomask.data import NODE_SETS, NodeBatch, NodeSet, data_root, node_set
from topomask.data.node_sets import Metric, NodeEntry, Scaling
from topomask.data.root import check_known
from topomask.models import GraphNetworkConfig, GraphTransformerConfig
from topomask.recipes.experiment import ValidatedExperiment, digest_of
from topomask.train import NodeClassification, OptimConfig, Task, TrainConfig


@dataclass(frozen=True)
class NodeData:
    """A graph whose nodes have classes.

    Args:
        name: Name of the data set, see topomask list data.
        root: Folder of data sets; None is $TOPOMASK_DATA, or a folder in the user's cache.
        split: Which of the splits of the data set.
        scaling: Scaling of the features: "none", "binary" or "row"; None is the default of the data set.
        metric: The metric, which also selects weights: "accuracy" or "roc_auc"; None is the default of the data set.
        parts: Hash of the nodes for training, validation and test; filled in. If the split changes, a resumed run
            raises an error instead of testing on nodes that it was trained on.
    """

    name: str
    root: Path | None = None
    split: int = 0
    scaling: Scaling | None = None
    metric: Metric | None = None
    parts: Suppress[str | None] = None

    def resolved(self) -> Self:
        """Return a copy with the defaults of the data set filled in, so that a record has everything."""
        entry = NODE_SETS.get(self.name, NodeEntry(0, 0))
        scaling = entry.scaling if self.scaling is None else self.scaling
        return replace(self, scaling=scaling, metric=entry.metric if self.metric is None else self.metric)

    def load(self) -> NodeSet:
        """Load the data set: a known one, or your own in the same format."""
        root = data_root(self.root)
        file = root / "node" / f"{self.name}.npz"
        if not file.is_file():
            check_known(self.name, "node data set", NODE_SETS, file)
        resolved = self.resolved()
        return _load(self.name, root, resolved.scaling, resolved.metric)

    def recorded(self) -> Self:
        """Return a copy with all defaults and the hash of the split filled in."""
        return replace(self.resolved(), parts=self._digest() if self.parts is None else self.parts)

    def batch(self, split: str) -> NodeBatch:
        """The whole graph, with the nodes of a part of the split."""
        if self.parts not in (None, self._digest()):
            raise ValueError(
                f"Split {self.split} of {self.name} has other nodes than when the run was made: its masks have "
                "changed. Restore them, or run again in another folder."
            )
        return self.load().batch(split, self.split)

    def _digest(self) -> str:
        found = self.load()
        if not 0 <= self.split < found.num_splits:
            raise ValueError(
                f"`data.split` must be in [0, {found.num_splits}), the splits of {found.name}, but is {self.split}."
            )
        return digest_of(found.masks[part][self.split].nonzero().flatten() for part in ("train", "val", "test"))


@lru_cache(maxsize=1)
def _load(name: str, root: Path, scaling: Scaling | None, metric: Metric | None) -> NodeSet:
    return node_set(name, root, scaling=scaling, metric=metric)


@dataclass(frozen=True, kw_only=True)
class NodeExperiment(ValidatedExperiment):
    """A graph transformer, or a message-passing network (PyG), and its graph, which is one batch."""

    data: NodeData
    model: GraphTransformerConfig | GraphNetworkConfig

    def fitted(self) -> Self:
        """Return a copy with the number of features and classes of the data."""
        return replace(self, data=self.data.recorded()).fitted_to(self.data.load())

    def with_seed(self, seed: int) -> Self:
        """Return a copy with another seed and, if the data set has several, another split; defaults are filled in."""
        known = NODE_SETS.get(self.data.name)
        count = self.data.load().num_splits if known is None else known.num_splits
        if count > 1 and not 0 <= seed < count:
            raise ValueError(
                f"Seeds of {self.data.name} select its splits and must be in [0, {count}), but one is {seed}: a split "
                "would count twice."
            )
        split = seed if count > 1 else 0
        return replace(super().with_seed(seed), data=replace(self.data.resolved(), split=split, parts=None))

    def batches(self, split: str, training: bool = False) -> Sequence[NodeBatch]:  # noqa: ARG002
        """The whole graph, with the nodes of a split."""
        return [self.data.batch(split)]

    def task(self) -> Task:
        """Cross entropy, and the metric of the set."""
        return self.chosen(NodeClassification(self.data.load().metric))


def _training(epochs: int, lr: float, weight_decay: float) -> TrainConfig:
    optim = OptimConfig(lr=lr, warmup=0.0, weight_decay=weight_decay)
    return TrainConfig(optim, epochs=epochs, patience=epochs // 4, log_every=10, checkpoint_every=20)


def nodes() -> NodeExperiment:
    """Node classification in one graph: set data.name, such as coauthor-physics."""
    return NodeExperiment(
        recipe="nodes",
        data=NodeData("cora"),
        model=GraphTransformerConfig.preset("grf", local="gcn", dropout=0.5, input_dropout=0.5),
        train=_training(200, 5e-3, 5e-4),
    )


def nodes_baseline() -> NodeExperiment:
    """Node classification with a PyG network: set model.layer to gcn, gat, or sgc with model.dropout 0."""
    return NodeExperiment(
        recipe="nodes-baseline",
        data=NodeData("cora"),
        model=GraphNetworkConfig(layer="gcn", dim=16, dropout=0.5, input_dropout=0.5),
        train=_training(200, 1e-2, 5e-4),
    )
