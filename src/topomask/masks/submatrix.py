"""Some entries of a mask that only knows products."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from topomask.masks.base import Mask


def submatrix_by_products(mask: Mask, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
    """Rows and columns of M, [H, n_q, n_k], by products with unit vectors on the smaller side."""
    num_queries = mask.num_queries if query_nodes is None else len(query_nodes)
    num_keys = mask.num_keys if key_nodes is None else len(key_nodes)
    dtype, device = _kind(mask)
    probe = torch.zeros(mask.num_heads, mask.num_keys, 1, dtype=dtype, device=device)
    noisy = mask.product_noise(probe) is not None
    # The noise is known for products with the transpose where the mask is square.
    few_queries = num_queries <= num_keys and not (noisy and mask.num_queries != mask.num_keys)
    few, many = (query_nodes, key_nodes) if few_queries else (key_nodes, query_nodes)
    # Entries may be much smaller than the noise of a product in single precision.
    work = torch.float64 if noisy else dtype
    eye = torch.eye(num_queries if few_queries else num_keys, dtype=work, device=device)
    x = scatter(eye.expand(mask.num_heads, -1, -1), few, mask.num_queries if few_queries else mask.num_keys)
    dense = gather(mask.rmatmul(x) if few_queries else mask.matmul(x), many)
    if noisy:
        noise = mask.product_noise(x)
        assert noise is not None
        # What cannot be told from nothing is nothing, so that a mask without negative entries has none here.
        noise = noise if noise.shape[-2] == 1 else gather(noise, many)
        dense = dense.masked_fill(dense.detach().abs() <= noise, 0.0).to(dtype)
    return dense.mT if few_queries else dense


def gather(x: Tensor, nodes: Tensor | None) -> Tensor:
    """The rows of nodes; all where they are None."""
    return x if nodes is None else x.index_select(-2, nodes.to(x.device))


def scatter(x: Tensor, nodes: Tensor | None, size: int) -> Tensor:
    """Rows put on nodes, added up where several are on one."""
    if nodes is None:
        return x
    return x.new_zeros(*x.shape[:-2], size, x.shape[-1]).index_add(-2, nodes.to(x.device), x)


def _kind(mask: Mask) -> tuple[torch.dtype, torch.device]:
    """Precision and device of a mask: those of its parameters, buffers or graph, but float32 at least."""
    probes = (getattr(module, "_probe", None) for module in mask.modules())
    tensors: Iterable[Tensor] = (probe for probe in probes if isinstance(probe, Tensor))
    for tensor in itertools.chain(mask.parameters(), mask.buffers(), tensors):
        if tensor.is_floating_point():
            return torch.promote_types(tensor.dtype, torch.float32), tensor.device
    return torch.get_default_dtype(), torch.device("cpu")
