"""Tokens that see and are seen by all, in front of a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.graph import Graph
from topomask.masks.base import Entries, Mask, Normalizer
from topomask.masks.graph_sums import spread_per_graph, sum_per_graph
from topomask.masks.selected import SelectedMask
from topomask.ops import segments
from topomask.ops.pair_attention import TileWork
from topomask.ops.quotient import divide
from topomask.ops.sparse_product import Pattern, make_pattern


class PrefixMask(Mask):
    r"""A mask with tokens in front that see and are seen by all, such as CLS tokens.

    .. math:: M' = \begin{pmatrix} 1 & 1 \\ 1 & M \end{pmatrix}

    On a batch of graphs every graph gets its own prefix tokens, which see that graph alone. The tokens come in the
    order (prefix of graph 1, prefix of graph 2, ..., nodes).

    Args:
        mask: The mask on the nodes.
        num_prefix: Prefix tokens per graph.

    Example:
        >>> import torch, topomask as tm
        >>> tm.PrefixMask(tm.DenseMask(torch.zeros(2, 2))).to_dense()
        tensor([[[1., 1., 1.],
                 [1., 0., 0.],
                 [1., 0., 0.]]])
    """

    def __init__(self, mask: Mask, num_prefix: int = 1) -> None:
        super().__init__()
        if not isinstance(num_prefix, int) or num_prefix < 1:
            raise ValueError(f"`num_prefix` must be an integer of at least 1, but is {num_prefix!r}.")
        if mask.num_queries != mask.num_keys:
            raise ValueError(f"`mask` must be square, but has {mask.num_queries} queries and {mask.num_keys} keys.")
        if isinstance(mask, SelectedMask):
            raise ValueError("`mask` is a selection of nodes. Put the prefix in front of the whole mask, then select.")
        self.mask = mask
        self.num_prefix = num_prefix
        self._cached: tuple[str, tuple[Pattern, Tensor]] | None = None

    @property
    def num_heads(self) -> int:  # type: ignore[override]
        """Heads of the mask on the nodes."""
        return self.mask.num_heads

    @property
    def num_queries(self) -> int:  # type: ignore[override]
        """Prefix tokens and nodes."""
        return self.num_prefix * self.num_graphs + self.mask.num_queries

    num_keys = num_queries

    @property
    def num_graphs(self) -> int:  # type: ignore[override]
        """Graphs of the batch."""
        return self.mask.num_graphs

    @property
    def default_normalizer(self) -> Normalizer:  # type: ignore[override]
        """That of the mask on the nodes."""
        return self.mask.default_normalizer

    @property
    def structure(self) -> str:
        """A name of the pattern."""
        return f"{self.num_prefix} before {self.mask.structure}"

    @property
    def key_groups(self) -> Tensor | None:
        """Which graph every token belongs to."""
        groups = self.mask.key_groups
        if groups is None:
            return None
        prefix = torch.arange(self.num_graphs, device=groups.device).repeat_interleave(self.num_prefix)
        return torch.cat([prefix, groups])

    def _multiply(self, x: Tensor, nodes: Tensor) -> Tensor:
        """Join the product of the nodes with what prefix tokens send and receive."""
        start = self.num_prefix * self.num_graphs
        groups = self.key_groups
        is_prefix = torch.arange(x.shape[-2], device=x.device)[:, None] < start
        all_tokens, prefix = (sum_per_graph(part, groups, self.num_graphs) for part in (x, x * is_prefix))
        to_prefix = spread_per_graph(all_tokens, None if groups is None else groups[:start], start)
        to_nodes = spread_per_graph(prefix, self.mask.key_groups, self.mask.num_queries)
        return torch.cat([to_prefix, nodes + to_nodes], dim=-2).to(x.dtype)

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M' with the product of the mask computed once."""
        inner = self.mask.product()
        return lambda x: self._multiply(x, inner(x[..., self.num_prefix * self.num_graphs :, :]))

    def matmul(self, x: Tensor) -> Tensor:
        """M' x."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """M'^T x."""
        return self._multiply(x, self.mask.rmatmul(x[..., self.num_prefix * self.num_graphs :, :]))

    def product_noise(self, x: Tensor) -> Tensor | None:
        """That of the mask: sums over the prefix are exact."""
        start = self.num_prefix * self.num_graphs
        noise = self.mask.product_noise(x[..., start:, :])
        return noise if noise is None or noise.shape[-2] == 1 else F.pad(noise, (0, 0, start, 0))

    def to_dense(self) -> Tensor:
        """M', [H, N, N]."""
        nodes = self.mask.to_dense()
        groups = self.key_groups
        start = self.num_prefix * self.num_graphs
        same = (
            nodes.new_ones(self.num_queries, self.num_queries)
            if groups is None
            else (groups[:, None] == groups).to(nodes.dtype)
        )
        top = same[:start].expand(self.num_heads, -1, -1)
        left = same[start:, :start].expand(self.num_heads, -1, -1)
        return torch.cat([top, torch.cat([left, nodes], dim=2)], dim=1)

    def magnitude(self) -> PrefixMask:
        """The prefix in front of the magnitude of the mask."""
        inner = self.mask.magnitude()
        if inner is self.mask:
            return self
        view = self._magnitude_view()
        view._modules["mask"] = inner
        return view

    def pattern(self) -> Pattern:
        """The pattern of the mask, and a row and a column per prefix token."""
        return _constant_layout(self, self.mask.structure)[0]

    def entries(self) -> Entries:
        """The entries of the mask, and ones between a prefix token and every token of its graph."""
        inner = self.mask.entries()
        pattern, order = _constant_layout(self, self.mask.structure)
        ones = inner.values.new_ones(len(order) - len(inner.values))
        values = torch.cat([inner.values, ones])[order]
        if inner.magnitudes is inner.values:
            return Entries(pattern, values, values)
        return Entries(pattern, values, torch.cat([inner.magnitudes, ones])[order])

    def attend_pairs(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        magnitudes: bool,
        absolute: bool = False,
        normalize: bool = True,
        softmax: bool = False,
        is_key: Tensor | None = None,
    ) -> Tensor:
        """Attention over the entries of the mask, as fast as it has it, and beside it what prefix tokens add."""
        if softmax or absolute or self.num_graphs > 1:
            flags = {"absolute": absolute, "normalize": normalize, "softmax": softmax}
            return super().attend_pairs(q, k, v, magnitudes=magnitudes, is_key=is_key, **flags)
        q, k, v = (x.unflatten(1, (self.num_heads, -1)) for x in (q, k, v))
        if not normalize:
            return self._sum_pairs(self.mask, q, k, v).flatten(1, 2)
        ones, magnitude = v.new_ones(*v.shape[:-1], 1), self.mask.magnitude() if magnitudes else self.mask
        if magnitude is self.mask:
            joined = self._sum_pairs(self.mask, q, k, torch.cat([v, ones], dim=-1))
            return divide(joined[..., :-1], joined[..., -1:]).flatten(1, 2)
        total = self._sum_pairs(magnitude, q, k, ones)
        return divide(self._sum_pairs(self.mask, q, k, v), total).flatten(1, 2)

    def _sum_pairs(self, mask: Mask, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Unnormalised attention [B, H, P + N, D] with a mask on the nodes behind the prefix."""
        start = self.num_prefix
        parts = (x[:, :, start:].flatten(1, 2) for x in (q, k, v))
        nodes = mask.attend_pairs(*parts, magnitudes=False, normalize=False).unflatten(1, (self.num_heads, -1))
        from_prefix = (q[:, :, start:] @ k[:, :, :start].mT) @ v[:, :, :start]
        prefix = (q[:, :, :start] @ k.mT) @ v
        return torch.cat([prefix, nodes + from_prefix], dim=2)

    def _layout(self) -> tuple[Pattern, Tensor]:
        """The pattern, and where its entries stand in (entries of the mask, ones of the prefix)."""
        inner = self.mask.pattern()
        heads, start, size = self.num_heads, self.num_prefix * self.num_graphs, self.num_queries
        head, row = _split(segments.index(inner.row_ptr), self.mask.num_queries)
        column = _split(inner.columns, self.mask.num_keys)[1]
        nodes = (head * size + start + row) * (heads * size) + head * size + start + column
        first_head = self._prefix_places(nodes.device)
        shifts = torch.arange(heads, device=nodes.device)[:, None] * (size * heads * size + size)
        places, order = torch.cat([nodes, (shifts + first_head).flatten()]).sort()
        counts = torch.bincount(places // (heads * size), minlength=heads * size)
        return make_pattern(segments.pointers(counts), places % (heads * size), heads * size), order

    def _prefix_places(self, device: torch.device) -> Tensor:
        """Places row * (H * N) + column, in the first head, of the ones that the prefix adds."""
        start, size, groups = self.num_prefix * self.num_graphs, self.num_queries, self.key_groups
        if groups is None:
            groups = torch.zeros(size, dtype=torch.int64, device=device)
        token = torch.arange(size, device=device)
        # Every token meets the prefix tokens of its graph.
        prefix = groups[:, None] * self.num_prefix + torch.arange(self.num_prefix, device=device)
        width = self.num_heads * size
        down = (token[:, None] * width + prefix).flatten()
        across = (prefix[start:] * width + token[start:, None]).flatten()
        return torch.cat([down, across])

    @property
    def num_pairs_bound(self) -> int | None:
        """Entries of the mask and of the prefix."""
        inner = self.mask.num_pairs_bound
        return None if inner is None else inner + 2 * self.num_heads * self.num_prefix * self.num_queries

    @property
    def num_pairs_estimate(self) -> int | None:
        """Entries of the mask and of the prefix."""
        inner = self.mask.num_pairs_estimate
        return None if inner is None else inner + 2 * self.num_heads * self.num_prefix * self.num_queries

    @property
    def refresh_cost(self) -> int:
        """That of the mask; never 0, since entries are put together anew."""
        return max(1, self.mask.refresh_cost)

    def _state(self) -> list[Tensor]:
        """What the mask depends on."""
        return self.mask._state()

    @property
    def tile_work(self) -> TileWork | None:
        """About that of the mask."""
        return self.mask.tile_work

    @property
    def dense_cost(self) -> int:
        """That of the mask."""
        return self.mask.dense_cost

    @property
    def product_cost(self) -> int:
        """The mask's, and one pass over the tokens."""
        return self.mask.product_cost + 2 * self.num_heads * self.num_queries

    def on(self, graph: Graph, features: Any = None) -> Self:
        """The prefix in front of the same mask on another graph."""
        view = self._view()
        view._modules["mask"] = self.mask.on(graph, features)
        return view


@torch.compiler.assume_constant_result
def _constant_layout(mask: PrefixMask, structure: str) -> tuple[Pattern, Tensor]:
    """The layout, computed once for every structure of the mask behind the prefix."""
    if mask._cached is None or mask._cached[0] != structure:
        with torch.inference_mode(False):
            mask._cached = structure, mask._layout()
    return mask._cached[1]


def _split(index: Tensor, size: int) -> tuple[Tensor, Tensor]:
    return index // size, index % size
