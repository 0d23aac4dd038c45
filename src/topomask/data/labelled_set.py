"""Data sets for classification: what every one has, and those that are held in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


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


@final
class InMemorySet(LabelledSet):
    """Pictures or videos held as one uint8 tensor.

    Args:
        inputs: Pictures, uint8, [N, C, H, W], or videos, uint8, [N, T, C, H, W].
        labels: Class of each, integers in [0, num_classes), [N].
        classes: Names of the classes.
        mean: Mean of every channel, in [0, 1].
        std: Standard deviation of every channel, positive.

    Example:
        >>> pictures = InMemorySet(
        ...     torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.arange(5) % 2, ("cat", "dog"), (0.5,), (0.5,)
        ... )
        >>> pictures
        InMemorySet(5 pictures (1, 8, 8), 2 classes)
        >>> pictures.inputs[[0, 3]].shape
        torch.Size([2, 1, 8, 8])
    """

    def __init__(
        self, inputs: Tensor, labels: Tensor, classes: Sequence[str], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        if inputs.dtype != torch.uint8 or inputs.ndim not in (4, 5):
            raise ValueError(
                "`inputs` must be uint8 of shape [N, C, H, W] or [N, T, C, H, W], but is "
                f"{inputs.dtype} of shape {tuple(inputs.shape)}."
            )
        if labels.shape != inputs.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"`labels` must be integers of shape [N={len(inputs)}], but are {labels.dtype} of shape "
                f"{tuple(labels.shape)}."
            )
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
            raise ValueError(
                f"`labels` must lie in [0, {len(classes)}), the number of classes, but lie between {int(labels.min())} "
                f"and {int(labels.max())}."
            )
        self.inputs = inputs
        self.labels = labels.long()
        self.classes = tuple(classes)
        self.mean, self.std = tuple(mean), tuple(std)
        channels, height, width = inputs.shape[-3:]
        self.image_shape = (channels, height, width)
        self.num_frames = inputs.shape[1] if inputs.ndim == 5 else None

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels, which :class:`topomask.data.Batches` indexes without a DataLoader."""
        return self.inputs, self.labels

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.inputs[index], int(self.labels[index])

    def subset(self, indices: Tensor) -> InMemorySet:
        """The examples at these indices, in this order."""
        return InMemorySet(self.inputs[indices], self.labels[indices], self.classes, self.mean, self.std)


def to_memory(dataset: LabelledSet, num_workers: int = 0) -> InMemorySet:
    """Read every example of a data set once, and keep it.

    Args:
        dataset: Any data set for classification.
        num_workers: Processes that read; 0 reads in this one.
    """
    if isinstance(dataset, InMemorySet):
        return dataset
    frames = () if dataset.num_frames is None else (dataset.num_frames,)
    inputs = torch.empty(len(dataset), *frames, *dataset.image_shape, dtype=torch.uint8)
    # A generator of its own, as a DataLoader else draws from torch's and changes what a run draws next.
    loader = DataLoader(dataset, batch_size=64, num_workers=num_workers, generator=torch.Generator())
    start = 0
    threads = torch.get_num_threads()
    # One example at a time is too little work to share between threads: they would wait for each other.
    torch.set_num_threads(1)
    try:
        for batch, _ in loader:
            inputs[start : start + len(batch)] = batch
            start += len(batch)
    finally:
        torch.set_num_threads(threads)
    return InMemorySet(inputs, dataset.labels, dataset.classes, dataset.mean, dataset.std)
