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
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from topomask import masks
from topomask.graph import Graph
from topomask.graph.builders import grid_graph
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer
from topomask.masks.registry import MASKS
from topomask.nn import Attention, MaskedAttention
from topomask.nn.attention import Kind
from topomask.support.near_names import check_options, did_you_mean
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
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value is not None}

    def obeyed_by(self, attention: str) -> AttentionOptions:
        """Those of the options that a variant obeys: to compare variants with the same options."""
        check_variant(attention)
        takes = VARIANTS[attention].options()
        return AttentionOptions(**{name: value for name, value in self.given().items() if name in takes})

    def for_layer(self, layer: int) -> AttentionOptions:
        """The options of a layer: those of the first, with walks of its own."""
        return self if self.seed is None else dataclasses.replace(self, seed=self.seed + layer)


# A layer of attention for tokens on a grid, of a width, with a number of heads.
AttentionFactory = Callable[[TokenGrid, int, int, AttentionOptions], nn.Module]


@dataclass(frozen=True)
class Variant:
    """A way to attend.

    Attributes:
        kind: Linear or softmax attention.
        mask: Name of the mask on the grid, see :data:`topomask.masks.registry.MASKS`; None for no mask.
        about: What it is, in a few words.
        settings: What differs from the defaults of the mask.
    """

    kind: Kind
    mask: str | None
    about: str
    settings: dict[str, Any] = field(default_factory=dict)

    def options(self) -> list[str]:
        """The fields of :class:`AttentionOptions` that it obeys."""
        takes: set[str] = {"feature_map"} if self.kind == "linear" else set()
        takes |= {"normalizer"} if takes or self.mask is not None else set()
        if self.mask is not None:
            options = MASKS[self.mask].options()
            # The powers of a series are as long as pairs of walks.
            takes |= {"max_length"} if "coefficients" in options else set(options)
        return [each.name for each in dataclasses.fields(AttentionOptions) if each.name in takes]


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
    variant, given = VARIANTS[attention], options.given()
    own = {name: given.pop(name) for name in ("feature_map", "normalizer") if name in given}
    if variant.mask is None:
        return Attention(dim, num_heads, kind=variant.kind, **own)
    mask = _make_mask(variant.mask, grid, num_heads, variant.settings | given)
    return MaskedAttention(dim, num_heads, mask, kind=variant.kind, **own)


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
    check_options(f"attention {name!r}", () if options is None else options.given(), VARIANTS[name].options())


def _make_mask(name: str, grid: TokenGrid, num_heads: int, settings: dict[str, Any]) -> Mask:
    """A mask on the grid, behind the prefix."""
    entry = MASKS[name]
    if "coefficients" in entry.options():
        from topomask.walks.series import convolve

        # Starts where the estimate by walks does.
        series = convolve(0.5 ** torch.arange(settings["max_length"] + 1))
        settings = {"coefficients": series.expand(num_heads, -1)}
    else:
        settings = settings | {"num_heads": num_heads}
    mask: Mask = entry.load()(getattr(grid, entry.place), **settings)
    return masks.PrefixMask(mask, grid.num_prefix) if grid.num_prefix else mask


_PAPER = {"halt_prob": 0.1, "coupling": "iid", "shared_walks": True}

VARIANTS: dict[str, Variant] = {
    "softmax": Variant("softmax", None, "softmax, every token sees every other"),
    "linear": Variant("linear", None, "linear, every token sees every other"),
    # Exponentials of parameters, as in kernelised attention with relative positions (Luo et al., 2021).
    "toeplitz": Variant("linear", "toeplitz", "linear, a learnt weight per offset on the grid", {"positive": True}),
    "exact": Variant(
        "linear",
        "power-series",
        "linear, a learnt power series of the adjacency matrix (Eq. 4)",
        {"max_length": 10},
    ),
    "grf-paper": Variant("linear", "walk", "linear, the same estimated by walks as the paper draws them", _PAPER),
    "grf": Variant("linear", "walk", "linear, the same estimated by repelling walks of fixed length"),
    "grf-softmax": Variant("softmax", "walk", "softmax, modulated by the mask of grf"),
    "visits": Variant(
        "linear",
        "visit",
        "linear, how often the paper's walks visit, without importance weights, from f = 1 on (Eq. 21)",
        _PAPER,
    ),
    "learned": Variant("linear", "learned-features", "linear, free features per token that know of no graph"),
}
