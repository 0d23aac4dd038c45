"""Batches of an epoch, in an order that depends only on the seed and the epoch."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sized
from typing import Any, Self, cast, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from topomask.data.splits import seeded_generator
from topomask.support.checks import check_sizes


class ShardedEpochs(ABC):
    """Which examples are in each batch of an epoch, for one of several processes."""

    def __init__(self, count: int, batch_size: int, seed: int, shuffle: bool) -> None:
        check_sizes(batch_size=batch_size)
        self._count, self.batch_size, self.seed, self.shuffle = count, batch_size, seed, shuffle
        self._rank, self._world_size = 0, 1

    def shard(self, rank: int, world_size: int) -> Self:
        """Return the part of each batch that belongs to process `rank` of `world_size`."""
        if not 0 <= rank < world_size:
            raise ValueError(f"`rank` must lie in [0, world_size={world_size}), but is {rank}.")
        if self.batch_size < world_size:
            raise ValueError(
                f"`batch_size` is {self.batch_size}, too small for {world_size} processes. Make it larger."
            )
        part = copy.copy(self)
        part._rank, part._world_size = rank, world_size
        return part

    @abstractmethod
    def _fewest(self) -> int:
        """The smallest number of examples in the last batch of an epoch for which this process does not skip it."""

    def __len__(self) -> int:
        """Number of batches of an epoch for this process."""
        whole, left_over = divmod(self._count, self.batch_size)
        return whole + (left_over >= self._fewest())

    def _indices(self, epoch: int, skip: int) -> list[Tensor]:
        """The examples of each batch of this process, after the first `skip` batches."""
        if not 0 <= skip <= len(self):
            raise ValueError(f"`skip` must lie between 0 and the {len(self)} batches of an epoch, but is {skip}.")
        order = torch.arange(self._count)
        if self.shuffle:
            order = torch.randperm(self._count, generator=seeded_generator("order", self.seed, epoch))
        parts = order.split(self.batch_size)[skip : len(self)]
        return [part.tensor_split(self._world_size)[self._rank] for part in parts]


@final
class Batches(ShardedEpochs):
    """Batches of a data set, epoch by epoch.

    The order of an epoch and the random numbers of its transform are functions of (seed, epoch, batch, rank): a run
    that resumes inside an epoch skips the batches it has seen, without reading them, and continues as if it had never
    stopped. Torch's global random state is neither read nor changed.

    Several processes share each batch (:meth:`shard`), so a run sees the same batches for any number of processes.
    Without `drop_last`, the last batch of an epoch has the remaining examples, and each example comes exactly once.

    Args:
        dataset: A data set with an attribute `tensors` (:class:`topomask.data.InMemorySet`, torch's TensorDataset) is
            indexed directly; any other is read through a DataLoader.
        batch_size: Examples per batch, over all processes.
        seed: Seed of the order and of the transform.
        shuffle: Shuffle each epoch; else keep the order of the data set.
        drop_last: Drop the last batch of an epoch if it is incomplete.
        transform: Applied to the first tensor of each batch, with a generator of its own; such as
            :class:`topomask.data.Augment`.
        num_workers: Processes of the DataLoader; 0 reads in this one. Not used for data sets with `tensors`.

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
        transform: Callable[[Tensor, torch.Generator], Tensor] | None = None,
        num_workers: int = 0,
    ) -> None:
        if num_workers < 0:
            raise ValueError(f"`num_workers` must be at least 0, but is {num_workers}.")
        super().__init__(len(cast(Sized, dataset)), batch_size, seed, shuffle)
        if drop_last and self._count < batch_size:
            raise ValueError(
                f"With drop_last=True, {self._count} examples give no batch of {batch_size}. Make `batch_size` smaller."
            )
        self.dataset, self.drop_last, self.transform, self.num_workers = dataset, drop_last, transform, num_workers

    def _fewest(self) -> int:
        return self.batch_size if self.drop_last else self._rank + 1

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Iterate over the batches of one epoch, counted from 0, without the first `skip`."""
        for step, batch in enumerate(self._read(self._indices(epoch, skip)), start=skip):
            if self.transform is None:
                yield batch
            else:
                generator = seeded_generator("transform", self.seed, epoch, step, self._rank)
                yield (self.transform(batch[0], generator), *batch[1:])

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
            # Without its own generator, a DataLoader draws from torch's and changes what the model draws next.
            generator=torch.Generator(),
        )
        for read in loader:
            yield tuple(read)
