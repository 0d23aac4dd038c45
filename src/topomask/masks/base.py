"""What every mask can do."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from topomask.graph import Graph
from topomask.ops.pair_attention import TileWork, pair_attention
from topomask.ops.sparse_product import Pattern, spmm

# What the sum of masked values is divided by, see `topomask.masked_attention`.
Normalizer = Literal["absolute", "signed", "none"]

# Entries of a dense mask that a mask may keep.
MAX_KEPT_ENTRIES = 1 << 24

# Pairs of walks that may meet, per query and head, before pairs are no longer formed.
MAX_PAIRS_PER_QUERY = 8192

# Numbers in the product of one chunk of features when attention goes through mask products.
ELEMENTS_PER_CHUNK = 1 << 24

_counter = itertools.count()
_Kept = TypeVar("_Kept")


def next_structure() -> str:
    """A name for a pattern that no other pattern has: the compiler compares it to know when to look again."""
    return f"pattern {next(_counter)}"


class Entries(NamedTuple):
    """The nonzero entries of a mask, block-diagonal over heads."""

    pattern: Pattern  # [H * N_q, H * N_k]
    values: Tensor  # [P]
    magnitudes: Tensor  # [P], the entries of `magnitude()`; the same tensor as `values` when they are equal


class Mask(nn.Module, ABC):
    r"""A linear operator M on the tokens, per head, with a fast product.

    Parameters belong to the mask, the graph is data: :meth:`on` binds the same parameters to another graph.
    A subclass says how to multiply (:meth:`matmul`, :meth:`rmatmul`), what it is (:meth:`to_dense`) and what dominates
    it (:meth:`magnitude`). It may add :meth:`entries` where it is sparse, and replace :meth:`attend` by something
    faster.

    Attributes:
        num_heads: Heads H; a mask with one head serves any number of heads.
        num_queries: Rows.
        num_keys: Columns.
        num_graphs: Graphs of the batch that the mask is on.
        default_normalizer: What attention divides by unless it is told.
    """

    num_heads: int
    num_queries: int
    num_keys: int
    num_graphs: int = 1
    default_normalizer: Normalizer = "absolute"
    _structure: str = "fixed"
    _is_magnitude: bool = False

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[tuple[str, bool], tuple[str, list[Tensor], Any]] = {}

    @abstractmethod
    def matmul(self, x: Tensor) -> Tensor:
        """M x for x [..., H, N_k, C]."""

    @abstractmethod
    def rmatmul(self, x: Tensor) -> Tensor:
        """M^T x for x [..., H, N_q, C]."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """M as a dense tensor, [H, N_q, N_k], for small graphs and tests."""

    def dense_weights(self) -> Tensor:
        """M as :meth:`to_dense` gives it, for reading only: kept where it is small and its parameters are at rest."""
        if self.num_heads * self.num_queries * self.num_keys > MAX_KEPT_ENTRIES:
            return self.to_dense()
        return self._keep("dense", self.to_dense)

    @abstractmethod
    def magnitude(self) -> Mask:
        """A mask that dominates |M| entry by entry: every parameter replaced by its absolute value."""

    @property
    @abstractmethod
    def product_cost(self) -> int:
        """Multiply-adds of one product with one column, over all heads."""

    @property
    def dense_cost(self) -> int:
        """Multiply-adds to form the dense matrix, apart from writing it; by default, a product with every column."""
        return self.product_cost * self.num_keys

    @property
    def rank(self) -> int | None:
        """The rank r of a mask that attends as plain linear attention with r times the features; None for any other."""
        return None

    @property
    def hides_nothing(self) -> bool:
        """Whether all entries are 1: softmax attention is then plain, and need not keep its weights."""
        return False

    @property
    def refresh_cost(self) -> int:
        """Multiply-adds to compute the entries before they are used; 0 where they are at hand."""
        return 0

    def product_noise(self, x: Tensor) -> Tensor | None:  # noqa: ARG002
        """A bound on the rounding error of every entry of a product with x [..., H, N_k, C].

        One for all rows, [..., H, 1, C], or one per row, [..., H, N_q, C]. Attention takes a normaliser below it for
        nothing. None where an entry that is 0 comes out as 0. For a square mask it also holds for :meth:`rmatmul`.
        """
        return None

    @property
    def tile_work(self) -> TileWork | None:
        """The work of attention over pairs in tiles; None where that is not known, or where it goes row by row."""
        return None

    @property
    def num_pairs_bound(self) -> int | None:
        """A bound on the number of entries that is cheap to know; None when the mask is not sparse."""
        return None

    @property
    def num_pairs_estimate(self) -> int | None:
        """About how many entries there are; None when the mask is not sparse."""
        return self.num_pairs_bound

    @property
    def num_inner_rows(self) -> int:
        """Rows of the largest intermediate result of a product."""
        return max(self.num_queries, self.num_keys)

    @property
    def structure(self) -> str:
        """A name of the pattern; another pattern has another name."""
        return self._structure

    @property
    def key_groups(self) -> Tensor | None:
        """Which graph of a batch every key belongs to, [N_k]; None when there is one graph."""
        return None

    def pattern(self) -> Pattern:
        """Where a sparse mask has entries, [H * N_q, H * N_k]; does not depend on parameters."""
        raise ValueError(f"{type(self).__name__} has no sparse entries. Use strategy 'features' or 'dense'.")

    def entries(self) -> Entries:
        """The entries of a sparse mask, on its :meth:`pattern`, for reading only: a mask may keep them."""
        raise ValueError(f"{type(self).__name__} has no sparse entries. Use strategy 'features' or 'dense'.")

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
        """Attention over the entries of a sparse mask, heads joined with nodes.

        Args:
            q: Queries, or their features, [B, H * N_q, M].
            k: Keys, or their features, [B, H * N_k, M].
            v: Values, [B, H * N_k, D].
            magnitudes: Whether the normaliser takes the entries of :meth:`magnitude`, or those of the mask.
            absolute: Whether it takes absolute features.
            normalize: Whether there is a normaliser.
            softmax: Whether to take exponentials of scores.
            is_key: Which keys count in softmax attention, [B, H * N_k]. Default: all.

        Returns:
            [B, H * N_q, D].
        """
        pattern, values, sizes = self.entries()
        own = None if sizes is values or not magnitudes else sizes.to(v.dtype)
        flags = {"softmax": softmax, "absolute": absolute, "normalize": normalize}
        return pair_attention(pattern, values.to(v.dtype), own, q, k, v, is_key=is_key, **flags)

    def product(self) -> Callable[[Tensor], Tensor]:
        """The product as a function, with all that depends on parameters alone computed once."""
        return self.matmul

    def on(self, graph: Graph, features: Any = None) -> Self:
        """The same parameters on another graph."""
        raise ValueError(
            f"{type(self).__name__} belongs to no graph, so it cannot be moved to {graph}"
            f"{'' if features is None else ' with features'}. Build a new mask."
        )

    def select(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Mask:
        """The rows ``query_nodes`` and columns ``key_nodes``; None keeps all."""
        from topomask.masks.selected import SelectedMask

        return SelectedMask(self, query_nodes, key_nodes)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """The entries of M in these rows and columns, [H, n_q, n_k]; None keeps all."""
        from topomask.masks.submatrix import submatrix_by_products

        return submatrix_by_products(self, query_nodes, key_nodes)

    def attend(self, phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
        r"""Unnormalised masked linear attention :math:`\sum_j M_{ij}\,\phi(q_i)^\top\phi(k_j)\,v_j`.

        Goes through products with the mask, some features at a time, so memory stays that of the inputs.

        Args:
            phi_q: Query features, [..., H, N_q, M].
            phi_k: Key features, [..., H, N_k, M].
            v: Values, [..., H, N_k, D].

        Returns:
            [..., H, N_q, D].
        """
        product = self.product()
        num_features, width = phi_q.shape[-1], v.shape[-1]

        def part(phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
            spread = phi_k.unsqueeze(-1) * v.unsqueeze(-2)  # [..., N_k, chunk, D]
            mixed = product(spread.flatten(-2)).unflatten(-1, spread.shape[-2:])
            return torch.einsum("...ia,...iad->...id", phi_q, mixed)

        widest = phi_q.shape[:-2].numel() * self.num_inner_rows * max(1, width)
        step = max(1, min(num_features, ELEMENTS_PER_CHUNK // max(1, widest)))
        if step == num_features:
            return part(phi_q, phi_k, v)
        out = v.new_zeros(*phi_q.shape[:-1], width)
        for start in range(0, num_features, step):
            chunk = slice(start, start + step)
            # Recomputed in the backward pass: kept products would take [N, M, D] numbers.
            out = out + checkpoint(part, phi_q[..., chunk], phi_k[..., chunk], v, use_reentrant=False)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """M x, as ``mask @ x``; inside ``torch.compile``, which does not know the operator, write ``mask(x)``."""
        if x.ndim < 3 or x.shape[-2] != self.num_keys or (self.num_heads > 1 and x.shape[-3] != self.num_heads):
            raise ValueError(
                f"`x` must have shape [..., num_heads={self.num_heads}, num_keys={self.num_keys}, C], "
                f"but has shape {tuple(x.shape)}. Put heads before nodes with x.transpose(-2, -3)."
            )
        with torch.autocast(x.device.type, enabled=False):
            return self.matmul(x)

    def __matmul__(self, x: Tensor) -> Tensor:
        return self(x)

    # NumPy leaves ``array * mask`` to the mask.
    __array_ufunc__ = None

    def __add__(self, other: Mask) -> Mask:
        from topomask.masks.sum import add

        return add(self, other)

    def __radd__(self, other: Any) -> Mask:
        from topomask.masks.sum import add

        return add(other, self)

    def __sub__(self, other: Mask) -> Mask:
        from topomask.masks.sum import add

        return add(self, other, -1.0)

    def __rsub__(self, other: Any) -> Mask:
        from topomask.masks.sum import add

        return add(other, self, -1.0)

    def __mul__(self, weight: Any) -> Mask:
        from topomask.masks.sum import SumMask

        return SumMask([self], [weight])

    __rmul__ = __mul__

    def __neg__(self) -> Mask:
        return self * -1.0

    def _view(self) -> Self:
        """A mask with the same parameters and modules whose other attributes can be set apart."""
        view = type(self).__new__(type(self))
        view.__dict__.update(self.__dict__)
        view._kept = {}
        for registry in ("_parameters", "_buffers", "_modules"):
            view.__dict__[registry] = dict(self.__dict__[registry])
        return view

    def _magnitude_view(self) -> Self:
        """A view marked as the magnitude of this mask. The two keep what they compute in one place."""
        view = self._view()
        view._is_magnitude, view._kept = True, self._kept
        return view

    def _state(self) -> list[Tensor]:
        """All that the entries depend on apart from the graph."""
        return [*self.parameters(), *self.buffers()]

    def _is_frozen(self) -> bool:
        """Whether results can be kept: no gradient is asked for, and values can be compared."""
        if torch.compiler.is_compiling():
            return False
        learns = torch.is_grad_enabled()
        return not any(x.is_meta or x.is_inference() or (learns and x.requires_grad) for x in self._state())

    def _keep(self, name: str, make: Callable[[], _Kept]) -> _Kept:
        """What ``make`` gives, computed again only when parameters or graph have changed, or a gradient is wanted."""
        if not self._is_frozen():
            return make()
        state, key = [x.detach() for x in self._state()], (name, self._is_magnitude)
        kept = self._kept.get(key)
        if kept is None or kept[0] != self.structure or not _same(kept[1], state):
            with torch.inference_mode(False), torch.no_grad():
                kept = self._kept[key] = self.structure, [x.clone() for x in state], make()
        return kept[2]

    def __getstate__(self) -> dict[str, Any]:
        """Without what is kept: copies compute it again."""
        return self.__dict__ | {"_kept": {}}

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"num_heads={self.num_heads}, num_queries={self.num_queries}, num_keys={self.num_keys}"


def _same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )


def sparse_multiply(pattern: Pattern, values: Tensor, x: Tensor, num_heads: int, transpose: bool = False) -> Tensor:
    """A matrix that is block-diagonal over ``num_heads`` heads, or its transpose, times x [..., H, N, C]."""
    first = -2 if num_heads == 1 else -3
    moved = x.movedim(tuple(range(first, -1)), tuple(range(-1 - first)))  # heads and nodes, or nodes, come first
    rest = moved.shape[-1 - first :]
    dtype = torch.promote_types(x.dtype, values.dtype)
    # Not pattern.shape: the compiler knows no properties of a tuple that it holds for a constant.
    pointers = (pattern.column_ptr, pattern.row_ptr) if transpose else (pattern.row_ptr, pattern.column_ptr)
    num_rows, num_columns = (len(ptr) - 1 for ptr in pointers)
    flat = spmm(pattern, values.to(dtype), moved.reshape(num_columns, rest.numel()).to(dtype), transpose)
    heads = () if num_heads == 1 else (num_heads,)
    out = flat.reshape(*heads, num_rows // num_heads, *rest)
    return out.movedim(tuple(range(-1 - first)), tuple(range(first, -1))).to(x.dtype)
