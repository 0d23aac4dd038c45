"""Operators: a mask on a graph, as a linear operator on the tokens."""

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

# Elements in one chunk of features when attention uses products with the mask.
ELEMENTS_PER_CHUNK = 1 << 24
# A dense mask with at most this many entries is cached while no parameter changes.
MAX_KEPT_ENTRIES = 1 << 24
# Entries are products of factors; factors above this, or below its inverse, are computed in float64.
_MAX_FACTOR = 2.0**40

_Kept = TypeVar("_Kept")


class Cost(NamedTuple):
    """The cost of an operator: counted work over all heads. The plan of attention depends on nothing else."""

    product: int  # multiply-adds of one product with one column
    dense: int  # multiply-adds to compute the dense matrix, apart from writing it
    refresh: int = 0  # multiply-adds to compute the entries before they are used; 0 if they are available already
    pairs: int | None = None  # estimated number of entries of a sparse operator; None if it is not sparse
    max_pairs: int | None = None  # upper bound on that number
    tiles: TileWork | None = None  # work of attention over pairs in tiles; None if it goes row by row, or if unknown
    rank: int | None = None  # r if attention is plain linear attention with r times the features
    inner_rows: int = 0  # rows of the largest intermediate result of a product, if more than queries and keys
    passes: int = 1  # how often a product goes through all of its numbers: once per step of an iteration


def once(method: Callable[[Any], _Kept]) -> Callable[[Any], _Kept]:
    """Cache the result of an operator's method while the operator is cached."""

    @wraps(method)
    def find(self: Any) -> _Kept:
        return self._once(method.__name__, lambda: method(self))

    return find


def _guarded(method: Callable[..., _Kept]) -> Callable[..., _Kept]:
    """Make an operator's method raise if a parameter has changed since the operator was made."""

    @wraps(method)
    def check(self: Any, *arguments: Any) -> _Kept:
        self._check_unchanged()
        return method(self, *arguments)

    return check


class Operator(ABC):
    r"""A mask on a graph: a linear operator M on the tokens, per head, with the current values of its parameters.

    ``mask.on(graph)`` makes one in every forward pass, which is cheap. An operator is a snapshot: it raises if it is
    used after a parameter of its mask has changed.

    A subclass implements :meth:`matmul` and :meth:`magnitude`. All other methods have defaults, which it can override
    with faster ones: :meth:`entries` and :meth:`cost` if the operator is sparse, :meth:`to_dense` and :meth:`submatrix`
    if entries can be read directly, :meth:`rmatmul` if the transposed product is known or :meth:`matmul` is not twice
    differentiable, and :meth:`attend` if attention needs no products.

    Args:
        mask: The mask, from which the operator takes its heads, device and precision.
        graph: The graph whose nodes are the tokens.
        num_tokens: Number of tokens, if there is no graph.

    Attributes:
        name: Name of the mask, for errors.
        num_heads: Heads H; an operator with one head works with any number of heads.
        num_queries: Rows N_q.
        num_keys: Columns N_k.
        num_graphs: Graphs in the batch.
        key_groups: The graph of every key in a batch, [N_k]; None for one graph.
        dtype: Precision of the entries, at least float32.
        device: Device of the entries.
        default_normalizer: What attention divides by unless told otherwise.
        is_all_ones: Whether every entry is 1, so that attention is unmasked.
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

    # Whether results are cached: no parameter changes, and no gradient is needed.
    _is_kept: bool = False
    # Whether entries exceed the range of float32, so that attention has to be computed in float64.
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
            raise ValueError(f"The operator of {self.name} has no size. Pass `graph` or `num_tokens`.")
        self.num_queries = self.num_keys = num_tokens
        self._watch(mask._state(), ())

    def __init_subclass__(cls, **options: Any) -> None:
        """Make methods that a subclass overrides raise after a parameter has changed, like the defaults."""
        super().__init_subclass__(**options)
        for name in ("rmatmul", "entries", "to_dense", "submatrix", "magnitude"):
            if name in cls.__dict__:
                setattr(cls, name, _guarded(cls.__dict__[name]))

    def _widen(self, *factors: Tensor) -> bool:
        """Use float64 if products of these factors may exceed the range of float32, and return whether they may."""
        for factor in factors:
            if factor.numel() and factor.device.type == "cpu" and has_values(factor):
                largest = factor.detach().abs().amax().item()
                self._needs_float64 |= largest > _MAX_FACTOR or 0 < largest < 1 / _MAX_FACTOR
        if self._needs_float64:
            self.dtype = torch.float64
        return self._needs_float64

    @abstractmethod
    def matmul(self, x: Tensor) -> Tensor:
        """Return M x for x [..., H, N_k, C] in float32 or float64."""

    @abstractmethod
    def magnitude(self) -> Operator:
        """Return an operator that dominates the absolute entries of M: this operator if nothing is negative."""

    @_guarded
    def rmatmul(self, x: Tensor) -> Tensor:
        """Return M^T x for x [..., H, N_q, C]; by default, the derivative of :meth:`matmul`.

        Inside ``torch.compile``, the default requires that :meth:`matmul` uses torch operations only.
        """
        return _transposed(self, x)

    def product_noise(self, x: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return a bound on the rounding error of every entry of a product with x [..., H, N_k, C].

        The bound holds for all rows, [..., H, 1, C], or per row, [..., H, N_q, C]. Attention treats a normaliser below
        this bound as zero. None means that an exact 0 is computed as 0. For a square operator, the bound also holds for
        :meth:`rmatmul`.
        """
        return None

    @_guarded
    def entries(self) -> Entries:
        """Return the entries of a sparse operator. They may be cached: do not write to them."""
        raise ValueError(f"{self.name} has no sparse entries. Use strategy='product' or strategy='dense'.")

    @_guarded
    def to_dense(self) -> Tensor:
        """Return M as a dense tensor, [H, N_q, N_k]; by default, from products with unit vectors."""
        return self.submatrix(None, None)

    @_guarded
    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """Return the entries of M in these rows and columns, [H, n_q, n_k]; None selects all."""
        from topomask.masks.selected import submatrix_by_products

        return submatrix_by_products(self, query_nodes, key_nodes)

    def select(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Operator:
        """Return the operator of the rows ``query_nodes`` and columns ``key_nodes``; None selects all."""
        from topomask.masks.selected import SelectedOperator

        return SelectedOperator(self, query_nodes, key_nodes)

    def cost(self) -> Cost:
        """Return the cost of the operator, for the plan of attention."""
        product = 16 * self.num_heads * max(self.num_queries, self.num_keys)
        return Cost(product, dense=product * self.num_keys, refresh=0 if self._is_kept else product)

    def attend(self, phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
        r"""Unnormalised masked linear attention :math:`\sum_j M_{ij}\,\phi(q_i)^\top\phi(k_j)\,v_j`.

        By default it uses products with M, a few features at a time, so it needs no more memory than the inputs.

        Args:
            phi_q: Query features, [..., H, N_q, M].
            phi_k: Key features, [..., H, N_k, M].
            v: Values, [..., H, N_k, D].

        Returns:
            [..., H, N_q, D].
        """

        def part(phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
            spread = phi_k.unsqueeze(-1) * v.unsqueeze(-2)  # [..., N_k, chunk, D]
            mixed = self.matmul(spread.flatten(-2)).to(v.dtype).unflatten(-1, spread.shape[-2:])
            return torch.einsum("...ia,...iad->...id", phi_q, mixed)

        inner_rows = max(self.cost().inner_rows, self.num_queries, self.num_keys)
        widest = phi_q.shape[:-2].numel() * inner_rows * max(1, v.shape[-1])
        return sum_of_chunks(part, (phi_q, phi_k), (v,), ELEMENTS_PER_CHUNK // max(1, widest))

    def attend_pairs(self, q: Tensor, k: Tensor, v: Tensor, sums: PairSums, is_key: Tensor | None = None) -> Attended:
        """Attention over the entries of a sparse operator.

        Args:
            q: Queries, or their features, [B, H, N_q, M].
            k: Keys, or their features, [B, H, N_k, M].
            v: Values, [B, H, N_k, D].
            sums: What to sum over pairs.
            is_key: Which keys count in softmax attention, [B, H, N_k]. Default: all.

        Returns:
            The attended values, [B, H, N_q, D], and the normaliser.
        """
        return attend_entries(self.entries(), self.num_heads, q, k, v, sums, is_key)

    def __matmul__(self, x: Tensor) -> Tensor:
        """Return M x for x [..., H, N_k, C] in any precision. Sums are accumulated in at least float32."""
        self._check_unchanged()
        if x.ndim < 3 or x.shape[-2] != self.num_keys or (self.num_heads > 1 and x.shape[-3] != self.num_heads):
            raise ValueError(
                f"`x` must have shape [..., num_heads={self.num_heads}, num_keys={self.num_keys}, C], "
                f"but has shape {tuple(x.shape)}. Put heads before nodes with x.transpose(-2, -3)."
            )
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            return self.matmul(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)

    # Inside ``torch.compile``, which does not support @ here, write ``operator(x)``.
    __call__ = __matmul__

    def __repr__(self) -> str:
        size = f"num_heads={self.num_heads}, num_queries={self.num_queries}, num_keys={self.num_keys}"
        return f"{type(self).__name__}({size})"

    def _adopt(self, other: Operator, num_queries: int, num_keys: int) -> None:
        """Copy the attributes of an operator that this one is built from, with other queries and keys."""
        self.name = other.name
        self.num_heads, self.num_graphs, self.key_groups = other.num_heads, other.num_graphs, other.key_groups
        self.dtype, self.device = other.dtype, other.device
        self.default_normalizer, self._needs_float64 = other.default_normalizer, other._needs_float64
        self._is_kept, self._watched = other._is_kept, other._watched
        self.num_queries, self.num_keys = num_queries, num_keys

    def _copy(self, **changes: Any) -> Self:
        """Return a copy with some attributes changed and an empty cache."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__ | changes)
        other.__dict__.pop("_kept", None)
        return other

    def _once(self, name: Any, make: Callable[[], _Kept]) -> _Kept:
        """Return ``make()``, cached if the operator is cached.

        Nothing is cached in training: a layer must not reuse what another computed inside a checkpoint.
        """
        if not self._is_kept:
            return make()
        kept: dict[Any, Any] = self.__dict__.setdefault("_kept", {})
        if name not in kept:
            with plainly():
                kept[name] = make()
        return kept[name]

    def _dense_weights(self) -> Tensor:
        """Return :meth:`to_dense`, cached if it is small: do not write to it."""
        is_small = self.num_heads * self.num_queries * self.num_keys <= MAX_KEPT_ENTRIES
        return self._once("dense", self.to_dense) if is_small else self.to_dense()

    def _watch(self, state: Sequence[Tensor], parts: Sequence[Operator]) -> None:
        """Remember the versions of the tensors that this operator and its parts depend on."""
        if not torch.compiler.is_compiling():
            self._watched = tuple((x, x._version) for x in state if not x.is_inference())
            for part in parts:
                self._watched += part._watched

    def _check_unchanged(self) -> None:
        """Raise if a parameter has changed since the operator was made."""
        if torch.compiler.is_compiling():
            return
        for tensor, version in self._watched:
            if tensor._version != version:
                raise RuntimeError(
                    f"A parameter of the mask has changed since this {type(self).__name__} was made. An operator is a "
                    "snapshot: call mask.on(graph) again in every forward pass."
                )


def all_positive(x: Tensor) -> bool:
    """Whether all values are known to be positive. On other devices, reading them would wait for the device."""
    return has_values(x) and x.device.type == "cpu" and bool((x.detach() > 0).all())


def sum_of_chunks(
    part: Callable[..., Tensor], split: tuple[Tensor, ...], whole: tuple[Tensor, ...], columns: int
) -> Tensor:
    """Return ``part(*split, *whole)``, a sum over the columns of ``split``, computed for a few columns at a time."""
    size = split[0].shape[-1]
    step = max(1, min(size, columns))
    if step >= size:
        return part(*split, *whole)
    total, transformed = None, is_transformed()
    for chunk in zip(*(x.split(step, dim=-1) for x in split), strict=True):
        # Recomputed in the backward pass: saved products would take [N, M, D] numbers. Transforms reject hooks.
        found = part(*chunk, *whole) if transformed else checkpoint(part, *chunk, *whole, use_reentrant=False)
        total = found if total is None else total + found
    assert total is not None
    return total


def _transposed(operator: Operator, x: Tensor) -> Tensor:
    """Return M^T x, the derivative of <M z, x> with respect to z, itself differentiable if gradients are enabled."""
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
