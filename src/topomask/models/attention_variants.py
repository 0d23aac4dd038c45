"""Attention on a grid by name: the values of the argument ``attention`` of models.

:data:`VARIANTS` describes every name, as does ``topomask list attention``. ``"softmax"`` and ``"learned"`` take O(N^2)
time, ``"toeplitz"`` O(N log N), and all others O(N).

Walks start from the modulation f_l = 2^-l, and the exact series from the series that this corresponds to. ``"visits"``
starts from f = 1 instead, which counts visits; its walks halt, and are shared by queries and keys, like those of
``"grf-paper"``.
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
from topomask.masks.registry import MASKS, known_name
from topomask.nn import Attention, MaskedAttention
from topomask.nn.attention import Kind
from topomask.support.checks import check_choice, check_options
from topomask.support.config import Options
from topomask.walks import Coupling, Prune


@dataclass(frozen=True)
class TokenGrid:
    """The layout of tokens: a grid, after prefix tokens such as CLS that see and are seen by all.

    Attributes:
        shape: Size of the grid along each axis.
        num_prefix: Number of prefix tokens.
    """

    shape: tuple[int, ...]
    num_prefix: int = 0

    @cached_property
    def graph(self) -> Graph:
        """The grid as a graph, which layers share."""
        return grid_graph(*self.shape)

    @property
    def num_nodes(self) -> int:
        """Number of tokens on the grid."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class AttentionOptions(Options):
    """Options of an attention by name. None means its default.

    Attributes:
        feature_map: Feature map of linear attention. Default: "relu", as in the paper.
        normalizer: Normaliser of masked attention: "absolute", or "signed" for the paper's sum.
        num_walks: Number of walks per token and head. Default: 20.
        max_length: Maximum walk length L; the exact series has powers up to 2 L, like the estimate. Default: 10.
        halt_prob: Probability of halting before each step. Default: 0.1 for the paper's walks and visits, otherwise 0.
        coupling: "iid", "antithetic" or "repelling". Default: "iid" for the paper's walks and visits, otherwise
            "repelling".
        shared_walks: Whether keys use the walks of queries. Default: true for the paper's walks and visits, otherwise
            false.
        seed: Seed of the walks of the first layer; layer i uses seed + i. Default: drawn from torch's generator.
        prune: "largest" or "resample" for pruned frontiers instead of walks. Default: walks.
        width: For frontiers, entries of a row of one length at most. Default: 16.
        max_entries: For frontiers of the largest entries, entries of a row at most. Default: the width.
    """

    feature_map: str | None = None
    normalizer: Normalizer | None = None
    num_walks: int | None = None
    max_length: int | None = None
    halt_prob: float | None = None
    coupling: Coupling | None = None
    shared_walks: bool | None = None
    seed: int | None = None
    prune: Prune | None = None
    width: int | None = None
    max_entries: int | None = None

    def obeyed_by(self, attention: str) -> AttentionOptions:
        """Return the options that an attention has, to compare several with the same options."""
        return self.only(VARIANTS[checked_variant(attention)].options())

    def for_layer(self, layer: int) -> AttentionOptions:
        """Return the options of a layer, which has its own walks."""
        return self if self.seed is None else dataclasses.replace(self, seed=self.seed + layer)


# Makes an attention layer for tokens on a grid, given their width and the number of heads.
AttentionFactory = Callable[[TokenGrid, int, int, AttentionOptions], nn.Module]


@dataclass(frozen=True)
class Variant:
    """An attention that has a name."""

    kind: Kind
    mask: str | None  # its name in topomask.masks.registry.MASKS; None for no mask
    about: str
    settings: dict[str, Any] = field(default_factory=dict)  # arguments of the mask other than its defaults

    def options(self) -> list[str]:
        """Return the fields of :class:`AttentionOptions` that it has."""
        takes: set[str] = {"feature_map"} if self.kind == "linear" else set()
        takes |= {"normalizer"} if takes or self.mask is not None else set()
        if self.mask is not None:
            options = MASKS[self.mask].options()
            # The length of a series follows from that of walks.
            takes |= {"max_length"} if "coefficients" in options else set(options)
        return [each.name for each in dataclasses.fields(AttentionOptions) if each.name in takes]


def make_attention(
    attention: str | AttentionFactory,
    grid: TokenGrid,
    dim: int,
    num_heads: int,
    options: AttentionOptions | None = None,
) -> nn.Module:
    """Make an attention layer for tokens on a grid.

    Args:
        attention: A name in :mod:`topomask.models.attention_variants`, or a function that makes the layer.
        grid: The layout of the tokens.
        dim: Width of the tokens.
        num_heads: Number of heads.
        options: Options of the attention; an option that it does not have raises a ValueError.

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
    variant, given = VARIANTS[checked_variant(attention, options)], options.given()
    own = {name: given.pop(name) for name in ("feature_map", "normalizer") if name in given}
    if variant.mask is None:
        return Attention(dim, num_heads, kind=variant.kind, **own)
    mask = _make_mask(variant.mask, grid, num_heads, variant.settings | given)
    return MaskedAttention(dim, num_heads, mask, kind=variant.kind, **own)


def checked_options(name: str, options: AttentionOptions | None) -> AttentionOptions:
    """Return the options, or the defaults if they are None, or raise a ValueError that names the argument."""
    if options is None:
        return AttentionOptions()
    if not isinstance(options, AttentionOptions):
        raise ValueError(
            f"`{name}` must be a topomask.models.AttentionOptions or None, but is {options!r}. Pass "
            "AttentionOptions(...) with these fields."
        )
    return options


def checked_variant(name: str, options: AttentionOptions | None = None) -> str:
    """Return the name in :data:`VARIANTS`, or raise a ValueError if there is none, or it does not have an option."""
    name = known_name(name, VARIANTS)
    if isinstance(name, str) and name in _OTHER_NAMES:
        raise ValueError(
            f"`attention` must be one of {tuple(VARIANTS)}, but is {name!r}, the name of a mask. Pass "
            f"{_OTHER_NAMES[name]}."
        )
    check_choice("attention", name, VARIANTS, "" if isinstance(name, str) else ", or a function that makes a layer")
    check_options(f"attention {name!r}", () if options is None else options.given(), VARIANTS[name].options())
    return name


def _make_mask(name: str, grid: TokenGrid, num_heads: int, settings: dict[str, Any]) -> Mask:
    """Make a mask on the grid, with its prefix."""
    entry = MASKS[name]
    if "coefficients" in entry.options():
        from topomask.walks.series import convolve

        # Starts from the same series as the estimate by walks.
        series = convolve(0.5 ** torch.arange(settings["max_length"] + 1))
        settings = {"coefficients": series.expand(num_heads, -1)}
    else:
        settings = settings | {"num_heads": num_heads}
    mask: Mask = entry.load()(getattr(grid, entry.place), **settings)
    return masks.PrefixMask(mask, grid.num_prefix) if grid.num_prefix else mask


_PAPER = {"halt_prob": 0.1, "coupling": "iid", "shared_walks": True}
_POWERS = "linear, a learnt power series of the adjacency matrix (Eq. 4)"
_VISITS = "linear, how often the paper's walks visit, without importance weights, from f = 1 on (Eq. 21)"

VARIANTS: dict[str, Variant] = {
    "softmax": Variant("softmax", None, "softmax, every token sees every other"),
    "linear": Variant("linear", None, "linear, every token sees every other"),
    # Exponentials of parameters, as in kernelised attention with relative positions (Luo et al., 2021).
    "toeplitz": Variant("linear", "toeplitz", "linear, a learnt weight per offset on the grid", {"positive": True}),
    "exact": Variant("linear", "power-series", _POWERS, {"max_length": 10}),
    "grf-paper": Variant("linear", "walk", "linear, the same estimated by walks as in the paper", _PAPER),
    "grf": Variant("linear", "walk", "linear, the same estimated by repelling walks of fixed length"),
    "grf-softmax": Variant("softmax", "walk", "softmax, modulated by the mask of grf"),
    "visits": Variant("linear", "visit", _VISITS, _PAPER),
    "learned": Variant("linear", "learned-features", "linear, free features per token, independent of the graph"),
}

# Names of masks that differ from those of attention.
_OTHER_NAMES = {
    "all": "'linear' or 'softmax'",
    "learned-features": "'learned'",
    "power-series": "'exact'",
    "visit": "'visits'",
}
