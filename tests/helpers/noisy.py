"""A mask whose products carry rounding noise, as those by FFT do, of a known size."""

import torch

import topomask as tm
from topomask.masks.dense import DenseOperator

NOISE = 1e-3


class NoisyMask(tm.DenseMask):
    """A matrix whose product errs by up to NOISE times the sum of absolute inputs, also where it is 0."""

    def _operator(self):
        return NoisyOperator(self, self.matrix)


class NoisyOperator(DenseOperator):
    def matmul(self, x):
        signs = torch.sign(torch.rand(*x.shape[:-2], self.num_queries, x.shape[-1], dtype=x.dtype) - 0.5)
        return super().matmul(x) + signs * NOISE * x.detach().abs().sum(dim=-2, keepdim=True)

    def product_noise(self, x):
        return NOISE * x.abs().sum(dim=-2, keepdim=True)
