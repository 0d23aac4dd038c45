"""Some entries of an operator that only knows products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from topomask.masks.operator import Operator


def submatrix_by_products(operator: Operator, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
    """Rows and columns of M, [H, n_q, n_k], by products with unit vectors on the smaller side."""
    num_queries = operator.num_queries if query_nodes is None else len(query_nodes)
    num_keys = operator.num_keys if key_nodes is None else len(key_nodes)
    dtype, device = operator.dtype, operator.device
    probe = torch.zeros(operator.num_heads, operator.num_keys, 1, dtype=dtype, device=device)
    noisy = operator.product_noise(probe) is not None
    # The noise is known for products with the transpose where the operator is square, and the compiler cannot look into
    # the derivative of every product.
    is_known = not (noisy and operator.num_queries != operator.num_keys) and not torch.compiler.is_compiling()
    few_queries = num_queries < num_keys and is_known
    few, many = (query_nodes, key_nodes) if few_queries else (key_nodes, query_nodes)
    # Entries may be much smaller than the noise of a product in single precision.
    work = torch.float64 if noisy else dtype
    eye = torch.eye(num_queries if few_queries else num_keys, dtype=work, device=device)
    size = operator.num_queries if few_queries else operator.num_keys
    x = scatter(eye.expand(operator.num_heads, -1, -1), few, size)
    dense = gather(operator.rmatmul(x) if few_queries else operator.matmul(x), many)
    if noisy:
        noise = operator.product_noise(x)
        assert noise is not None
        # What cannot be told from nothing is nothing, so that an operator without negative entries has none here.
        noise = noise if noise.shape[-2] == 1 else gather(noise, many)
        dense = dense.masked_fill(dense.detach().abs() <= noise, 0.0)
    return (dense.mT if few_queries else dense).to(dtype)


def gather(x: Tensor, nodes: Tensor | None) -> Tensor:
    """The rows of nodes; all where they are None."""
    return x if nodes is None else x.index_select(-2, nodes.to(x.device))


def scatter(x: Tensor, nodes: Tensor | None, size: int) -> Tensor:
    """Rows put on nodes, added up where several are on one."""
    if nodes is None:
        return x
    return x.new_zeros(*x.shape[:-2], size, x.shape[-1]).index_add(-2, nodes.to(x.device), x)
