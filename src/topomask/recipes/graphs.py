"""Recipes for graphs with a class each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from tyro.conf import Suppress

from topomask.data import (
    MOTIFS,
    TU_SETS,
    Fold,
    GraphBatches,
    GraphSet,
    data_root,
    fair_splits,
    motifs,
    stratified_folds,
    tu_dataset,
)
from topomask.data.degrees import DegreeInput
from topomask.data.motifs import MOTIF_VERSION
from topomask.data.splits import check_split
from topomask.data.tu import TU_VERSION, TUEntry
from topomask.models import GraphNetworkConfig, GraphTransformerConfig
from topomask.recipes.experiment import ValidatedExperiment
from topomask.recipes.parts import digest_of
from topomask.support.near_names import look_up
from topomask.train import GraphClassification, OptimConfig, Task, TrainConfig


@dataclass(frozen=True)
class GraphData:
    """Graphs with a class each.

    Args:
        name: A set of TUDataset, one of your own in the same format, or a motif whose graphs are generated.
        root: The data root; None is $TOPOMASK_DATA, or a folder in the user's cache.
        fold: Which of the ten folds of the fair comparison, or of splits/<name>.json in the data root; stratified
            folds for a set that has neither; for motifs, the seed of the graphs.
        batch_size: Graphs per step, over all processes.
        degree: The degree of nodes as input: "none", "one-hot" or "log"; default is that of the set.
        attributes: Whether attributes of nodes are input; None is as usual for the set.
        max_degree: Degrees from here on share a column, where they are one-hot; None is as usual for the set.
        version: How graphs and inputs are made; filled in, for the record.
        parts: A digest of the graphs for training, validation and test; filled in, for the record: where folds are
            others later, a run would be tested on graphs that it has trained on.
    """

    name: str
    root: Path | None = None
    fold: int = 0
    batch_size: int = 32
    degree: DegreeInput | None = None
    attributes: bool | None = None
    max_degree: int | None = None
    version: Suppress[int | None] = None
    parts: Suppress[str | None] = None

    def resolved(self) -> Self:
        """The same with the defaults of the set written out, so that a record has all that shapes the input."""
        if self.name in MOTIFS:
            for name in ("degree", "attributes", "max_degree"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"`data.{name}` is for sets of TUDataset, but {self.name} is a motif. Leave it out."
                    )
            return replace(self, version=self._checked_version(MOTIF_VERSION))
        entry = TU_SETS.get(self.name, TUEntry(0, 0))
        degree = entry.degree if self.degree is None else self.degree
        default = entry.max_degree if degree == "one-hot" else None
        return replace(
            self,
            degree=degree,
            attributes=entry.attributes if self.attributes is None else self.attributes,
            max_degree=default if self.max_degree is None else self.max_degree,
            version=self._checked_version(TU_VERSION),
        )

    def _checked_version(self, current: int) -> int:
        if self.version not in (None, current):
            raise ValueError(
                f"`data.version` is {self.version}: graphs and inputs of {self.name} are made in another way now, "
                f"{current}, and the run is not comparable. Run it again in another folder."
            )
        return current

    def load(self, split: str) -> GraphSet:
        """A part of the set; quantities among its inputs are standardised over the graphs of training."""
        check_split(split, Fold._fields, self.name)
        if self.name in MOTIFS:
            return _motifs(self.name, split, self.resolved().fold)
        whole, fold = self._load()
        if self.parts is not None and self.parts != digest_of(fold):
            raise ValueError(
                f"Fold {self.fold} of {self.name} has other graphs than when the run was made: "
                f"{self._file_of_folds()} has changed, or is gone. Put it back, or run again in another folder."
            )
        return whole.subset(getattr(fold, split).tolist())

    def recorded(self) -> Self:
        """The same with all that it stands for written out, down to the graphs of its fold."""
        parts = None if self.name in MOTIFS else digest_of(self._load()[1])
        return replace(self.resolved(), parts=parts if self.parts is None else self.parts)

    def _load(self) -> tuple[GraphSet, Fold]:
        root = data_root(self.root)
        if not any((root / "tudataset" / name).exists() for name in (self.name, f"{self.name}.zip")):
            look_up(dict.fromkeys((*TU_SETS, *MOTIFS)), "set of graphs", self.name)
        return _fold(replace(self.resolved(), root=root, batch_size=1, parts=None))

    def _file_of_folds(self) -> Path:
        return data_root(self.root) / "splits" / f"{self.name}.json"


# An experiment asks for its sets more than once, and a table has many experiments on the same.
@lru_cache(maxsize=3)
def _motifs(name: str, split: str, seed: int) -> GraphSet:
    found = motifs(name, split, seed=seed)
    return found.standardized(found if split == "train" else motifs(name, "train", seed=seed))


@lru_cache(maxsize=1)
def _tu(data: GraphData) -> GraphSet:
    return tu_dataset(
        data.name,
        data.root,
        attributes=data.attributes,
        degree=data.degree,
        max_degree=data.max_degree,
        standardize=False,
    )


@lru_cache(maxsize=1)
def _fold(data: GraphData) -> tuple[GraphSet, Fold]:
    """All graphs, standardised over those that a fold trains on, and that fold."""
    whole = _tu(replace(data, fold=0))
    folds = _folds(data, whole)
    if not 0 <= data.fold < len(folds):
        raise ValueError(f"`data.fold` must lie in [0, {len(folds)}), but is {data.fold}.")
    fold = folds[data.fold]
    return whole.standardized(fold.train.tolist()), fold


def _folds(data: GraphData, whole: GraphSet) -> list[Fold]:
    """The folds of the fair comparison, or of a file like theirs; stratified ones for a set that has none."""
    known, file = TU_SETS.get(data.name), data._file_of_folds()
    if file.is_file() or (known is not None and known.in_fair_comparison):
        return fair_splits(data.name, len(whole), data.root)
    for other in sorted(file.parent.glob("*.json")):
        if other.stem.lower() in (data.name.lower(), f"{data.name}_splits".lower()):
            raise ValueError(f"{other} looks like folds of {data.name}, which are read from {file.name}. Rename it.")
    return stratified_folds(whole.labels)


@dataclass(frozen=True, kw_only=True)
class GraphExperiment(ValidatedExperiment):
    """A classifier of graphs and its data; the weights that are best on validation graphs count.

    Args:
        data: The graphs.
    """

    data: GraphData

    def fitted(self) -> Self:
        """The same with the number of features and classes taken from the data."""
        return replace(self, data=self.data.recorded()).fitted_to(self.data.load("train"))

    def with_seed(self, seed: int) -> Self:
        """The same with another fold, and other weights, walks and order; the defaults of the set are written out."""
        return replace(super().with_seed(seed), data=replace(self.data.resolved(), fold=seed, parts=None))

    def batches(self, split: str, training: bool = False) -> GraphBatches:
        """Batches of a split."""
        least = self._min_graphs() if training else 1
        graphs, size = self.data.load(split), self.data.batch_size
        return GraphBatches(graphs, size, seed=self.train.seed, shuffle=training, min_graphs=least)

    def _min_graphs(self) -> int:
        """Graphs that a batch of training must have."""
        return 1

    def _task(self) -> Task:
        """Cross entropy and accuracy."""
        return GraphClassification()


@dataclass(frozen=True, kw_only=True)
class GraphTransformerExperiment(GraphExperiment):
    """A graph transformer and its graphs.

    Args:
        model: The model.
    """

    model: GraphTransformerConfig = field(default_factory=GraphTransformerConfig)

    def _min_graphs(self) -> int:
        return 1 if self.model.head_norm is None else min(2, self.data.batch_size)


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


def gkat() -> GraphTransformerExperiment:
    """The same with GKAT: softmax attention, masked by how often walks of two nodes meet."""
    return replace(graphs(), recipe="gkat", model=GraphTransformerConfig.preset("gkat", readout="mean", dropout=0.2))


def gkat_diffusion() -> GraphTransformerExperiment:
    """The same with GKAT's other kernel: softmax attention, masked by the heat kernel, with a learnt time per head."""
    model = GraphTransformerConfig.preset("gkat-diffusion", readout="mean", dropout=0.2)
    return replace(graphs(), recipe="gkat-diffusion", model=model)


def graphs_baseline() -> GraphNetworkExperiment:
    """The same with a graph network of PyG: set model.layer to gcn, gat, gin, or sgc with model.norm none."""
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
