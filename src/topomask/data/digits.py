"""The handwritten digits that come with scikit-learn: 1,797 pictures of 8 x 8."""

from __future__ import annotations

import torch

from topomask.data.labelled_set import InMemorySet
from topomask.data.splits import check_split, first, stratified_split
from topomask.support.imports import need


def digits(
    split: str = "train",
    *,
    test_fraction: float = 0.2,
    val_fraction: float = 0.0,
    split_seed: int = 0,
    limit: int | None = None,
) -> InMemorySet:
    """The digits, in a stratified split that depends on `split_seed` only.

    The pixels, counts from 0 to 16, are spread over 0 to 255. Unlike those of other sets, `mean` and `std` are over all
    1,797 pictures, the test set included, so that they are the same for every split.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``.
        test_fraction: The share of the test set, which is the same for every `val_fraction`.
        val_fraction: The share of all pictures, not of the training set, that is held out for ``"val"``.
        split_seed: Seed of the split.
        limit: Keep the first so many only.

    Example:
        >>> digits("train"), len(digits("test"))
        (InMemorySet(1438 pictures (1, 8, 8), 10 classes), 359)

    References:
        Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    check_split(split, ("train", "val", "test"), "digits")
    sizes = {"test": test_fraction, "val": val_fraction, "train": 1.0 - test_fraction - val_fraction}
    if not all(0 <= size <= 1 for size in sizes.values()) or not sizes[split] > 0:
        raise ValueError(
            f"`test_fraction`={test_fraction} and `val_fraction`={val_fraction} leave the shares {sizes}, but each "
            f"must lie in [0, 1] and that of {split!r} above 0."
        )
    found = need("sklearn.datasets", "The data set 'digits'").load_digits()
    pixels = torch.from_numpy(found.images)[:, None]  # [N, 1, 8, 8]
    labels = torch.from_numpy(found.target).long()
    parts = dict(zip(sizes, stratified_split(labels, tuple(sizes.values()), split_seed), strict=True))
    everything = InMemorySet(
        (pixels * (255.0 / 16.0)).round().to(torch.uint8),
        labels,
        classes=tuple("0123456789"),
        mean=(0.3053,),
        std=(0.3759,),
    )
    return everything.subset(first(parts[split], limit))
