"""Ways to attend, by name: what a model takes as its argument ``attention``.

======================  ==========================================================================  =============
name                    attention                                                                   time
======================  ==========================================================================  =============
``"softmax"``           softmax, every token sees every other                                       O(N^2)
``"linear"``            linear, every token sees every other                                        O(N)
``"toeplitz"``          linear, a learnt weight per offset on the grid                              O(N log N)
``"exact"``             linear, a learnt power series of the grid's adjacency matrix (Eq. 4)        O(N)
``"grf-paper"``         linear, the same estimated by walks as the paper draws them                 O(N)
``"grf"``               linear, the same estimated by repelling walks of fixed length               O(N)
``"grf-softmax"``       softmax, modulated by the mask of ``"grf"``                                 O(N)
``"visits"``            linear, how often the paper's walks visit, without weights (Eq. 21)         O(N)
``"learned"``           linear, free features per token that know of no graph                       O(N^2)
======================  ==========================================================================  =============

All that walk start from a modulation f_l = 2^-l, and the exact series from what it stands for. ``"visits"`` starts from
f = 1 instead, plain counts of visits; its walks halt, and are shared by queries and keys, as those of ``"grf-paper"``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import nn

from topomask import masks
from topomask.builders import grid_graph
from topomask.graph import Graph
from topomask.masks.base import Mask, Normalizer
from topomask.near_names import did_you_mean
from topomask.nn import Attention, MaskedAttention
from topomask.nn.attention import Kind
from topomask.series import convolve
from topomask.walks import Coupling


@dataclass(frozen=True)
class TokenGrid:
    """Where tokens are: on a grid, behind prefix tokens such as CLS that see and are seen by all.

    Attributes:
        shape: Size of the grid along every axis.
        num_prefix: Prefix tokens.
    """

    shape: tuple[int, ...]
    num_prefix: int = 0

    @cached_property
    def graph(self) -> Graph:
        """The grid as a graph; layers that share the grid share it."""
        return grid_graph(*self.shape)

    @property
    def num_nodes(self) -> int:
        """Tokens on the grid."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class AttentionOptions:
    """What can be said about attention apart from its name. None stands for what the name stands for.

    Attributes:
        feature_map: Feature map of linear attention. Default: "relu", as in the paper.
        normalizer: What attention with a mask divides by: "absolute", or "signed" for the paper's sum.
        num_walks: Walks per token and head. Default: 20.
        max_length: Longest walk L; the exact series has the powers up to 2 L of the estimate. Default: 10.
        halt_prob: Probability to stop before each step. Default: 0.1 for the paper's walks and visits, otherwise 0.
        coupling: "iid", "antithetic" or "repelling". Default: "iid" for the paper's walks and visits, otherwise
            "repelling".
        shared_walks: Let keys use the walks of queries. Default: true for the paper's walks and visits, otherwise
            false.
        seed: Seed of the walks of the first layer; the next has the next. Default: drawn from torch's generator.
    """

    feature_map: str | None = None
    normalizer: Normalizer | None = None
    num_walks: int | None = None
    max_length: int | None = None
    halt_prob: float | None = None
    coupling: Coupling | None = None
    shared_walks: bool | None = None
    seed: int | None = None

    def given(self) -> dict[str, Any]:
        """The fields that are not None."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value is not None}

    def obeyed_by(self, attention: str) -> AttentionOptions:
        """Those of the options that a variant obeys: to compare variants with the same options."""
        check_variant(attention)
        takes = VARIANTS[attention].takes
        return AttentionOptions(**{name: value for name, value in self.given().items() if name in takes})

    def for_layer(self, layer: int) -> AttentionOptions:
        """The options of a layer: those of the first, with walks of its own."""
        return self if self.seed is None else dataclasses.replace(self, seed=self.seed + layer)


# A layer of attention for tokens on a grid, of a width, with a number of heads.
AttentionFactory = Callable[[TokenGrid, int, int, AttentionOptions], nn.Module]


class Variant(NamedTuple):
    """A way to attend."""

    make: AttentionFactory
    takes: frozenset[str]  # the options that it obeys
    about: str


def make_attention(
    attention: str | AttentionFactory,
    grid: TokenGrid,
    dim: int,
    num_heads: int,
    options: AttentionOptions | None = None,
) -> nn.Module:
    """A layer of attention.

    Args:
        attention: A name of this file, or a function that makes the layer.
        grid: Where the tokens are.
        dim: Width of the tokens.
        num_heads: Heads.
        options: What the name does not say. One that it does not obey is refused.

    Example:
        >>> import torch, topomask as tm
        >>> grid = tm.models.TokenGrid((4, 4), num_prefix=1)
        >>> layer = tm.models.make_attention("toeplitz", grid, dim=8, num_heads=2)
        >>> layer(torch.randn(3, 17, 8)).shape
        torch.Size([3, 17, 8])
    """
    options = checked_options("options", options)
    if callable(attention):
        return attention(grid, dim, num_heads, options)
    check_variant(attention, options)
    return VARIANTS[attention].make(grid, dim, num_heads, options)


def checked_options(name: str, options: AttentionOptions | None) -> AttentionOptions:
    """The options, or those of a name alone; a ValueError names the argument if it is anything else."""
    if options is None:
        return AttentionOptions()
    if not isinstance(options, AttentionOptions):
        raise ValueError(
            f"`{name}` must be a topomask.models.AttentionOptions or None, but is {options!r}. Pass "
            f"AttentionOptions(...) with these fields."
        )
    return options


def check_variant(name: str, options: AttentionOptions | None = None) -> None:
    """A ValueError unless there is a variant of this name, and it obeys these options."""
    if not isinstance(name, str):
        raise ValueError(
            f"`attention` must be one of {tuple(VARIANTS)}, or a function that makes a layer, but is {name!r}."
        )
    if name not in VARIANTS:
        hint = did_you_mean(name, VARIANTS)
        raise ValueError(f"`attention` must be one of {tuple(VARIANTS)}, but is {name!r}.{hint}")
    for option in () if options is None else options.given():
        if option not in VARIANTS[name].takes:
            raise ValueError(
                f"`{option}` says nothing to attention {name!r}, which takes {sorted(VARIANTS[name].takes)}. Leave it "
                "out."
            )


def _unmasked(kind: Kind, grid: TokenGrid, dim: int, num_heads: int, options: AttentionOptions) -> nn.Module:  # noqa: ARG001
    return Attention(dim, num_heads, kind=kind, **options.given())


def _masked(
    make_mask: Callable[..., Mask],
    grid: TokenGrid,
    dim: int,
    num_heads: int,
    options: AttentionOptions,
    kind: Kind = "linear",
) -> nn.Module:
    """Attention with the mask that ``make_mask(grid, num_heads, **options)`` gives, behind the prefix."""
    given = options.given()
    own = {name: given.pop(name) for name in _ATTENTION & set(given)}
    mask = make_mask(grid, num_heads, **given)
    if grid.num_prefix:
        mask = masks.PrefixMask(mask, grid.num_prefix)
    return MaskedAttention(dim, num_heads, mask, kind=kind, **own)


def _toeplitz(grid: TokenGrid, num_heads: int) -> Mask:
    # Exponentials of parameters, as in kernelised attention with relative positions (Luo et al., 2021).
    return masks.ToeplitzMask(grid.shape, num_heads, positive=True)


def _power_series(grid: TokenGrid, num_heads: int, max_length: int = 10) -> Mask:
    """Starts where the estimate by walks does."""
    series = convolve(0.5 ** torch.arange(max_length + 1))
    return masks.PowerSeriesMask(grid.graph, series.expand(num_heads, -1))


def _walks(grid: TokenGrid, num_heads: int, **options: Any) -> Mask:
    return masks.WalkMask(grid.graph, num_heads=num_heads, **options)


def _paper_walks(grid: TokenGrid, num_heads: int, **options: Any) -> Mask:
    return _walks(grid, num_heads, **({"halt_prob": 0.1, "coupling": "iid", "shared_walks": True} | options))


def _visits(grid: TokenGrid, num_heads: int, **options: Any) -> Mask:
    walks: dict[str, Any] = {"halt_prob": 0.1, "coupling": "iid"} | options
    return masks.VisitMask(grid.graph, num_heads=num_heads, **walks)


def _learned(grid: TokenGrid, num_heads: int) -> Mask:
    return masks.LearnedFeatureMask(grid.num_nodes, num_heads=num_heads)


_ATTENTION = frozenset({"feature_map", "normalizer"})
_SAMPLING = frozenset({"num_walks", "max_length", "halt_prob", "coupling", "shared_walks", "seed"})

VARIANTS: dict[str, Variant] = {
    "softmax": Variant(partial(_unmasked, "softmax"), frozenset(), "softmax, every token sees every other"),
    "linear": Variant(partial(_unmasked, "linear"), _ATTENTION, "linear, every token sees every other"),
    "toeplitz": Variant(partial(_masked, _toeplitz), _ATTENTION, "linear, a learnt weight per offset on the grid"),
    "exact": Variant(
        partial(_masked, _power_series),
        _ATTENTION | {"max_length"},
        "linear, a learnt power series of the adjacency matrix (Eq. 4)",
    ),
    "grf-paper": Variant(
        partial(_masked, _paper_walks),
        _ATTENTION | _SAMPLING,
        "linear, the same estimated by walks as the paper draws them",
    ),
    "grf": Variant(
        partial(_masked, _walks),
        _ATTENTION | _SAMPLING,
        "linear, the same estimated by repelling walks of fixed length",
    ),
    "grf-softmax": Variant(
        partial(_masked, _walks, kind="softmax"), _SAMPLING | {"normalizer"}, "softmax, modulated by the mask of grf"
    ),
    "visits": Variant(
        partial(_masked, _visits),
        _ATTENTION | _SAMPLING,
        "linear, how often the paper's walks visit, without importance weights, from f = 1 on (Eq. 21)",
    ),
    "learned": Variant(partial(_masked, _learned), _ATTENTION, "linear, free features per token that know of no graph"),
}
