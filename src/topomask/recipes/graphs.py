"""Recipes for graph classification."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from topomask.data.root import check_known
from topomask.data.splits import check_split
from topomask.data.tu import TU_VERSION, TUEntry
from topomask.models import GraphNetworkConfig, GraphTransformerConfig
from topomask.recipes.experiment import ValidatedExperiment, digest_of
from topomask.train import GraphClassification, OptimConfig, Task, TrainConfig


@dataclass(frozen=True)
class GraphData:
    """Graphs with one class each.

    Args:
        name: A data set of TUDataset, one of your own in the same format, or a motif (generated graphs).
        root: Folder of data sets; None is $TOPOMASK_DATA, or a folder in the user's cache.
        fold: Fold of the fair comparison (ten folds), or of splits/<name>.json in the folder of data sets; stratified
            folds if there is neither; for motifs, the seed of the graphs.
        batch_size: Graphs per step, over all processes.
        degree: Node degrees as input: "none", "one-hot" or "log"; None is the default of the data set.
        attributes: Use node attributes as input; None is the default of the data set.
        max_degree: Degrees from this one on share a one-hot column; None is the default of the data set.
        version: Version of the code that makes graphs and inputs; filled in.
        parts: Hash of the graphs for training, validation and test; filled in. If the folds change, a resumed run
            raises an error instead of testing on graphs that it was trained on.
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
        """Return a copy with the defaults of the data set filled in, so that a record has everything."""
        current = MOTIF_VERSION if self.name in MOTIFS else TU_VERSION
        if self.version not in (None, current):
            raise ValueError(
                f"`data.version` is {self.version}, but graphs and inputs of {self.name} now have version {current}, "
                "so the run is not comparable. Run it again in another folder."
            )
        if self.name in MOTIFS:
            for name in ("degree", "attributes", "max_degree"):
                if getattr(self, name) is not None:
                    raise ValueError(f"`data.{name}` is for TUDataset, but {self.name} is a motif. Leave it out.")
            return replace(self, version=current)
        entry = TU_SETS.get(self.name, TUEntry(0, 0))
        degree = entry.degree if self.degree is None else self.degree
        default = entry.max_degree if degree == "one-hot" else None
        return replace(
            self,
            degree=degree,
            attributes=entry.attributes if self.attributes is None else self.attributes,
            max_degree=default if self.max_degree is None else self.max_degree,
            version=current,
        )

    def load(self, split: str) -> GraphSet:
        """Load a split; continuous inputs are standardised over the training graphs."""
        check_split(split, Fold._fields, self.name)
        if self.name in MOTIFS:
            return _motifs(self.name, split, self.resolved().fold)
        whole, fold = self._load()
        if self.parts not in (None, digest_of(fold)):
            raise ValueError(
                f"Fold {self.fold} of {self.name} has other graphs than when the run was made: "
                f"{self._fold_file()} has changed or is missing. Restore it, or run again in another folder."
            )
        return whole.subset(getattr(fold, split).tolist())

    def recorded(self) -> Self:
        """Return a copy with all defaults and the hash of the fold filled in."""
        parts = None if self.name in MOTIFS else digest_of(self._load()[1])
        return replace(self.resolved(), parts=parts if self.parts is None else self.parts)

    def _load(self) -> tuple[GraphSet, Fold]:
        root = data_root(self.root)
        if not any((root / "tudataset" / name).exists() for name in (self.name, f"{self.name}.zip")):
            file = root / "tudataset" / f"{self.name}.zip"
            check_known(self.name, "graph data set", (*TU_SETS, *MOTIFS), file)
        return _fold(replace(self.resolved(), root=root, batch_size=1, parts=None))

    def _fold_file(self) -> Path:
        return data_root(self.root) / "splits" / f"{self.name}.json"


# An experiment loads its data more than once, and a table has many experiments on the same data.
@lru_cache(maxsize=3)
def _motifs(name: str, split: str, seed: int) -> GraphSet:
    found = motifs(name, split, seed=seed)
    return found.standardized(found if split == "train" else motifs(name, "train", seed=seed))


@lru_cache(maxsize=1)
def _tu(data: GraphData) -> GraphSet:
    options = {name: getattr(data, name) for name in ("attributes", "degree", "max_degree")}
    return tu_dataset(data.name, data.root, standardize=False, **options)


@lru_cache(maxsize=1)
def _fold(data: GraphData) -> tuple[GraphSet, Fold]:
    """All graphs, standardised over the training graphs of a fold, and that fold."""
    whole = _tu(replace(data, fold=0))
    folds = _folds(data, whole)
    if not 0 <= data.fold < len(folds):
        raise ValueError(f"`data.fold` must be in [0, {len(folds)}), but is {data.fold}.")
    fold = folds[data.fold]
    return whole.standardized(fold.train.tolist()), fold


def _folds(data: GraphData, whole: GraphSet) -> list[Fold]:
    """The folds of the fair comparison or of a file in the same format, else stratified folds."""
    known, file = TU_SETS.get(data.name), data._fold_file()
    if file.is_file() or (known is not None and known.in_fair_comparison):
        return fair_splits(data.name, len(whole), data.root)
    for other in sorted(file.parent.glob("*.json")):
        if other.stem.lower() in (data.name.lower(), f"{data.name}_splits".lower()):
            raise ValueError(f"{other} looks like folds of {data.name}, which must be in {file.name}. Rename it.")
    return stratified_folds(whole.labels)


@dataclass(frozen=True, kw_only=True)
class GraphExperiment(ValidatedExperiment):
    """A graph transformer, or a message-passing network (PyG), and its graphs."""

    data: GraphData
    model: GraphTransformerConfig | GraphNetworkConfig

    def fitted(self) -> Self:
        """Return a copy with the number of features and classes of the data."""
        return replace(self, data=self.data.recorded()).fitted_to(self.data.load("train"))

    def with_seed(self, seed: int) -> Self:
        """Return a copy with another fold and seed, and with the defaults of the data set filled in."""
        return replace(super().with_seed(seed), data=replace(self.data.resolved(), fold=seed, parts=None))

    def batches(self, split: str, training: bool = False) -> GraphBatches:
        """Batches of a split."""
        # Batch normalisation in the head needs two graphs.
        needs_two = training and getattr(self.model, "head_norm", None) is not None
        graphs, size = self.data.load(split), self.data.batch_size
        least = min(2, size) if needs_two else 1
        return GraphBatches(graphs, size, seed=self.train.seed, shuffle=training, min_graphs=least)

    def task(self) -> Task:
        """Cross entropy and accuracy."""
        return self.chosen(GraphClassification())


def graphs() -> GraphExperiment:
    """Graph classification on a fold of the fair comparison: set data.name, such as PROTEINS."""
    return GraphExperiment(
        recipe="graphs",
        data=GraphData("PROTEINS"),
        model=GraphTransformerConfig.preset("grf", local="sum", readout="mean", dropout=0.2),
        train=TrainConfig(OptimConfig(lr=1e-3, warmup=0.05, weight_decay=1e-2), epochs=100, patience=20, log_every=50),
    )


def gkat() -> GraphExperiment:
    """Graph classification with GKAT: softmax attention, masked by how often the walks of two nodes meet."""
    return replace(graphs(), recipe="gkat", model=GraphTransformerConfig.preset("gkat", readout="mean", dropout=0.2))


def gkat_diffusion() -> GraphExperiment:
    """Graph classification with GKAT's diffusion kernel: softmax attention masked by the heat kernel, learnt times."""
    model = GraphTransformerConfig.preset("gkat-diffusion", readout="mean", dropout=0.2)
    return replace(graphs(), recipe="gkat-diffusion", model=model)


def graphs_baseline() -> GraphExperiment:
    """Graph classification with a PyG network: set model.layer to gcn, gat, gin, or sgc with model.norm none."""
    model = GraphNetworkConfig(layer="gin", readout="mean", norm="batch", dropout=0.2)
    return replace(graphs(), recipe="graphs-baseline", model=model)


def motif() -> GraphExperiment:
    """Detect a motif in generated random graphs: set data.name, such as cycle."""
    model = GraphTransformerConfig.preset("grf", readout="mean")
    return replace(graphs(), recipe="motif", data=GraphData("cycle"), model=model)
