"""Data sets for classification: the common interface, and sets that are held in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class LabelledSet(Dataset[tuple[Tensor, int]], ABC):
    """Images or videos with one class each.

    An item is a pair: a uint8 tensor, [C, H, W] for an image and [T, C, H, W] for a video, and the class as an int.

    Attributes:
        classes: Names of the classes.
        labels: Class of each example, int64, [N].
        image_shape: Shape of an image or of one frame, (C, H, W).
        num_frames: Frames per video; None for images.
        mean: Mean of each channel over the training set, with black 0 and white 1.
        std: Standard deviation of each channel, likewise.
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
        kind = "images" if self.num_frames is None else f"videos of {self.num_frames} frames"
        return f"{type(self).__name__}({len(self)} {kind} {self.image_shape}, {self.num_classes} classes)"


@final
class InMemorySet(LabelledSet):
    """Images or videos held as one uint8 tensor.

    Args:
        inputs: Images, uint8, [N, C, H, W], or videos, uint8, [N, T, C, H, W].
        labels: Class of each example, integers in [0, num_classes), [N].
        classes: Names of the classes.
        mean: Mean of each channel, in [0, 1].
        std: Standard deviation of each channel, positive.

    Example:
        >>> inputs = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
        >>> InMemorySet(inputs, torch.arange(5) % 2, ("cat", "dog"), mean=(0.5,), std=(0.5,))
        InMemorySet(5 images (1, 8, 8), 2 classes)
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
                f"`labels` must lie in [0, num_classes={len(classes)}), but lie between {int(labels.min())} and "
                f"{int(labels.max())}."
            )
        self.inputs, self.labels = inputs, labels.long()
        self.classes, self.mean, self.std = tuple(classes), tuple(mean), tuple(std)
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
        """Return the examples at these indices, in this order."""
        return InMemorySet(self.inputs[indices], self.labels[indices], self.classes, self.mean, self.std)


def to_memory(dataset: LabelledSet, num_workers: int = 0) -> InMemorySet:
    """Read all examples of a data set into memory.

    Args:
        dataset: Any data set for classification.
        num_workers: Number of processes that read; 0 reads in this one.
    """
    if isinstance(dataset, InMemorySet):
        return dataset
    frames = () if dataset.num_frames is None else (dataset.num_frames,)
    inputs = torch.empty(len(dataset), *frames, *dataset.image_shape, dtype=torch.uint8)
    # Without its own generator, a DataLoader draws from torch's and changes what a run draws next.
    loader = DataLoader(dataset, batch_size=64, num_workers=num_workers, generator=torch.Generator())
    start, threads = 0, torch.get_num_threads()
    # A single example is too little work to share between threads: they would wait for each other.
    torch.set_num_threads(1)
    try:
        for batch, _ in loader:
            inputs[start : start + len(batch)] = batch
            start += len(batch)
    finally:
        torch.set_num_threads(threads)
    return InMemorySet(inputs, dataset.labels, dataset.classes, dataset.mean, dataset.std)
