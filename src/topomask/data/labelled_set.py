"""What every data set for classification has."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor
from torch.utils.data import Dataset


class LabelledSet(Dataset[tuple[Tensor, int]], ABC):
    """Pictures or videos with a class each.

    An item is a pair of a uint8 tensor, [C, H, W] for a picture and [T, C, H, W] for a video, and the class as an int.

    Attributes:
        classes: Names of the classes.
        labels: Class of every example, int64, [N].
        image_shape: Shape of a picture or of one frame, (C, H, W).
        num_frames: Frames of a video; None for pictures.
        mean: Mean of every channel over the training set, where black is 0 and white is 1.
        std: Standard deviation of every channel, likewise.
    """

    classes: tuple[str, ...]
    labels: Tensor
    image_shape: tuple[int, int, int]
    num_frames: int | None = None
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def __getitem__(self, index: int) -> tuple[Tensor, int]: ...

    def __repr__(self) -> str:
        kind = "pictures" if self.num_frames is None else f"videos of {self.num_frames} frames"
        return f"{type(self).__name__}({len(self)} {kind} {self.image_shape}, {self.num_classes} classes)"
