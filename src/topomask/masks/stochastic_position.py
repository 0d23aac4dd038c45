"""Masks of stochastic positional encoding, for sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.graph.builders import path_graph
from topomask.graph.input import check_integer
from topomask.graph.records import Recipe, Record
from topomask.masks.low_rank import LowRankOperator
from topomask.masks.mask import GraphMask, SeededModule
from topomask.masks.operator import Cost, Normalizer, Operator
from topomask.masks.stochastic_codes import Kind, Noise, Sources, check_seed, load_seed, make_templates, save_seed
from topomask.ops.registration import fake_mode


class StochasticPositionMask(SeededModule, GraphMask):
    r"""A learnable template of the lag between two tokens of a sequence, one per head, from random codes in O(N R).

    .. math:: M = \bar Q \bar K^\top, \qquad \mathbb{E}\,M_{mn} = \delta + (1 - \delta)\,P(m - n)

    P is a sum of cosines (``kind="sine"``) or the correlation of two filters (``kind="conv"``), see
    :class:`~topomask.masks.stochastic_codes.SineTemplates` and
    :class:`~topomask.masks.stochastic_codes.ConvTemplates`. The noise behind the codes is frozen; gains, frequencies,
    phases, filters and gates are learnt. The error of an entry is about :math:`1/\sqrt R`, so small entries have either
    sign and ``magnitude()`` is mostly noise. Attention therefore divides by the plain sum unless told otherwise
    (``default_normalizer`` is ``"signed"``).

    The length of the sequence is data: ``mask.on(tm.path_graph(n))`` has the same parameters and the same codes, and a
    longer sequence has more of them. For a batch of sequences, use ``mask.on(tm.Graph.batch([...]))`` of paths.

    A sum of K cosines has rank 2 K, so one template per head needs no noise: ``num_realizations=None`` gives codes of
    width 2 K + 1 whose product is the template itself. This is better and faster than any larger R; noise pays off for
    filters, whose templates have full rank.

    Args:
        num_nodes: Length N of the sequence by default; :meth:`on` takes any other.
        num_heads: Heads; each has its own template and its own noise.
        num_realizations: Width of the codes R. None for the exact template of ``"sine"``.
        kind: ``"sine"`` or ``"conv"``.
        num_sines: Cosines per template, for ``"sine"``. Default: 5.
        kernel_size: Length of the filters, for ``"conv"``; the template is 0 from this lag on. Default: 128.
        gated: Whether the template is mixed with a learnt constant :math:`\delta`, initially one half. Otherwise
            :math:`\delta = 0`.
        seed: Seed of the noise. Default: drawn from torch's generator, so that every mask has its own noise.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.StochasticPositionMask(128, num_heads=2, seed=0)
        >>> (mask @ torch.randn(2, 128, 16)).shape
        torch.Size([2, 128, 16])
        >>> mask.template().shape
        torch.Size([2, 255])

    References:
        Liutkus et al. (2021), Relative positional encoding for Transformers with linear complexity; but with one
        template per head instead of one per dimension, as a mask needs. The original method is
        :class:`topomask.nn.StochasticPositionEncoding`.
    """

    default_normalizer: Normalizer = "signed"
    _recipe: _PositionRecipe
    _own_record: tuple[Graph, _Positions] | None

    def __init__(
        self,
        num_nodes: int | None = None,
        *,
        num_heads: int = 1,
        num_realizations: int | None = 64,
        kind: Kind = "sine",
        num_sines: int | None = None,
        kernel_size: int | None = None,
        gated: bool = True,
        seed: int | None = None,
    ) -> None:
        sizes = {"num_nodes": num_nodes, "num_heads": num_heads, "num_realizations": num_realizations}
        for name, size in sizes.items():
            if size is not None:
                check_integer(name, size, 1)
        if num_realizations is None and seed is not None:
            raise ValueError("`seed` was given, but with num_realizations=None nothing is random. Leave it out.")
        super().__init__(None if num_nodes is None else path_graph(num_nodes), num_heads)
        self.templates = make_templates((num_heads,), kind, num_sines, kernel_size, gated)
        if num_realizations is None:
            # Raises for templates without low rank, even if there is no graph yet.
            self.templates.sources.orthonormal()
        self._take(_PositionRecipe(self.templates.sources, num_realizations, check_seed(seed)))

    @property
    def num_realizations(self) -> int:
        """Width of the codes R."""
        width = self._recipe.num_columns
        return self._recipe.sources.fixed + 1 if width is None else width

    @property
    def seed(self) -> int:
        """Seed of the noise."""
        self._follow()
        return self._recipe.seed

    @property
    def _own_seed(self) -> int:
        return self._recipe.seed

    def _take_seed(self, seed: int) -> None:
        self._take(replace(self._recipe, seed=seed))

    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """Return the operator on a graph, with the current values of the parameters."""
        self._follow()
        return super().on(graph, walks)

    def resample(self, seed: int) -> None:
        """Draw new noise."""
        if self._recipe.num_columns is None:
            raise ValueError("With num_realizations=None there is no noise to resample. Build the mask with a number.")
        self._take(replace(self._recipe, seed=check_seed(seed)))

    def template(self, lags: Tensor | None = None) -> Tensor:
        r"""Return the exact expectation of M by lag m - n of query m and key n.

        Args:
            lags: Integers, [L]. Default: -N + 1, ..., N - 1.

        Returns:
            [H, L].
        """
        if lags is None:
            count = self._record(self.graph_or(None)).count
            lags = torch.arange(-count + 1, count, device=self.kind[1])
        return self.templates(lags)

    def codes(self) -> tuple[Tensor, Tensor]:
        """Return the codes of queries and keys on the default graph, each [H, N, R], in at least float32."""
        operator = self.on()
        assert isinstance(operator, PositionOperator)
        return operator.codes()

    def _operator(self, graph: Graph, record: _Positions) -> PositionOperator:
        return PositionOperator(self, graph, record)

    def _take(self, recipe: _PositionRecipe) -> None:
        """Use the noise of a recipe, drawn now for the default graph."""
        self._recipe, self._own_record = recipe.shared(), None
        self._offer_seed()
        if self._graph is not None and self.kind[1].type != "meta":
            self._record(self._graph)

    def _record(self, graph: Graph) -> _Positions:
        # Compiled code reads this record from an attribute, so new noise does not cause recompilation.
        own = self._own_record if fake_mode() is None else None
        if own is not None and own[0] is graph and own[1].noise.constant.device == self.kind[1]:
            return own[1]
        record: _Positions = super()._record(graph)
        if graph is self._graph and not torch.compiler.is_compiling() and fake_mode() is None:
            self._own_record = graph, record
        return record

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the record, which belongs to the graph."""
        return super().__getstate__() | {"_own_record": None}

    def get_extra_state(self) -> Tensor:
        """Return what a checkpoint needs to draw the same noise again."""
        return save_seed(self.seed)

    def set_extra_state(self, state: Tensor) -> None:
        """Draw the noise of a checkpoint again, for the length and realizations of this mask."""
        self._take(replace(self._recipe, seed=load_seed(state)))

    def extra_repr(self) -> str:
        """Settings shown when the module is printed."""
        num_nodes = None if self._graph is None else self._graph.num_nodes
        return (
            f"num_nodes={num_nodes}, num_heads={self.num_heads}, num_realizations={self.num_realizations}, "
            f"seed={self.seed}"
        )


class PositionOperator(LowRankOperator):
    """Products of codes, within every sequence of a batch."""

    def __init__(self, mask: StochasticPositionMask, graph: Graph, record: _Positions) -> None:
        templates, span = mask.templates, (record.first, record.count)
        query, key = templates.codes(record.noise, *span, "query"), templates.codes(record.noise, *span, "key")
        if record.positions is not None:
            query, key = query[:, record.positions], key[:, record.positions]
        super().__init__(mask, query, key, graph)
        self._refresh = 2 * query.shape[0] * query.shape[-1] * templates.sources_per_code * record.count

    def codes(self) -> tuple[Tensor, Tensor]:
        """Return the codes of queries and keys, each [H, N, R], in at least float32."""
        return self._u, self._v

    def cost(self) -> Cost:
        """The cost of the product, and of the codes before it."""
        return super().cost()._replace(refresh=0 if self._is_kept else self._refresh)


@dataclass(eq=False)
class _Positions(Record):
    noise: Noise
    # The positions that have codes, and for a batch the position of every token, [N].
    first: int
    count: int
    positions: Tensor | None


@dataclass(frozen=True)
class _PositionRecipe(Recipe):
    sources: Sources
    num_columns: int | None
    seed: int

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> _Positions:  # noqa: ARG002
        _check_path(graph)
        first, last = int(graph.ids.min()), int(graph.ids.max())
        count = last - first + 1
        if self.num_columns is None:
            noise = self.sources.orthonormal()
        else:
            noise = self.sources.noise(self.seed, first, count, self.num_columns, "cpu")
        # Noise stays in float32: products take it in their own precision.
        noise = Noise(*(x.to(device) for x in noise))
        # All sequences of a batch share the codes of the longest.
        positions = None if graph.num_graphs == 1 else torch.tensor(graph.ids - first).to(device)
        return _Positions(noise, first, count, positions)


def _check_path(graph: Graph) -> None:
    """Raise unless exactly the consecutive nodes of every sequence are joined."""
    ids = graph.ids
    ordered = (np.diff(ids)[np.diff(graph.graph_index) == 0] == 1).all()
    steps = np.repeat(ids, np.diff(graph.indptr)) - ids[graph.indices]
    num_entries = 2 * (graph.num_nodes - graph.num_graphs)
    if graph.directed or not ordered or len(steps) != num_entries or (np.abs(steps) != 1).any():
        raise ValueError(
            f"`graph` must be a path through the tokens in order, or a batch of paths, but is {graph}. "
            "Pass tm.path_graph(n), or tm.Graph.batch([tm.path_graph(n1), tm.path_graph(n2)])."
        )
