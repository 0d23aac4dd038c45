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
    from topomask.data.archives import UnsafeArchiveError as UnsafeArchiveError
    from topomask.data.archives import extract as extract
    from topomask.data.augment import Augment as Augment
    from topomask.data.augment import normalize as normalize
    from topomask.data.augment import random_crop as random_crop
    from topomask.data.augment import random_flip as random_flip
    from topomask.data.batches import Batches as Batches
    from topomask.data.class_folders import ImageFolder as ImageFolder
    from topomask.data.class_folders import VideoFolder as VideoFolder
    from topomask.data.download import DownloadError as DownloadError
    from topomask.data.folds import Fold as Fold
    from topomask.data.folds import fair_splits as fair_splits
    from topomask.data.folds import stratified_folds as stratified_folds
    from topomask.data.graph_set import GraphBatch as GraphBatch
    from topomask.data.graph_set import GraphBatches as GraphBatches
    from topomask.data.graph_set import GraphSet as GraphSet
    from topomask.data.labelled_set import InMemorySet as InMemorySet
    from topomask.data.labelled_set import LabelledSet as LabelledSet
    from topomask.data.labelled_set import to_memory as to_memory
    from topomask.data.mass_spring import Material as Material
    from topomask.data.motifs import MOTIFS as MOTIFS
    from topomask.data.motifs import motifs as motifs
    from topomask.data.moving_digits import MovingDigits as MovingDigits
    from topomask.data.node_sets import NODE_SETS as NODE_SETS
    from topomask.data.node_sets import NodeBatch as NodeBatch
    from topomask.data.node_sets import NodeSet as NodeSet
    from topomask.data.node_sets import node_set as node_set
    from topomask.data.particles import ParticleSet as ParticleSet
    from topomask.data.particles import Trajectory as Trajectory
    from topomask.data.pictures import read_image as read_image
    from topomask.data.pictures import read_video as read_video
    from topomask.data.registry import ENTRIES as ENTRIES
    from topomask.data.registry import Entry as Entry
    from topomask.data.registry import load as load
    from topomask.data.root import MissingDataError as MissingDataError
    from topomask.data.root import data_root as data_root
    from topomask.data.splits import stratified_split as stratified_split
    from topomask.data.tu import TU_SETS as TU_SETS
    from topomask.data.tu import tu_dataset as tu_dataset

__getattr__, __dir__, __all__ = lazy_names(__name__)


class _Package(ModuleType):
    """Keeps the function :func:`motifs`, which importing the module of the same name would hide."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "motifs" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
