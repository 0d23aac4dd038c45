"""The handwritten digits that come with scikit-learn: 1,797 images of 8 x 8."""

from __future__ import annotations

import torch

from topomask.data.labelled_set import InMemorySet
from topomask.data.splits import SPLITS, check_split, first, stratified_split
from topomask.support.imports import need


def digits(
    split: str = "train",
    *,
    test_fraction: float = 0.2,
    val_fraction: float = 0.0,
    split_seed: int = 0,
    limit: int | None = None,
) -> InMemorySet:
    """Load the digits, in a stratified split that depends only on `split_seed`.

    Pixels are counts from 0 to 16, scaled to 0 to 255. Unlike in other sets, `mean` and `std` are computed over all
    1,797 images, including the test set, so that they are the same for every split.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``.
        test_fraction: Fraction of the images in the test set, which does not depend on `val_fraction`.
        val_fraction: Fraction of all images, not of the training set, to hold out as ``"val"``.
        split_seed: Seed of the split.
        limit: Keep only the first this many.

    Example:
        >>> digits("train"), len(digits("test"))
        (InMemorySet(1438 images (1, 8, 8), 10 classes), 359)

    References:
        Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    check_split(split, SPLITS, "digits")
    sizes = {"test": test_fraction, "val": val_fraction, "train": 1.0 - test_fraction - val_fraction}
    if not all(0 <= size <= 1 for size in sizes.values()) or not sizes[split] > 0:
        raise ValueError(
            f"`test_fraction`={test_fraction} and `val_fraction`={val_fraction} give the fractions {sizes}, but each "
            f"must lie in [0, 1], and that of {split!r} must be above 0."
        )
    found = need("sklearn.datasets", "The data set 'digits'").load_digits()
    pixels = torch.from_numpy(found.images)[:, None]  # [N, 1, 8, 8]
    labels = torch.from_numpy(found.target).long()
    parts = dict(zip(sizes, stratified_split(labels, tuple(sizes.values()), split_seed), strict=True))
    images = (pixels * (255.0 / 16.0)).round().to(torch.uint8)
    everything = InMemorySet(images, labels, tuple("0123456789"), mean=(0.3053,), std=(0.3759,))
    return everything.subset(first(parts[split], limit))
