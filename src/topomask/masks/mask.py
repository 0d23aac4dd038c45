"""A mask: settings and learnable parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, Self
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn

from topomask.graph import Graph, path_graph
from topomask.graph.records import Recipe, Record, find_record
from topomask.masks.kept import keep
from topomask.masks.operator import Normalizer, Operator
from topomask.ops.derived import constant_when_compiled


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

    def __init_subclass__(cls, **options: Any) -> None:
        """Let constructors make parameters that can be trained, inside of inference mode too."""
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _outside_inference_mode(cls.__init__)  # type: ignore[method-assign]

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

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Parameters that can be trained stay so, unless some are given that cannot.
        given = any(x.is_inference() for x in self.parameters())
        with torch.inference_mode(given and torch.is_inference_mode_enabled()):
            return super()._apply(fn, recurse)

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


def _outside_inference_mode(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def run(self: Any, *arguments: Any, **options: Any) -> None:
        if not torch.is_inference_mode_enabled():
            method(self, *arguments, **options)
            return
        with torch.inference_mode(False), torch.no_grad():
            method(self, *arguments, **options)

    return run


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


# The buffer by which processes agree on a seed.
_OFFER = "_seed_of_first"


class SeededModule(nn.Module):
    """A module with a seed, which is that of the first process once ``DistributedDataParallel`` has wrapped the model.

    It broadcasts buffers where it wraps a model: there all processes meet, which they may not where a module is built.
    So the seed stands in a buffer as well. A subclass calls :meth:`_offer_seed` when it has a new one, and
    :meth:`_follow` before it uses it.
    """

    # The version of the buffer when it was last compared with the seed: -1 for a copy, where it was not yet, and None
    # once the first process has set it.
    _compared: int | None = -1

    @property
    @abstractmethod
    def _own_seed(self) -> int:
        """The seed that is in use."""

    @abstractmethod
    def _take_seed(self, seed: int) -> None:
        """Have the seed of the first process."""

    def _offer_seed(self) -> None:
        """Let the first process hand its seed to the others."""
        # Never replaced: all processes must have the same buffers.
        offer = self._buffers.get(_OFFER)
        if offer is None:
            device = next((parameter.device for parameter in self.parameters()), None)
            self.register_buffer(_OFFER, torch.tensor(self._own_seed, device=device), persistent=False)
            offer = self._buffers[_OFFER]
        elif not offer.is_meta:
            with torch.no_grad(), torch.inference_mode(False):
                offer.fill_(self._own_seed)
        assert offer is not None
        self._compared = offer._version
        _offering.add(self)

    def _follow(self) -> None:
        """Take the seed of the first process, where one was handed on since it was offered."""
        if torch.compiler.is_dynamo_compiling():
            _follow_before_tracing(self._buffers[_OFFER])
            return
        if self._compared is None:
            return
        offer = self._buffers[_OFFER]
        assert offer is not None
        if offer.is_meta or offer.is_inference() or offer._version == self._compared:
            return
        was_set, self._compared = self._compared != -1, offer._version
        seed = int(offer)
        if seed != self._own_seed:
            self._take_seed(seed)
        if was_set and dist.is_available() and dist.is_initialized():
            # From now on, it is broadcast in every step, and looking would wait for the device.
            self._compared = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # A copy may have a seed that was handed on and not yet taken.
        self._compared = -1
        _offering.add(self)


_offering: WeakSet[SeededModule] = WeakSet()


@constant_when_compiled
def _follow_before_tracing(offer: Tensor) -> None:
    """Take the seed of the first process while code is compiled, before that code reads what follows from it."""
    for module in list(_offering):
        if module._buffers.get(_OFFER) is offer:
            module._follow()
