"""The mask of stochastic positional encoding, for sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.builders import path_graph
from topomask.graph import Graph
from topomask.graph_input import check_integer
from topomask.masks.base import Normalizer
from topomask.masks.graph_mask import GraphMask
from topomask.ops import segments
from topomask.stochastic_codes import Kind, Noise, check_seed, load_seed, make_templates, save_seed

# Tokens of one sequence whose products with keys are added up at a time, in a batch of sequences.
_TILE = 64


class StochasticPositionMask(GraphMask):
    r"""A learnable template of the lag between two tokens of a sequence, one per head, by random codes in O(N R).

    .. math:: M = \bar Q \bar K^\top, \qquad \mathbb{E}\,M_{mn} = \delta + (1 - \delta)\,P(m - n)

    P is a sum of cosines (``kind="sine"``) or the correlation of two filters (``kind="conv"``), see
    :class:`~topomask.stochastic_codes.SineTemplates` and :class:`~topomask.stochastic_codes.ConvTemplates`. The noise
    behind the codes is frozen; gains, frequencies, phases, filters and gates are learnt. Entries err by about
    :math:`1/\sqrt R`, so small ones have any sign: ``magnitude()`` is mostly noise, and attention divides by the plain
    sum unless it is told otherwise (``default_normalizer`` is ``"signed"``).

    The length of the sequence is data: ``mask.on(tm.path_graph(n))`` has the same parameters and the same codes, of
    which a longer sequence has more, and ``mask.on(tm.Graph.batch([...]))`` of paths serves a batch of sequences.

    A sum of K cosines has rank 2 K, so that with one template per head noise is not needed: ``num_realizations=None``
    gives codes of width 2 K + 1 whose product is the template itself. It is better and faster wherever R would be
    larger; noise pays for filters, whose templates have full rank.

    Args:
        num_nodes: Length of the sequence N.
        num_heads: Heads; each has its own template and its own noise.
        num_realizations: Width of the codes R. None for the exact template of ``"sine"``.
        kind: ``"sine"`` or ``"conv"``.
        num_sines: Cosines per template, for ``"sine"``. Default: 5.
        kernel_size: Length of the filters, for ``"conv"``; the template is 0 from this lag on. Default: 128.
        gated: Whether the template is mixed with a constant :math:`\delta`, learnt from one half on. Otherwise
            :math:`\delta = 0`.
        seed: Seed of the noise. Default: drawn from torch's generator, so that every mask has its own.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.StochasticPositionMask(128, num_heads=2, seed=0)
        >>> (mask @ torch.randn(2, 128, 16)).shape
        torch.Size([2, 128, 16])
        >>> mask.template().shape
        torch.Size([2, 255])

    References:
        Liutkus et al. (2021), Relative positional encoding for Transformers with linear complexity; with one template
        per head instead of one per dimension, as a mask needs. :class:`topomask.nn.StochasticPositionEncoding` is the
        method itself.
    """

    default_normalizer: Normalizer = "signed"

    _noise: Noise
    _positions: Tensor | None
    _tiles: _Tiles | None

    def __init__(
        self,
        num_nodes: int,
        num_heads: int = 1,
        num_realizations: int | None = 64,
        *,
        kind: Kind = "sine",
        num_sines: int | None = None,
        kernel_size: int | None = None,
        gated: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_integer("num_nodes", num_nodes, 1)
        check_integer("num_heads", num_heads, 1)
        if num_realizations is not None:
            check_integer("num_realizations", num_realizations, 1)
        elif seed is not None:
            raise ValueError("`num_realizations` is None, so nothing is random. Leave `seed` out.")
        self.num_heads = num_heads
        self._num_columns, self._seed = num_realizations, check_seed(seed)
        self.templates = make_templates((num_heads,), kind, num_sines, kernel_size, gated)
        self._bind(path_graph(num_nodes))
        self._follow(next(self.templates.parameters()))

    @property
    def num_realizations(self) -> int:
        """Width of the codes R."""
        return self._noise.constant.shape[-1]

    @property
    def seed(self) -> int:
        """Seed of the noise."""
        return self._seed

    def resample(self, seed: int) -> None:
        """Draw new noise."""
        if self._num_columns is None:
            raise ValueError("`num_realizations` is None, so there is no noise to draw.")
        self._redraw(check_seed(seed))

    def _redraw(self, seed: int) -> None:
        self._seed = seed
        probe = self._probe
        self._bind(self.graph)
        self._move(probe.device, probe.dtype)

    def template(self, lags: Tensor | None = None) -> Tensor:
        r"""The expectation of M by lag m - n of query m and key n, exactly.

        Args:
            lags: Integers, [L]. Default: -N + 1, ..., N - 1.

        Returns:
            [H, L].
        """
        if lags is None:
            lags = torch.arange(-self._count + 1, self._count, device=self._probe.device)
        return self.templates(lags)

    def _bind(self, graph: Graph) -> None:
        _check_path(graph)
        super()._bind(graph)
        self._first = int(graph.ids.min())
        self._count = int(graph.ids.max()) - self._first + 1
        with torch.device("cpu"), torch.inference_mode(False):
            # All sequences of a batch share the codes of the longest.
            self._positions = None if graph.num_graphs == 1 else torch.tensor(graph.ids - self._first)
            self._tiles = None if self._groups is None else _make_tiles(self._groups)
            self._noise = self._draw()

    def _draw(self) -> Noise:
        if self._num_columns is None:
            return self.templates.orthonormal_sources()
        return self.templates.noise(self._seed, self._first, self._count, self._num_columns, "cpu")

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        super()._move(device, dtype)
        self._positions = None if self._positions is None else self._positions.to(device)
        self._tiles = None if self._tiles is None else _Tiles(*(x.to(device) for x in self._tiles))
        # Noise stays in float32: a product takes it in its own precision.
        self._noise = Noise(*(x.to(device) for x in self._noise))

    def codes(self) -> tuple[Tensor, Tensor]:
        """Codes of queries and keys, each [H, N, R], in at least float32."""
        return self._keep("codes", self._make_codes)

    def _make_codes(self) -> tuple[Tensor, Tensor]:
        query = self.templates.codes(self._noise, self._first, self._count, "query")
        key = self.templates.codes(self._noise, self._first, self._count, "key")
        if self._positions is not None:
            query, key = query[:, self._positions], key[:, self._positions]
        return (query.abs(), key.abs()) if self._is_magnitude else (query, key)

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M with the codes computed once."""
        query, key = self.codes()
        return lambda x: _multiply(query, key, x, self._tiles, self.num_graphs)

    def matmul(self, x: Tensor) -> Tensor:
        """Codes of queries times the products of keys with x."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """Codes of keys times the products of queries with x."""
        query, key = self.codes()
        return _multiply(key, query, x, self._tiles, self.num_graphs)

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        query, key = self.codes()
        dense = query @ key.mT
        groups = self._groups
        return dense if groups is None else dense.masked_fill(groups[:, None] != groups, 0.0)

    def magnitude(self) -> StochasticPositionMask:
        r"""The product of the absolute codes, :math:`|\bar Q| |\bar K|^\top`."""
        return self if self._is_magnitude else self._magnitude_view()

    @property
    def product_cost(self) -> int:
        """Numbers in the codes."""
        return 2 * self.num_heads * self.num_queries * self.num_realizations

    @property
    def dense_cost(self) -> int:
        """One product of the codes."""
        return self.num_heads * self.num_queries * self.num_keys * self.num_realizations

    @property
    def refresh_cost(self) -> int:
        """That of the codes, unless they are kept."""
        per_position = 2 * self.num_heads * self.num_realizations * self.templates.sources_per_code
        return 0 if self._is_frozen() else per_position * self._count

    @property
    def num_inner_rows(self) -> int:
        """On a batch, every tile has a product of its keys with x."""
        tiles = 0 if self._tiles is None else len(self._tiles.group)
        return max(self.num_queries, tiles * self.num_realizations)

    def get_extra_state(self) -> Tensor:
        """What is needed to draw the same noise again."""
        return save_seed(self._seed)

    def set_extra_state(self, state: Tensor) -> None:
        """Draw the noise of a checkpoint again, for this mask's own length and realizations."""
        self._redraw(load_seed(state))

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return (
            f"num_nodes={self.num_queries}, num_heads={self.num_heads}, num_realizations={self.num_realizations}, "
            f"seed={self._seed}"
        )


class _Tiles(NamedTuple):
    """Sequences of a batch cut into tiles of equal length, of which none spans two sequences."""

    token: Tensor  # [tiles, _TILE], N where a tile is longer than what is left of its sequence
    group: Tensor  # [tiles], the sequence
    place: Tensor  # [N], where every token stands among the flattened tiles


def _make_tiles(groups: Tensor) -> _Tiles:
    sizes = torch.bincount(groups)
    tiles = (sizes + _TILE - 1) // _TILE
    offset = segments.ranges(torch.zeros_like(sizes), sizes)
    place = segments.pointers(tiles)[:-1][groups] * _TILE + offset
    token = torch.full((int(tiles.sum()) * _TILE,), len(groups))
    token[place] = torch.arange(len(groups))
    return _Tiles(token.view(-1, _TILE), torch.repeat_interleave(torch.arange(len(sizes)), tiles), place)


def _multiply(query: Tensor, key: Tensor, x: Tensor, tiles: _Tiles | None, num_graphs: int) -> Tensor:
    """Within every sequence, codes of queries times (codes of keys, transposed, times x)."""
    dtype = torch.promote_types(query.dtype, x.dtype)
    query, key, fine = query.to(dtype), key.to(dtype), x.to(dtype)
    if tiles is None:
        return (query @ (key.mT @ fine)).to(x.dtype)
    query, key, fine = (_cut(part, tiles) for part in (query, key, fine))
    sums = key.mT @ fine  # [..., H, tiles, R, C]
    total = sums.new_zeros(*sums.shape[:-3], num_graphs, *sums.shape[-2:]).index_add(-3, tiles.group, sums)
    out = query @ total.index_select(-3, tiles.group)
    return out.flatten(-3, -2).index_select(-2, tiles.place).to(x.dtype)


def _cut(x: Tensor, tiles: _Tiles) -> Tensor:
    """[..., N, C] to [..., tiles, _TILE, C], with zeros in the rest of the last tile of every sequence."""
    padded = torch.cat([x, x.new_zeros(*x.shape[:-2], 1, x.shape[-1])], dim=-2)
    return padded.index_select(-2, tiles.token.flatten()).unflatten(-2, tiles.token.shape)


def _check_path(graph: Graph) -> None:
    """A ValueError unless consecutive nodes of every sequence, and no others, are joined."""
    ids = graph.ids
    ordered = (np.diff(ids)[np.diff(graph.graph_index) == 0] == 1).all()
    steps = np.repeat(ids, np.diff(graph.indptr)) - ids[graph.indices]
    num_entries = 2 * (graph.num_nodes - graph.num_graphs)
    if graph.directed or not ordered or len(steps) != num_entries or (np.abs(steps) != 1).any():
        raise ValueError(
            f"`graph` must be a path through the tokens in their order, or a batch of paths, but is {graph}. "
            "Pass tm.path_graph(n), or tm.Graph.batch([tm.path_graph(n1), tm.path_graph(n2)])."
        )
