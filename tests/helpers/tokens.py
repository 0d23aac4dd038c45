"""Queries, keys and values, and the ways to attend, for tests of attention."""

import torch

EXACT = {"rtol": 1e-9, "atol": 1e-9}
STRATEGIES = ["pairs", "product", "dense"]
FEATURE_MAPS = ["relu", "elu", "exp", "softmax", "identity"]


def qkv(size: int, heads: int = 2, batch: int = 2, width: int = 4, dtype=torch.float64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, batch, heads, size, width, generator=generator, dtype=torch.float64).to(dtype)
