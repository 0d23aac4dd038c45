"""The base classes of masks, and of modules with a seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from inspect import getfullargspec
from typing import Any, Self
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn

from topomask.graph import Graph, path_graph
from topomask.graph.input import not_a_graph
from topomask.graph.records import Recipe, Record, find_record
from topomask.masks.kept import keep
from topomask.masks.operator import Normalizer, Operator
from topomask.ops.derived import constant_when_compiled


class Mask(nn.Module, ABC):
    r"""Base class of masks: settings and learnable parameters, which :meth:`on` turns into an operator on a graph.

    Parameters belong to the mask, and the graph is data: the same mask works on any graph, on a batch of graphs, or on
    a graph built in the forward pass. If a mask is built with a graph, ``mask @ x``, ``mask.to_dense()`` and
    ``masked_attention(q, k, v, mask)`` use that graph by default.

    To write your own mask, define its parameters and one method, :meth:`on`, which returns a
    :class:`topomask.Operator` with their values. The operator needs two methods: its product, and an operator that
    dominates it. Gradients, the transposed product, every strategy of attention, batches of graphs and
    ``torch.compile`` follow from these two, and ``tm.testing.check_mask`` tests them all. An example, personalised
    PageRank, is in ``docs/own_mask.md``.

    Args:
        graph: The default graph.
        num_heads: Heads H; a mask with one head works with any number of heads.
    """

    default_normalizer: Normalizer = "absolute"
    # Whether `on` takes a graph.
    takes_graph: bool = True
    # Settings shown when the module is printed.
    _shown: tuple[str, ...] = ("num_heads",)
    _anchor: Tensor

    def __init__(self, graph: Graph | None = None, num_heads: int = 1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self._graph = None if graph is None else self.graph_or(graph)
        # Follows the module to devices and precisions, with or without parameters.
        self.register_buffer("_anchor", torch.empty(0), persistent=False)

    def __init_subclass__(cls, **options: Any) -> None:
        """Make parameters trainable even if a mask is built in inference mode."""
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _outside_inference_mode(cls.__init__)  # type: ignore[method-assign]

    @abstractmethod
    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """Return the operator on a graph, with the current values of the parameters.

        Args:
            graph: The graph, or a batch of graphs. Default: the mask's own.
            walks: Walks on the graph, for masks that use walks; see :class:`topomask.WalkMask`.
        """

    @property
    def graph(self) -> Graph | None:
        """The default graph."""
        return self._graph

    @graph.setter
    def graph(self, graph: Graph | None) -> None:
        if graph is not None and not self.takes_graph:
            raise self._takes_no_graph()
        self._move_to(None if graph is None else self.graph_or(graph))

    def _move_to(self, graph: Graph | None) -> None:
        self._graph = graph

    @property
    def kind(self) -> tuple[torch.dtype, torch.device]:
        """The precision of operators, at least float32, and their device."""
        tensor = next((x for x in self.parameters() if x.is_floating_point()), self._anchor)
        return torch.promote_types(tensor.dtype, torch.float32), tensor.device

    def graph_or(self, graph: Graph | None, walks: Any = None) -> Graph:
        """Return the graph, or the mask's own if it is None. Raises if there is none, or if walks are given."""
        if walks is not None:
            raise self._takes_no_walks()
        graph = self._graph if graph is None else graph
        if graph is None:
            fix = "Build it with one, or call mask.on(graph) or layer(x, graph)."
            raise ValueError(f"{type(self).__name__} has no default graph. {fix}")
        if not isinstance(graph, Graph):
            raise not_a_graph(graph)
        return graph

    def _takes_no_walks(self) -> ValueError:
        return ValueError(f"`walks` was given, but {type(self).__name__} does not use walks. Leave it out.")

    def _takes_no_graph(self) -> ValueError:
        return ValueError(
            f"`graph` was given, but {type(self).__name__} does not take a graph. Leave it out, or build a new mask "
            "for other tokens."
        )

    def to_dense(self) -> Tensor:
        """Return M on the default graph as a dense tensor, [H, N_q, N_k], for small graphs and tests."""
        return self.on().to_dense()

    def magnitude(self) -> Operator:
        """Return the operator on the default graph that dominates :math:`|M|`, used by the safe normaliser."""
        return self.on().magnitude()

    def forward(self, x: Tensor) -> Tensor:
        """Return M x on the default graph, like ``mask @ x``. Inside ``torch.compile``, write ``mask(x)``."""
        return self.on()(x)

    def __matmul__(self, x: Tensor) -> Tensor:
        return self(x)

    # Makes NumPy leave ``array * mask`` to the mask.
    __array_ufunc__ = None

    def __add__(self, other: Mask) -> Mask:
        return _add(self, other)

    def __radd__(self, other: Any) -> Mask:
        return _add(other, self)

    def __sub__(self, other: Mask) -> Mask:
        return _add(self, other, -1.0)

    def __rsub__(self, other: Any) -> Mask:
        return _add(other, self, -1.0)

    def __mul__(self, weight: Any) -> Mask:
        from topomask.masks.sum import SumMask

        return SumMask([self], [weight])

    __rmul__ = __mul__

    def __neg__(self) -> Mask:
        return self * -1.0

    def _state(self) -> list[Tensor]:
        """All tensors that operators depend on, apart from the graph."""
        return [*self.parameters(), *(buffer for buffer in self.buffers() if buffer.numel())]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Trainable parameters stay trainable in inference mode, unless the mask was given tensors that are not.
        given = any(x.is_inference() for x in self.parameters())
        with torch.inference_mode(given and torch.is_inference_mode_enabled()):
            return super()._apply(fn, recurse)

    def _keep(self, record: Record, make: Callable[[], Operator]) -> Operator:
        """Return the operator cached with the record, or ``make()`` if anything it depends on has changed."""
        return keep(lambda: record.operators, self, self._state(), (), make)

    def extra_repr(self) -> str:
        """Settings shown when the module is printed."""
        settings = [f"{name}={getattr(self, name)!r}" for name in self._shown]
        return ", ".join([str(self._graph), *settings] if self.takes_graph else settings)


def not_a_mask(value: object, expected: str = "topomask.Mask") -> ValueError:
    """The error for a value given where a mask is expected."""
    fix = "Wrap a matrix in DenseMask."
    if isinstance(value, Graph):
        fix = "Build one: tm.WalkMask(graph)."
    elif isinstance(value, Operator):
        fix = "Pass the mask, not an operator, and the graph to the call: layer(x, graph), check_mask(mask, graph)."
    return ValueError(f"`mask` must be a {expected}, but is a {type(value).__name__}. {fix}")


def _add(first: Any, second: Any, sign: float = 1.0) -> Mask:
    from topomask.masks.sum import SumMask

    for side in (first, second):
        if not isinstance(side, Mask):
            raise TypeError(
                f"A mask can only be added to a mask, but this is a {type(side).__name__}. Wrap a matrix in DenseMask; "
                "write a constant c as c * LowRankMask(torch.ones(num_nodes, 1)), a list of masks as SumMask(masks)."
            )
    return SumMask([first, second], [1.0, sign])


def _outside_inference_mode(method: Callable[..., None]) -> Callable[..., None]:
    takes = getfullargspec(method)

    @wraps(method)
    def run(self: Any, *arguments: Any, **options: Any) -> None:
        extra = arguments[len(takes.args) - 1 :]
        if extra and takes.varargs is None:
            raise TypeError(
                f"{type(self).__name__} takes its options by name, such as num_heads=4, but got "
                f"{', '.join(f'{each!r:.20}' for each in extra)} without a name."
            )
        if not torch.is_inference_mode_enabled():
            method(self, *arguments, **options)
            return
        with torch.inference_mode(False), torch.no_grad():
            method(self, *arguments, **options)

    return run


def check_serves_any_graph(mask: Mask, instead: str) -> None:
    """Raise unless a mask works on any graph, by trying one; ``instead`` ends the error with what to use."""
    what = f"`mask` is a {type(mask).__name__}, which does not work on the graph of every call"
    try:
        operator = mask.on(path_graph(3))
    except ValueError as error:
        raise ValueError(f"{what}: {error} {instead}") from None
    if (operator.num_queries, operator.num_keys) != (3, 3):
        raise ValueError(f"{what}: on 3 nodes it is {operator.num_queries} x {operator.num_keys}. {instead}")


class GraphMask(Mask):
    """A mask whose operator is computed from the parameters and a cached record of the graph.

    A subclass sets ``_recipe``, which computes the record from the graph, and implements :meth:`_operator`. A record is
    computed once per graph, and shared by all masks with the same recipe.
    """

    _recipe: Recipe

    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """Return the operator on a graph, with the current values of the parameters."""
        graph = self.graph_or(graph, walks)
        record = self._record(graph)
        return self._keep(record, lambda: self._operator(graph, record))

    def _record(self, graph: Graph) -> Any:
        dtype, device = self.kind
        return find_record(graph, self._recipe, device, dtype)

    @abstractmethod
    def _operator(self, graph: Graph, record: Any) -> Operator:
        """Return the operator with the current values of the parameters."""


def register(module: nn.Module, name: str, tensor: Tensor | None) -> None:
    """Register a tensor by name: a parameter is learnt, any other tensor becomes a buffer."""
    if tensor is None or isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


class FixedMask(Mask):
    """A mask on tokens of its own, which takes no graph. A subclass implements :meth:`_operator`."""

    takes_graph = False

    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """Return the operator, with the current values of the parameters."""
        if graph is not None:
            raise self._takes_no_graph()
        if walks is not None:
            raise self._takes_no_walks()
        if torch.compiler.is_compiling():
            return self._operator()
        if "_own" not in self.__dict__:
            self.__dict__["_own"] = Record()
        return self._keep(self.__dict__["_own"], self._operator)

    @abstractmethod
    def _operator(self) -> Operator:
        """Return the operator with the current values of the parameters."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out cached operators: copies make their own."""
        return {name: value for name, value in self.__dict__.items() if name != "_own"}


# The buffer through which processes agree on a seed.
_OFFER = "_seed_of_first"


class SeededModule(nn.Module):
    """A module with a seed, which ``DistributedDataParallel`` sets to that of the first process.

    Processes may not meet when a module is built, but DDP broadcasts buffers when it wraps a model, so the seed is
    stored in a buffer too. A subclass calls :meth:`_offer_seed` when its seed changes, and :meth:`_follow` before it
    uses the seed.
    """

    # The version of the buffer when it was last compared with the seed: -1 for a copy, which has not compared yet, and
    # None once the first process has set it.
    _compared: int | None = -1

    @property
    @abstractmethod
    def _own_seed(self) -> int:
        """The seed in use."""

    @abstractmethod
    def _take_seed(self, seed: int) -> None:
        """Use the seed of the first process."""

    def _offer_seed(self) -> None:
        """Offer this module's seed to the other processes."""
        # The buffer is never replaced: all processes must have the same buffers.
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
        """Take the seed of the first process if it was broadcast since the last call."""
        offer = self._buffers[_OFFER]
        assert offer is not None
        if torch.compiler.is_dynamo_compiling():
            _follow_before_tracing(offer)
            return
        if self._compared is None or offer.is_meta or offer.is_inference() or offer._version == self._compared:
            return
        was_set, self._compared = self._compared != -1, offer._version
        seed = int(offer)
        if seed != self._own_seed:
            self._take_seed(seed)
        if was_set and dist.is_available() and dist.is_initialized():
            # From now on it is broadcast in every step, and reading it would wait for the device.
            self._compared = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # A copy may hold a seed that was broadcast but not taken yet.
        self._compared = -1
        _offering.add(self)


_offering: WeakSet[SeededModule] = WeakSet()


@constant_when_compiled
def _follow_before_tracing(offer: Tensor) -> None:
    """Take the seed of the first process during compilation, before compiled code reads what depends on it."""
    for module in list(_offering):
        if module._buffers.get(_OFFER) is offer:
            module._follow()
