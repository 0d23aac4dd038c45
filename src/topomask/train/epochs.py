"""What training asks of its data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Epochs(Protocol):
    """Batches in an order that depends on the seed and the epoch alone, so that a run can go on from any step.

    Any object with these methods will do. Under ``torchrun`` it needs one more, ``shard(rank, world_size)``: the part
    of every batch that one of several processes takes, as an object of this kind. In training, all parts have the same
    number of batches, and none is empty.
    """

    def __len__(self) -> int:
        """Batches per epoch."""

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """The batches of an epoch without the first ``skip``, the same whenever they are asked for."""


def batches_of(data: Epochs | Iterable[Any], epoch: int = 0, skip: int = 0) -> Iterator[Any]:
    """The batches of an epoch; a plain list of batches is gone through in its order in every epoch."""
    return data.epoch(epoch, skip) if isinstance(data, Epochs) else islice(data, skip, None)


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch of tensors, tuples, lists, dicts and whatever else has a method ``to``, on a device."""
    if isinstance(batch, Mapping):
        return {name: to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = (to_device(part, device) for part in batch)
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch.to(device) if hasattr(batch, "to") else batch


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists and dicts, in their order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | tuple | list):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(part)
