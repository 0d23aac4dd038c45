"""Splits and seeds that depend only on a seed and a purpose, never on what was drawn before."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from topomask.support.checks import check_probabilities

SPLITS = ("train", "val", "test")


def derived_seed(purpose: str, *words: int) -> int:
    """Derive a 63-bit seed from a purpose and integers, the same on every machine."""
    text = repr((purpose, *(int(word) for word in words)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seeded_generator(purpose: str, *words: int) -> torch.Generator:
    """A CPU generator seeded by :func:`derived_seed`."""
    return torch.Generator().manual_seed(derived_seed(purpose, *words))


def stratified_split(labels: Tensor, fractions: Sequence[float], seed: int = 0) -> list[Tensor]:
    """Split examples into disjoint parts with nearly the same class proportions.

    Args:
        labels: Class of each example, [N].
        fractions: Fraction of the examples in each part; must sum to 1.
        seed: Seed of the split.

    Returns:
        Sorted indices, one tensor per part; together they are 0, ..., N - 1.

    Example:
        >>> small, large = stratified_split(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), (0.25, 0.75))
        >>> len(small), len(large)
        (2, 6)
    """
    if any(not 0 <= fraction <= 1 for fraction in fractions) or abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(f"`fractions` must lie in [0, 1] and sum to 1, but are {tuple(fractions)}.")
    check_label_vector(labels, "N")
    shares, parts = torch.tensor(fractions, dtype=torch.float64).cumsum(0), [list[Tensor]() for _ in fractions]
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        order = members[torch.randperm(len(members), generator=seeded_generator("split", seed, label))]
        edges = [0, *(shares * len(members)).round().long().tolist()]
        for part, start, end in zip(parts, edges[:-1], edges[1:], strict=True):
            part.append(order[start:end])
    return [torch.cat([labels.new_empty(0, dtype=torch.long), *part]).sort().values for part in parts]


def check_label_vector(labels: Tensor, size: str) -> None:
    """Raise a ValueError unless `labels` is a vector of integers."""
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(
            f"`labels` must be integers of shape [{size}], but are {labels.dtype} of shape {tuple(labels.shape)}."
        )


def check_split(split: str, available: Sequence[str], name: str) -> None:
    """Raise a ValueError unless the data set `name` has the split."""
    if split not in available:
        raise ValueError(f"`split` of {name} must be one of {', '.join(available)}, but is {split!r}.")


def check_index(index: int, count: int, name: str = "index") -> int:
    """Return an index into `count` examples, counted from 0 if it is negative; an IndexError if it is out of range."""
    if not -count <= index < count:
        raise IndexError(f"`{name}` must lie in [0, {count}), but is {index}.")
    return index % count


def choose(labels: Tensor, split: str, *, val_fraction: float, split_seed: int, limit: int | None) -> Tensor:
    """Sorted indices of the examples of a split, given the labels, [N], of all examples in its files.

    ``"val"`` is a fraction of the training set, whose files it shares; other splits have files of their own. At most
    the first `limit` are kept.
    """
    check_probabilities(val_fraction=val_fraction)
    if split == "val" and not val_fraction:
        raise ValueError(
            "split='val' is empty, because nothing is held out. Pass val_fraction=0.1, the same for 'train' and 'val', "
            "or use split='test'."
        )
    indices = torch.arange(len(labels))
    if val_fraction and split in ("train", "val"):
        val, train = stratified_split(labels, (val_fraction, 1.0 - val_fraction), split_seed)
        indices = train if split == "train" else val
    return first(indices, limit)


def first(indices: Tensor, limit: int | None) -> Tensor:
    """The first `limit` indices; all of them if it is None."""
    if limit is None:
        return indices
    if not 1 <= limit <= len(indices):
        raise ValueError(f"`limit` must lie between 1 and the {len(indices)} examples of this split, but is {limit}.")
    return indices[:limit]
