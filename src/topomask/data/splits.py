"""Draws that depend on a seed and on what they are for, and on nothing drawn before; splits that are drawn so."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def derived_seed(purpose: str, *words: int) -> int:
    """A 63-bit seed from a purpose and some integers, the same on every machine.

    Example:
        >>> derived_seed("order", 0, 1) == derived_seed("order", 0, 1) != derived_seed("order", 1, 0)
        True
    """
    text = repr((purpose, *(int(word) for word in words)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seeded_generator(purpose: str, *words: int) -> torch.Generator:
    """A generator on the CPU that starts from :func:`derived_seed`."""
    return torch.Generator().manual_seed(derived_seed(purpose, *words))


def stratified_split(labels: Tensor, fractions: Sequence[float], seed: int = 0) -> list[Tensor]:
    """Indices of disjoint parts in which every class has nearly the same share.

    Args:
        labels: Class of every example, [N].
        fractions: The share of every part; their sum must be 1.
        seed: Seed of the draw.

    Returns:
        Sorted indices, one tensor per part; together they are all of 0, ..., N - 1.

    Example:
        >>> small, large = stratified_split(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), (0.25, 0.75))
        >>> len(small), len(large)
        (2, 6)
    """
    if any(not 0 <= fraction <= 1 for fraction in fractions) or abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(f"`fractions` must lie in [0, 1] and add up to 1, but are {tuple(fractions)}.")
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(
            f"`labels` must be integers of shape [N], but are {labels.dtype} of shape {tuple(labels.shape)}."
        )
    parts: list[list[Tensor]] = [[] for _ in fractions]
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        order = members[torch.randperm(len(members), generator=seeded_generator("split", seed, label))]
        shares = torch.tensor(fractions, dtype=torch.float64).cumsum(0)
        edges = [0, *(shares * len(members)).round().long().tolist()]
        for part, start, end in zip(parts, edges[:-1], edges[1:], strict=True):
            part.append(order[start:end])
    return [torch.cat([labels.new_empty(0, dtype=torch.long), *part]).sort().values for part in parts]


def check_split(split: str, available: Sequence[str], name: str) -> None:
    """A ValueError unless the split is one that the data set has."""
    if split not in available:
        raise ValueError(f"`split` of {name} must be one of {', '.join(available)}, but is {split!r}.")


def choose(labels: Tensor, split: str, *, val_fraction: float, split_seed: int, limit: int | None) -> Tensor:
    """Indices of one split, out of the files that hold it.

    Args:
        labels: Class of every example in the files: those of the training set for ``"train"`` and ``"val"``, [N].
        split: ``"train"``, ``"val"``, which is held out of the training set, or another one, which is taken whole.
        val_fraction: The share of the training set that is held out, in [0, 1).
        split_seed: Seed of what is held out.
        limit: Keep the first so many only; None keeps all.

    Returns:
        Sorted indices.
    """
    check_val_fraction(split, val_fraction)
    indices = torch.arange(len(labels))
    if val_fraction and split in ("train", "val"):
        val, train = stratified_split(labels, (val_fraction, 1.0 - val_fraction), split_seed)
        indices = train if split == "train" else val
    return first(indices, limit)


def check_val_fraction(split: str, val_fraction: float) -> None:
    """A ValueError unless the share lies in [0, 1), and above 0 where the held-out part is asked for."""
    if not 0 <= val_fraction < 1:
        raise ValueError(f"`val_fraction` must lie in [0, 1), but is {val_fraction}.")
    if split == "val" and not val_fraction:
        raise ValueError(
            "split='val' was asked for, but nothing is held out for it. Pass val_fraction=0.1, the same for 'train' "
            "and 'val', or use split='test'."
        )


def first(indices: Tensor, limit: int | None) -> Tensor:
    """The first `limit` indices, or all where it is None."""
    if limit is None:
        return indices
    if not 1 <= limit <= len(indices):
        raise ValueError(f"`limit` must lie between 1 and the {len(indices)} examples of this split, but is {limit}.")
    return indices[:limit]
