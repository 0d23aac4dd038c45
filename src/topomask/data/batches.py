"""Batches of an epoch, in an order that depends on the seed and the epoch only."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sized
from typing import Any, Protocol, cast, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from topomask.data.splits import seeded_generator


class Transform(Protocol):
    """What is done to the inputs of a batch, such as :class:`topomask.data.Augment`."""

    def __call__(self, inputs: Tensor, generator: torch.Generator, /) -> Tensor:
        """The new inputs; draws come from the generator."""
        ...


@final
class Batches:
    """Batches of a data set, epoch by epoch.

    The order of an epoch and the draws of its transform are functions of (seed, epoch, batch, rank): a run that resumes
    inside an epoch skips what it has seen, without reading it, and goes on as if it had never stopped. Torch's own
    random state is neither read nor changed.

    Several processes share every batch (:meth:`shard`), so a run sees the same batches whatever their number. Without
    `drop_last` the last batch of an epoch has what is left over, and every example comes exactly once.

    Args:
        dataset: A data set with attribute `tensors` (:class:`topomask.data.InMemorySet`, torch's TensorDataset) is
            indexed as a whole; any other is read through a DataLoader.
        batch_size: Examples per batch, over all processes.
        seed: Seed of the order and of the draws.
        shuffle: A new order every epoch; else the order of the data set.
        drop_last: Leave out the last batch of an epoch where it is not full.
        transform: Applied to the first tensor of every batch, with a generator of its own.
        num_workers: Processes that read; 0 reads in this one. Tensors in memory need none.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> batches = Batches(TensorDataset(torch.arange(10)), batch_size=4, seed=0)
        >>> len(batches), [len(batch) for (batch,) in batches.epoch(0)]
        (3, [4, 4, 2])
        >>> resumed = list(batches.epoch(0, skip=2))
        >>> bool((resumed[0][0] == list(batches.epoch(0))[2][0]).all())
        True
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        transform: Transform | None = None,
        num_workers: int = 0,
    ) -> None:
        self._count = len(cast(Sized, dataset))
        if batch_size < 1 or num_workers < 0:
            raise ValueError(
                f"`batch_size` must be at least 1 and `num_workers` at least 0, but are {batch_size} and {num_workers}."
            )
        if drop_last and self._count < batch_size:
            raise ValueError(
                f"With drop_last=True, {self._count} examples give no batch of {batch_size}. Make `batch_size` smaller."
            )
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.shuffle, self.drop_last, self.transform = shuffle, drop_last, transform
        self.num_workers = num_workers
        self._rank, self._world_size = 0, 1

    def shard(self, rank: int, world_size: int) -> Batches:
        """The part of every batch that one of several processes takes.

        Args:
            rank: The number of the process.
            world_size: How many there are.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"`rank` must lie in [0, world_size={world_size}), but is {rank}.")
        if self.batch_size < world_size:
            raise ValueError(
                f"`batch_size` is {self.batch_size}, so not each of {world_size} processes has an example. "
                "Make it larger."
            )
        part = copy.copy(self)
        part._rank, part._world_size = rank, world_size
        return part

    def __len__(self) -> int:
        """Batches of an epoch; the last is left out by processes for which it has too few examples."""
        whole, left_over = divmod(self._count, self.batch_size)
        return whole + (not self.drop_last and left_over > self._rank)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The batches of one epoch.

        Args:
            epoch: Number of the epoch, from 0.
            skip: Number of batches that are passed over.
        """
        if not 0 <= skip <= len(self):
            raise ValueError(f"`skip` must lie between 0 and the {len(self)} batches of an epoch, but is {skip}.")
        for step, batch in enumerate(self._read(self._indices(epoch)[skip:]), start=skip):
            if self.transform is None:
                yield batch
            else:
                generator = seeded_generator("transform", self.seed, epoch, step, self._rank)
                yield (self.transform(batch[0], generator), *batch[1:])

    def _indices(self, epoch: int) -> list[Tensor]:
        """The examples of every batch of this process."""
        order = torch.arange(self._count)
        if self.shuffle:
            order = torch.randperm(self._count, generator=seeded_generator("order", self.seed, epoch))
        return [part.tensor_split(self._world_size)[self._rank] for part in order.split(self.batch_size)[: len(self)]]

    def _read(self, batches: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        tensors = getattr(self.dataset, "tensors", None)
        if tensors is not None:
            for batch in batches:
                yield tuple(tensor[batch] for tensor in tensors)
            return
        loader = DataLoader(
            self.dataset,
            batch_sampler=[batch.tolist() for batch in batches],
            num_workers=self.num_workers,
            # Without a generator of its own, a DataLoader draws from torch's and changes what the model draws next.
            generator=torch.Generator(),
        )
        for read in loader:
            yield tuple(read)
