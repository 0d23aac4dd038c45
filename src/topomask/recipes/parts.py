"""Which examples are for training, validation and test, for the record of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from torch import Tensor


def digest_of(parts: Iterable[Tensor]) -> str:
    """A digest of which examples are in which part, whatever their order.

    Args:
        parts: Numbers of examples, one tensor per part.

    Example:
        >>> import torch
        >>> digest_of([torch.tensor([2, 0]), torch.tensor([1])]) == digest_of([torch.tensor([0, 2]), torch.tensor([1])])
        True
    """
    text = json.dumps([part.sort().values.tolist() for part in parts])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
