"""What layers of self-attention have in common."""

from __future__ import annotations

from abc import ABC

from torch import Tensor, nn


class HeadProjections(nn.Module, ABC):
    """Projections of tokens to queries, keys and values per head, and of attended values back to tokens.

    Args:
        dim: Width of the tokens.
        num_heads: Query heads.
        num_kv_heads: Heads of keys and values, a divisor of ``num_heads``. Default: ``num_heads``.
        dropout: Probability to drop a pair while training.
        bias: Whether projections have a bias.
    """

    def __init__(
        self, dim: int, num_heads: int, num_kv_heads: int | None = None, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        for name, size in (("dim", dim), ("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1, but is {size}.")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must lie in [0, 1), but is {dropout}.")
        if dim % num_heads:
            raise ValueError(f"`dim` must be a multiple of `num_heads`, but they are {dim} and {num_heads}.")
        if num_heads % num_kv_heads:
            raise ValueError(
                f"`num_heads` must be a multiple of `num_kv_heads`, but they are {num_heads} and {num_kv_heads}."
            )
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.dropout = dropout
        head_dim = dim // num_heads
        self.query = nn.Linear(dim, num_heads * head_dim, bias=bias)
        self.key = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    @property
    def dropout_p(self) -> float:
        """Probability to drop a pair now."""
        return self.dropout if self.training else 0.0

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [..., H, N, D], keys and values [..., H_kv, N, D] of tokens [..., N, C]."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        return _split(q, self.num_heads), _split(k, self.num_kv_heads), _split(v, self.num_kv_heads)

    def join(self, attended: Tensor) -> Tensor:
        """Tokens [..., N, C] of attended values [..., H, N, D]."""
        return self.out(attended.transpose(-2, -3).flatten(-2))


def _split(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(-2, -3)
