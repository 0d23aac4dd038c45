"""A mask: settings and learnable parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from topomask.graph import Graph, path_graph
from topomask.graph.records import Recipe, Record, find_record
from topomask.masks.kept import keep
from topomask.masks.operator import Normalizer, Operator


class Mask(nn.Module, ABC):
    r"""Settings and learnable parameters of a mask; :meth:`on` makes it an operator on the nodes of a graph.

    Parameters belong to the mask, the graph is data: the same mask serves any graph, a batch of graphs, or one that is
    built in the forward pass. A mask that is built with a graph has that one as its default, so that ``mask @ x``,
    ``mask.to_dense()`` and ``masked_attention(q, k, v, mask)`` need no other.

    A mask of your own has parameters, as any module, and one method, :meth:`on`, which returns an
    :class:`topomask.Operator` with their values. That has two methods: the product, and an operator that dominates it.
    Gradients, the transposed product, attention in every way, batches of graphs and ``torch.compile`` follow from them;
    ``tm.testing.check_mask`` tries them all. Personalised PageRank, say:

    Example:
        >>> import torch, topomask as tm
        >>> class PageRankMask(tm.Mask):
        ...     def __init__(self, graph=None, num_heads=1):
        ...         super().__init__(graph, num_heads)
        ...         self.logit = torch.nn.Parameter(torch.zeros(num_heads))
        ...
        ...     def on(self, graph=None, walks=None):
        ...         return PageRank(self, self.graph_or(graph, walks))
        >>> class PageRank(tm.Operator):
        ...     def __init__(self, mask, graph):
        ...         super().__init__(mask, graph)
        ...         self.stay, self.step = mask.logit.sigmoid()[:, None, None], graph.matrix("row", *mask.kind)
        ...
        ...     def matmul(self, x):
        ...         out = x
        ...         for _ in range(20):
        ...             out = self.stay * x + (1 - self.stay) * self.step.multiply(out)
        ...         return out
        ...
        ...     def magnitude(self):
        ...         return self  # nothing is negative
        >>> tm.testing.check_mask(PageRankMask(tm.grid_graph(2, 3)), compile=False)

    Args:
        graph: The graph that the mask is on unless another is given.
        num_heads: Heads H; a mask with one head serves any number of heads.
    """

    default_normalizer: Normalizer = "absolute"
    # Whether `on` takes a graph.
    takes_graph: bool = True
    _anchor: Tensor

    def __init__(self, graph: Graph | None = None, num_heads: int = 1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self._graph = None if graph is None else _as_graph(graph)
        # Follows the module to devices and precisions, whether or not there are parameters.
        self.register_buffer("_anchor", torch.empty(0), persistent=False)

    @abstractmethod
    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """The operator on a graph, with the values that parameters have now.

        Args:
            graph: The graph, or a batch of graphs. Default: the mask's own.
            walks: Walks on it, for masks that walk; see :class:`topomask.WalkMask`.
        """

    @property
    def graph(self) -> Graph | None:
        """The graph that the mask is on unless another is given."""
        return self._graph

    @graph.setter
    def graph(self, graph: Graph | None) -> None:
        if graph is not None and not self.takes_graph:
            raise ValueError(f"{type(self).__name__} belongs to no graph. Build a new mask for other tokens.")
        self._graph = None if graph is None else _as_graph(graph)

    @property
    def kind(self) -> tuple[torch.dtype, torch.device]:
        """The precision of operators, float32 at least, and their device."""
        tensor = next((x for x in self.parameters() if x.is_floating_point()), self._anchor)
        return torch.promote_types(tensor.dtype, torch.float32), tensor.device

    def graph_or(self, graph: Graph | None, walks: Any = None) -> Graph:
        """The graph, or the mask's own where it is None; a ValueError where there is none, or walks are given."""
        if walks is not None:
            raise ValueError(f"`walks` were given, but {type(self).__name__} does not walk. Leave them out.")
        graph = self._graph if graph is None else graph
        if graph is None:
            raise ValueError(
                f"{type(self).__name__} has no graph of its own. Build it with one, or call mask.on(graph)."
            )
        return _as_graph(graph)

    def to_dense(self) -> Tensor:
        """M on the mask's own graph as a dense tensor, [H, N_q, N_k], for small graphs and tests."""
        return self.on().to_dense()

    def magnitude(self) -> Operator:
        """The operator that dominates the absolute entries, on the mask's own graph: for the safe normaliser."""
        return self.on().magnitude()

    def forward(self, x: Tensor) -> Tensor:
        """M x on the mask's own graph, as ``mask @ x``; inside ``torch.compile``, write ``mask(x)``."""
        return self.on()(x)

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

    def _state(self) -> list[Tensor]:
        """All that operators depend on apart from the graph."""
        return [*self.parameters(), *(buffer for buffer in self.buffers() if buffer.numel())]

    def _without_graph(self, make: Callable[[], Operator], graph: Any, walks: Any) -> Operator:
        """The operator of a mask that belongs to no graph; a ValueError where one is given."""
        if graph is not None:
            raise ValueError(
                f"{type(self).__name__} belongs to no graph, so it cannot be moved to {graph}. Build a new mask."
            )
        if walks is not None:
            raise ValueError(f"`walks` were given, but {type(self).__name__} does not walk. Leave them out.")
        if torch.compiler.is_compiling():
            return make()
        if "_own" not in self.__dict__:
            self.__dict__["_own"] = Record()
        return self._keep(self.__dict__["_own"], make)

    def __getstate__(self) -> dict[str, Any]:
        """Without operators that are kept: copies make their own."""
        return {name: value for name, value in self.__dict__.items() if name != "_own"}

    def _keep(self, record: Record, make: Callable[[], Operator]) -> Operator:
        """The operator that ``make`` gives; the one of the last time where nothing has changed that it depends on.

        Args:
            record: What it is made of apart from the parameters; operators are kept beside it.
            make: Makes the operator of the values that parameters have now.
        """
        return keep(lambda: record.operators, self, self._state(), (), make)

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"{self._graph}, num_heads={self.num_heads}" if self.takes_graph else f"num_heads={self.num_heads}"


def _as_graph(graph: Any) -> Graph:
    if not isinstance(graph, Graph):
        raise ValueError(
            f"`graph` must be a topomask.Graph, but is a {type(graph).__name__}. Build one with Graph.from_edges, "
            "Graph.from_pyg or a builder such as grid_graph."
        )
    return graph


def check_serves_any_graph(mask: Mask, instead: str) -> None:
    """A ValueError where a mask cannot be on any graph, which is tried.

    Args:
        mask: The mask.
        instead: What to take instead, for the error.
    """
    what = f"`mask` is a {type(mask).__name__}, which cannot be on the graph of every call"
    try:
        operator = mask.on(path_graph(3))
    except ValueError as error:
        raise ValueError(f"{what}: {error} {instead}") from None
    if (operator.num_queries, operator.num_keys) != (3, 3):
        raise ValueError(f"{what}: on 3 nodes it is {operator.num_queries} x {operator.num_keys}. {instead}")


class GraphMask(Mask):
    """A mask on the nodes of a graph, in two parts: the record of a graph, and what parameters make of it.

    A subclass sets ``_recipe``, how the record is computed of the graph, and writes :meth:`_operator`. Records are
    computed once per graph, and shared by masks of the same recipe.
    """

    _recipe: Recipe

    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """The operator on a graph."""
        graph = self.graph_or(graph, walks)
        record = self._record(graph)
        return self._keep(record, lambda: self._operator(graph, record))

    def _record(self, graph: Graph) -> Any:
        dtype, device = self.kind
        return find_record(graph, self._recipe, device, dtype)

    @abstractmethod
    def _operator(self, graph: Graph, record: Any) -> Operator:
        """The operator of the values that parameters have now."""
