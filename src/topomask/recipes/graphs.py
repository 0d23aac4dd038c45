"""Recipes for graphs with a class each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from topomask.data import MOTIFS, TU_SETS, GraphBatches, GraphSet, data_root, fair_splits, motifs, tu_dataset
from topomask.models import GraphNetworkConfig, GraphTransformerConfig
from topomask.recipes.experiment import ValidatedExperiment
from topomask.recipes.names import look_up
from topomask.train import GraphClassification, OptimConfig, Task, TrainConfig


@dataclass(frozen=True)
class GraphData:
    """Graphs with a class each.

    Args:
        name: A set of TUDataset, one of your own in the same format, or a motif whose graphs are generated.
        root: The data root; none is $TOPOMASK_DATA, or a folder in the user's cache.
        fold: Which of the ten folds of the fair comparison; for motifs, the seed of the graphs.
        batch_size: Graphs per step, over all processes.
    """

    name: str
    root: Path | None = None
    fold: int = 0
    batch_size: int = 32

    def load(self, split: str) -> GraphSet:
        """A part of the set."""
        if self.name in MOTIFS:
            return _motifs(self.name, split, self.fold)
        root = data_root(self.root)
        if not any((root / "tudataset" / name).exists() for name in (self.name, f"{self.name}.zip")):
            look_up(dict.fromkeys((*TU_SETS, *MOTIFS)), "set of graphs", self.name)
        return _tu_part(self.name, root, split, self.fold)


# An experiment asks for its sets more than once, and a table has many experiments on the same.
@lru_cache(maxsize=3)
def _motifs(name: str, split: str, seed: int) -> GraphSet:
    return motifs(name, split, seed=seed)


@lru_cache(maxsize=1)
def _tu(name: str, root: Path) -> GraphSet:
    return tu_dataset(name, root)


def _tu_part(name: str, root: Path, split: str, fold: int) -> GraphSet:
    whole, folds = _tu(name, root), fair_splits(name, root=root)
    if not 0 <= fold < len(folds):
        raise ValueError(f"`data.fold` must lie in [0, {len(folds)}), but is {fold}.")
    return whole.subset(getattr(folds[fold], split).tolist())


@dataclass(frozen=True, kw_only=True)
class GraphExperiment(ValidatedExperiment):
    """A classifier of graphs and its data; the weights that are best on validation graphs count.

    Args:
        data: The graphs.
    """

    data: GraphData

    def fitted(self) -> Self:
        """The same with the number of features and classes taken from the data."""
        return self.fitted_to(self.data.load("train"))

    def with_seed(self, seed: int) -> Self:
        """The same with another fold, and other weights, walks and order."""
        return replace(super().with_seed(seed), data=replace(self.data, fold=seed))

    def batches(self, split: str, training: bool = False) -> GraphBatches:
        """Batches of a split."""
        return GraphBatches(self.data.load(split), self.data.batch_size, seed=self.train.seed, shuffle=training)

    def task(self) -> Task:
        """Cross entropy and accuracy."""
        return GraphClassification()


@dataclass(frozen=True, kw_only=True)
class GraphTransformerExperiment(GraphExperiment):
    """A graph transformer and its graphs.

    Args:
        model: The model.
    """

    model: GraphTransformerConfig = field(default_factory=GraphTransformerConfig)


@dataclass(frozen=True, kw_only=True)
class GraphNetworkExperiment(GraphExperiment):
    """A graph network of PyG and its graphs.

    Args:
        model: The model.
    """

    model: GraphNetworkConfig = field(default_factory=GraphNetworkConfig)


def _training(lr: float = 1e-3) -> TrainConfig:
    return TrainConfig(OptimConfig(lr=lr, warmup=0.05, weight_decay=1e-2), epochs=100, patience=20, log_every=50)


def graphs() -> GraphTransformerExperiment:
    """Graphs with a class each, on a fold of the fair comparison: set data.name, such as PROTEINS."""
    return GraphTransformerExperiment(
        recipe="graphs",
        data=GraphData("PROTEINS"),
        model=GraphTransformerConfig.preset("grf", local="sum", readout="mean", dropout=0.2),
        train=_training(),
    )


def graphs_baseline() -> GraphNetworkExperiment:
    """The same with a graph network of PyG: set model.layer to gcn, gat, sgc or gin."""
    return GraphNetworkExperiment(
        recipe="graphs-baseline",
        data=GraphData("PROTEINS"),
        model=GraphNetworkConfig(layer="gin", readout="mean", norm="batch", dropout=0.2),
        train=_training(),
    )


def motif() -> GraphTransformerExperiment:
    """Is there a motif in a random graph? Generated: set data.name, such as cycle."""
    return GraphTransformerExperiment(
        recipe="motif",
        data=GraphData("cycle"),
        model=GraphTransformerConfig.preset("grf", readout="mean"),
        train=_training(),
    )
