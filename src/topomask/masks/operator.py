"""A mask on a graph: a linear operator on the tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from topomask.masks.entries import Entries, PairSums, attend_entries
from topomask.ops.derived import plainly
from topomask.ops.pair_attention import TileWork
from topomask.ops.quotient import Attended
from topomask.ops.registration import has_values, is_transformed

if TYPE_CHECKING:
    from topomask.graph import Graph
    from topomask.masks.mask import Mask

# What the sum of masked values is divided by, see `topomask.masked_attention`.
Normalizer = Literal["absolute", "signed", "none"]

# Numbers in the product of one chunk of features when attention goes through products with the mask.
ELEMENTS_PER_CHUNK = 1 << 24
# Entries of a dense mask that are kept while no parameter changes.
MAX_KEPT_ENTRIES = 1 << 24
# Entries are products of numbers; those beyond this, or below its inverse, are taken in float64.
_MAX_FACTOR = 2.0**40

_Kept = TypeVar("_Kept")


class Cost(NamedTuple):
    """What an operator costs: counted work over all heads, which is all that the plan of attention looks at."""

    # Multiply-adds of one product with one column.
    product: int
    # Multiply-adds to form the dense matrix, apart from writing it.
    dense: int
    # Multiply-adds to compute the entries before they are used; 0 where they are at hand.
    refresh: int = 0
    # About how many entries a sparse operator has, and at most; None for one that is not sparse.
    pairs: int | None = None
    max_pairs: int | None = None
    # Attention over pairs in tiles; None where it goes row by row, or that is not known.
    tiles: TileWork | None = None
    # r of an operator that attends as plain linear attention with r times the features; None for any other.
    rank: int | None = None
    # Rows of the largest intermediate result of a product, where they are more than queries and keys.
    inner_rows: int = 0


def once(method: Callable[[Any], _Kept]) -> Callable[[Any], _Kept]:
    """A method of an operator whose result is computed once where the operator is kept."""

    @wraps(method)
    def find(self: Any) -> _Kept:
        return self._once(method.__name__, lambda: method(self))

    return find


def _guarded(method: Callable[..., _Kept]) -> Callable[..., _Kept]:
    """A method of an operator that raises if a parameter was changed since the operator was made."""

    @wraps(method)
    def check(self: Any, *arguments: Any) -> _Kept:
        self._check_unchanged()
        return method(self, *arguments)

    return check


class Operator(ABC):
    r"""A mask on a graph: a linear operator M on the tokens, per head, with the values that its parameters have now.

    ``mask.on(graph)`` makes one, in every forward pass: it is cheap. It is a snapshot, and raises when it is used after
    a parameter of its mask has changed.

    A subclass writes :meth:`matmul` and :meth:`magnitude`. Everything else follows from these, and may be replaced by
    something faster: :meth:`entries` and :meth:`cost` where the operator is sparse, :meth:`to_dense` and
    :meth:`submatrix` where entries can be read off, :meth:`rmatmul` where the transposed product is known or the
    operations of :meth:`matmul` have no second derivative, :meth:`attend` where attention needs no products.

    Args:
        mask: The mask that it is made by: it has its heads, device and precision.
        graph: The graph that the tokens are the nodes of.
        num_tokens: Tokens, where there is no graph.

    Attributes:
        name: Of the mask, for errors.
        num_heads: Heads H; an operator with one head serves any number of heads.
        num_queries: Rows N_q.
        num_keys: Columns N_k.
        num_graphs: Graphs of a batch.
        key_groups: Which graph of a batch every key belongs to, [N_k]; None for one graph.
        dtype: Precision of its entries, float32 at least.
        device: Where they are.
        default_normalizer: What attention divides by unless it is told.
        is_all_ones: Whether every entry is 1, so that attention is plain.
    """

    name: str
    num_heads: int
    num_queries: int
    num_keys: int
    num_graphs: int = 1
    key_groups: Tensor | None = None
    dtype: torch.dtype
    device: torch.device
    default_normalizer: Normalizer = "absolute"
    is_all_ones: bool = False

    # Whether what is computed of it is kept: no parameter changes, and no gradient is asked for.
    _is_kept: bool = False
    # Whether entries leave the range of float32, so that attention has to be computed in float64.
    _needs_float64: bool = False
    _watched: tuple[tuple[Tensor, int], ...] = ()

    def __init__(self, mask: Mask, graph: Graph | None = None, num_tokens: int | None = None) -> None:
        self.name, self.num_heads = type(mask).__name__, mask.num_heads
        self.dtype, self.device = mask.kind
        self.default_normalizer = mask.default_normalizer
        if graph is not None:
            num_tokens, self.num_graphs = graph.num_nodes, graph.num_graphs
            self.key_groups = graph.groups_on(self.device)
        if num_tokens is None:
            raise ValueError(f"The operator of {self.name} has no size. Pass the graph, or num_tokens.")
        self.num_queries = self.num_keys = num_tokens
        self._watch(mask._state(), ())

    def __init_subclass__(cls, **options: Any) -> None:
        """Let what subclasses write instead of the defaults raise where a parameter has changed, too."""
        super().__init_subclass__(**options)
        for name in ("rmatmul", "entries", "to_dense", "submatrix", "magnitude"):
            if name in cls.__dict__:
                setattr(cls, name, _guarded(cls.__dict__[name]))

    def _widen(self, *factors: Tensor) -> bool:
        """Have entries in float64 where products of these numbers may leave float32; whether that is so."""
        for factor in factors:
            if factor.numel() and factor.device.type == "cpu" and has_values(factor):
                largest = factor.detach().abs().amax().item()
                self._needs_float64 |= largest > _MAX_FACTOR or 0 < largest < 1 / _MAX_FACTOR
        if self._needs_float64:
            self.dtype = torch.float64
        return self._needs_float64

    @abstractmethod
    def matmul(self, x: Tensor) -> Tensor:
        """M x for x [..., H, N_k, C] in float32 or float64."""

    @abstractmethod
    def magnitude(self) -> Operator:
        """An operator that dominates the absolute entries of M; this one where nothing is negative."""

    @_guarded
    def rmatmul(self, x: Tensor) -> Tensor:
        """M^T x for x [..., H, N_q, C]: by default, the derivative of :meth:`matmul`.

        Inside ``torch.compile`` the default serves products that are made of torch's own operations.
        """
        return _transposed(self, x)

    def product_noise(self, x: Tensor) -> Tensor | None:  # noqa: ARG002
        """A bound on the rounding error of every entry of a product with x [..., H, N_k, C].

        One for all rows, [..., H, 1, C], or one per row, [..., H, N_q, C]. Attention treats a normaliser below this
        bound as zero. None where an entry that is 0 comes out as 0. For a square operator it also holds for
        :meth:`rmatmul`.
        """
        return None

    @_guarded
    def entries(self) -> Entries:
        """The entries of a sparse operator, for reading only: they may be kept."""
        raise ValueError(f"{self.name} has no sparse entries. Use strategy 'product' or 'dense'.")

    @_guarded
    def to_dense(self) -> Tensor:
        """M as a dense tensor, [H, N_q, N_k]: by default, products with unit vectors."""
        return self.submatrix(None, None)

    @_guarded
    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """The entries of M in these rows and columns, [H, n_q, n_k]; None keeps all."""
        from topomask.masks.submatrix import submatrix_by_products

        return submatrix_by_products(self, query_nodes, key_nodes)

    def select(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Operator:
        """The rows ``query_nodes`` and columns ``key_nodes``; None keeps all."""
        from topomask.masks.selected import SelectedOperator

        return SelectedOperator(self, query_nodes, key_nodes)

    def cost(self) -> Cost:
        """What it costs, for the plan of attention."""
        product = 16 * self.num_heads * max(self.num_queries, self.num_keys)
        return Cost(product, dense=product * self.num_keys, refresh=0 if self._is_kept else product)

    def attend(self, phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
        r"""Unnormalised masked linear attention :math:`\sum_j M_{ij}\,\phi(q_i)^\top\phi(k_j)\,v_j`.

        Goes through products, some features at a time, so memory stays that of the inputs.

        Args:
            phi_q: Query features, [..., H, N_q, M].
            phi_k: Key features, [..., H, N_k, M].
            v: Values, [..., H, N_k, D].

        Returns:
            [..., H, N_q, D].
        """
        num_features, width = phi_q.shape[-1], v.shape[-1]

        def part(phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
            spread = phi_k.unsqueeze(-1) * v.unsqueeze(-2)  # [..., N_k, chunk, D]
            mixed = self.matmul(spread.flatten(-2)).to(v.dtype).unflatten(-1, spread.shape[-2:])
            return torch.einsum("...ia,...iad->...id", phi_q, mixed)

        inner_rows = max(self.cost().inner_rows, self.num_queries, self.num_keys)
        widest = phi_q.shape[:-2].numel() * inner_rows * max(1, width)
        step = max(1, min(num_features, ELEMENTS_PER_CHUNK // max(1, widest)))
        if step >= num_features:
            return part(phi_q, phi_k, v)
        out = v.new_zeros(*phi_q.shape[:-1], width)
        transformed = is_transformed()
        for start in range(0, num_features, step):
            chunk = (phi_q[..., start : start + step], phi_k[..., start : start + step], v)
            # Recomputed in the backward pass: kept products would take [N, M, D] numbers. Transforms know no hooks.
            out = out + (part(*chunk) if transformed else checkpoint(part, *chunk, use_reentrant=False))
        return out

    def attend_pairs(self, q: Tensor, k: Tensor, v: Tensor, sums: PairSums, is_key: Tensor | None = None) -> Attended:
        """Attention over the entries of a sparse operator.

        Args:
            q: Queries, or their features, [B, H, N_q, M].
            k: Keys, or their features, [B, H, N_k, M].
            v: Values, [B, H, N_k, D].
            sums: What is summed over pairs.
            is_key: Which keys count in softmax attention, [B, H, N_k]. Default: all.

        Returns:
            The result, [B, H, N_q, D], and its normaliser.
        """
        return attend_entries(self.entries(), self.num_heads, q, k, v, sums, is_key)

    def __matmul__(self, x: Tensor) -> Tensor:
        """M x, for x [..., H, N_k, C] in any precision; sums are taken in at least float32."""
        self._check_unchanged()
        if x.ndim < 3 or x.shape[-2] != self.num_keys or (self.num_heads > 1 and x.shape[-3] != self.num_heads):
            raise ValueError(
                f"`x` must have shape [..., num_heads={self.num_heads}, num_keys={self.num_keys}, C], "
                f"but has shape {tuple(x.shape)}. Put heads before nodes with x.transpose(-2, -3)."
            )
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            return self.matmul(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)

    # Inside ``torch.compile``, which does not know the operator @, write ``operator(x)``.
    __call__ = __matmul__

    def __repr__(self) -> str:
        size = f"num_heads={self.num_heads}, num_queries={self.num_queries}, num_keys={self.num_keys}"
        return f"{type(self).__name__}({size})"

    def _adopt(self, other: Operator, num_queries: int, num_keys: int) -> None:
        """Be of the kind of another operator that this one is made of, with other queries and keys."""
        self.name = other.name
        self.num_heads, self.num_graphs, self.key_groups = other.num_heads, other.num_graphs, other.key_groups
        self.dtype, self.device = other.dtype, other.device
        self.default_normalizer, self._needs_float64 = other.default_normalizer, other._needs_float64
        self._is_kept, self._watched = other._is_kept, other._watched
        self.num_queries, self.num_keys = num_queries, num_keys

    def _copy(self, **changes: Any) -> Self:
        """The same operator but for some attributes; what is kept of this one is not kept of it."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__ | changes)
        other.__dict__.pop("_kept", None)
        return other

    def _once(self, name: Any, make: Callable[[], _Kept]) -> _Kept:
        """What ``make`` gives, computed once where the operator is kept.

        In training nothing is kept: what one layer computed inside a checkpoint must not be found by another.
        """
        if not self._is_kept:
            return make()
        kept: dict[Any, Any] = self.__dict__.setdefault("_kept", {})
        if name not in kept:
            with plainly():
                kept[name] = make()
        return kept[name]

    def _dense_weights(self) -> Tensor:
        """M as :meth:`to_dense` gives it, for reading only: kept where it is small."""
        is_small = self.num_heads * self.num_queries * self.num_keys <= MAX_KEPT_ENTRIES
        return self._once("dense", self.to_dense) if is_small else self.to_dense()

    def _watch(self, state: Sequence[Tensor], parts: Sequence[Operator]) -> None:
        """Remember in which state tensors are that it depends on, and operators that it is made of."""
        if not torch.compiler.is_compiling():
            self._watched = tuple((x, x._version) for x in state if not x.is_inference())
            for part in parts:
                self._watched += part._watched

    def _check_unchanged(self) -> None:
        """A RuntimeError if a parameter was changed since the operator was made."""
        if torch.compiler.is_compiling():
            return
        for tensor, version in self._watched:
            if tensor._version != version:
                raise RuntimeError(
                    f"A parameter of the mask has changed since this {type(self).__name__} was made. An operator is a "
                    "snapshot: call mask.on(graph) again, in every forward pass."
                )


def _transposed(operator: Operator, x: Tensor) -> Tensor:
    """The derivative of <M z, x> in z, which is M^T x, with gradients of its own where they are asked for."""
    shape = (*x.shape[:-2], operator.num_keys, x.shape[-1])
    if torch.compiler.is_compiling() or is_transformed():
        zeros = torch.zeros(shape, dtype=x.dtype, device=x.device)
        return torch.func.vjp(operator.matmul, zeros)[1](x)[0]
    learns = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        cotangent = x.clone() if x.is_inference() else x
        z = torch.zeros(shape, dtype=x.dtype, device=x.device, requires_grad=True)
        product = operator.matmul(z)
        if not product.requires_grad:
            return torch.zeros_like(z.detach())
        (found,) = torch.autograd.grad(product, z, cotangent, create_graph=learns)
        return found if learns else found.detach()
