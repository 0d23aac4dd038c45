"""Data sets, how they are read, and how they are cut into batches.

:func:`load` makes any of them by name. A data set for classification is a :class:`LabelledSet`; one that is held in
memory is an :class:`InMemorySet`. :class:`Batches` goes through a data set in an order that a resumed run repeats.
"""

from topomask.data.archives import UnsafeArchiveError, extract
from topomask.data.augment import Augment, normalize, random_crop, random_flip
from topomask.data.batches import Batches
from topomask.data.download import DownloadError
from topomask.data.image_folder import ImageFolder
from topomask.data.in_memory import InMemorySet, to_memory
from topomask.data.labelled_set import LabelledSet
from topomask.data.mass_spring import Material
from topomask.data.moving_digits import MovingDigits
from topomask.data.particles import ParticleSet, Trajectory
from topomask.data.pictures import read_image, read_video
from topomask.data.registry import ENTRIES, Entry, load
from topomask.data.root import MissingDataError, data_root
from topomask.data.splits import stratified_split
from topomask.data.video_folder import VideoFolder

__all__ = [
    "ENTRIES",
    "Augment",
    "Batches",
    "DownloadError",
    "Entry",
    "ImageFolder",
    "InMemorySet",
    "LabelledSet",
    "Material",
    "MissingDataError",
    "MovingDigits",
    "ParticleSet",
    "Trajectory",
    "UnsafeArchiveError",
    "VideoFolder",
    "data_root",
    "extract",
    "load",
    "normalize",
    "random_crop",
    "random_flip",
    "read_image",
    "read_video",
    "stratified_split",
    "to_memory",
]
