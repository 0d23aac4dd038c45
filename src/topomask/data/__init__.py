"""Data sets, their files, and batches.

:func:`load` makes a data set of images, videos or particles by name. A set for classification is a
:class:`LabelledSet`, and an :class:`InMemorySet` if it is held in memory. :class:`Batches` iterates over it in an order
that a resumed run repeats. For graph classification, :func:`tu_dataset` and :func:`motifs` make a :class:`GraphSet`;
for node classification, :func:`node_set` makes a :class:`NodeSet`.

Names are imported on first use, so that image code does not import graph code.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.data.archives import UnsafeArchiveError, extract
    from topomask.data.augment import Augment, normalize, random_crop, random_flip
    from topomask.data.batches import Batches
    from topomask.data.class_folders import ImageFolder, VideoFolder
    from topomask.data.download import DownloadError
    from topomask.data.folds import Fold, fair_splits, stratified_folds
    from topomask.data.graph_set import GraphBatch, GraphBatches, GraphSet
    from topomask.data.labelled_set import InMemorySet, LabelledSet, to_memory
    from topomask.data.mass_spring import Material
    from topomask.data.motifs import MOTIFS, motifs
    from topomask.data.moving_digits import MovingDigits
    from topomask.data.node_sets import NODE_SETS, NodeBatch, NodeSet, node_set
    from topomask.data.particles import ParticleSet, Trajectory
    from topomask.data.pictures import read_image, read_video
    from topomask.data.registry import ENTRIES, Entry, load
    from topomask.data.root import MissingDataError, data_root
    from topomask.data.splits import stratified_split
    from topomask.data.tu import TU_SETS, tu_dataset

__all__ = [
    "ENTRIES",
    "MOTIFS",
    "NODE_SETS",
    "TU_SETS",
    "Augment",
    "Batches",
    "DownloadError",
    "Entry",
    "Fold",
    "GraphBatch",
    "GraphBatches",
    "GraphSet",
    "ImageFolder",
    "InMemorySet",
    "LabelledSet",
    "Material",
    "MissingDataError",
    "MovingDigits",
    "NodeBatch",
    "NodeSet",
    "ParticleSet",
    "Trajectory",
    "UnsafeArchiveError",
    "VideoFolder",
    "data_root",
    "extract",
    "fair_splits",
    "load",
    "motifs",
    "node_set",
    "normalize",
    "random_crop",
    "random_flip",
    "read_image",
    "read_video",
    "stratified_folds",
    "stratified_split",
    "to_memory",
    "tu_dataset",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "archives": ("UnsafeArchiveError", "extract"),
        "augment": ("Augment", "normalize", "random_crop", "random_flip"),
        "batches": ("Batches",),
        "class_folders": ("ImageFolder", "VideoFolder"),
        "download": ("DownloadError",),
        "folds": ("Fold", "fair_splits", "stratified_folds"),
        "graph_set": ("GraphBatch", "GraphBatches", "GraphSet"),
        "labelled_set": ("InMemorySet", "LabelledSet", "to_memory"),
        "mass_spring": ("Material",),
        "motifs": ("MOTIFS", "motifs"),
        "moving_digits": ("MovingDigits",),
        "node_sets": ("NODE_SETS", "NodeBatch", "NodeSet", "node_set"),
        "particles": ("ParticleSet", "Trajectory"),
        "pictures": ("read_image", "read_video"),
        "registry": ("ENTRIES", "Entry", "load"),
        "root": ("MissingDataError", "data_root"),
        "splits": ("stratified_split",),
        "tu": ("TU_SETS", "tu_dataset"),
    },
)


class _Package(ModuleType):
    """Keeps the function :func:`motifs`, which importing the module of the same name would hide."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "motifs" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
