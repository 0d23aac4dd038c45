"""Masks of graph transformers, by name: what a model takes as its argument ``mask``.

The names are those of :data:`topomask.masks.registry.MASKS` that can be on the graph of every call, and ``"none"``,
which is no attention; ``topomask list masks`` says what each is. Trees and forests have :class:`topomask.ForestMask`,
passed as ``mask=lambda num_heads: ForestMask(num_heads=num_heads)``.

Linear attention takes the time of products with the mask. Softmax attention goes over pairs: O(N) with ``"walk"``, and
with ``"visit"`` where hubs are few; O(E) with ``"neighbor"``; N^2 with ``"degree"``; and with the others the sum of
n^2, where N is the number of nodes of all graphs of a batch, and n that of one graph. Pairs of two graphs are then not
formed, unless ``"diffusion"`` or ``"power-series"`` has more than 2^26 entries, or one graph has nearly all. ``"all"``
on one graph keeps none of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from topomask.graph import Normalization
from topomask.masks.graph_operator import GraphMatrix
from topomask.masks.mask import Mask, check_serves_any_graph
from topomask.masks.registry import MASKS
from topomask.masks.walking import draw_seed
from topomask.support.near_names import check_options, did_you_mean
from topomask.walks import Coupling

# Makes the mask of a layer with a number of heads.
MaskFactory = Callable[[int], Mask]


@dataclass(frozen=True)
class GraphMaskOptions:
    """What can be said about a mask apart from its name. None stands for what the name stands for.

    Attributes:
        num_walks: Walks per node and head. Default: 20.
        max_length: Longest walk, highest power, or most hops. Default: 10 for walks, 4 otherwise.
        halt_prob: Probability to stop before each step. Default: 0.
        coupling: "iid", "antithetic" or "repelling". Default: "repelling".
        symmetric: Whether keys walk too. Default: false, since graphs have hubs, where walks of many nodes meet.
        normalization: "sym", "row" or "none", of the adjacency matrix. Default: "sym", of directed graphs "row".
        unit_diagonal: Let the overlap of walks of a node with themselves be 1. Default: true.
        operator: "laplacian", "normalized_laplacian" or "negated_adjacency". Default: "normalized_laplacian".
        time: Initial time of the diffusion. Default: 1.
        seed: Seed of the walks. Default: drawn from torch's generator.
        own_walks: Whether every layer has walks of its own. Default: false; layers share them, each with an f of its
            own, which is a multiple faster.
        learnable: Whether the mask is learnt: f, time, coefficients or weights. Default: true.
        shared_heads: Whether all heads share one mask. Default: false; each has walks and parameters of its own.
    """

    num_walks: int | None = None
    max_length: int | None = None
    halt_prob: float | None = None
    coupling: Coupling | None = None
    symmetric: bool | None = None
    normalization: Normalization | None = None
    unit_diagonal: bool | None = None
    operator: GraphMatrix | None = None
    time: float | None = None
    seed: int | None = None
    own_walks: bool | None = None
    learnable: bool | None = None
    shared_heads: bool | None = None

    def given(self) -> dict[str, Any]:
        """The fields that are not None."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value is not None}

    def updated(self, other: GraphMaskOptions) -> GraphMaskOptions:
        """These, but for the fields that are given in others."""
        return dataclasses.replace(self, **other.given())

    def obeyed_by(self, mask: str) -> GraphMaskOptions:
        """Those of the options that a mask obeys: to compare masks with the same options."""
        check_mask(mask)
        takes = options_of(mask)
        return GraphMaskOptions(**{name: value for name, value in self.given().items() if name in takes})


GRAPH_MASKS = (*(name for name, entry in MASKS.items() if entry.in_models is not None), "none")


def options_of(mask: str) -> list[str]:
    """The fields of :class:`GraphMaskOptions` that a mask obeys."""
    if mask == "none":
        return []
    names, options = MASKS[mask].model_names, MASKS[mask].options()
    takes = {names.get(option, option) for option in options} - {"shared_heads"}
    # A mask that every head has its own of is a mask with parameters.
    takes |= {"learnable", "shared_heads"} if options.keys() & {"num_heads", "coefficients"} else set()
    takes |= {"own_walks"} if "seed" in options else set()
    return [field.name for field in dataclasses.fields(GraphMaskOptions) if field.name in takes]


def _checked(mask: Any) -> Mask:
    """The mask, or a ValueError where it cannot be on any graph, which is tried."""
    if not isinstance(mask, Mask):
        raise ValueError(f"`mask` must make masks, but made a {type(mask).__name__}. Return one of topomask.masks.")
    check_serves_any_graph(mask, f"Take a mask of graphs, or one by name: {', '.join(GRAPH_MASKS)}.")
    return mask


def layer_masks(
    mask: str | Mask | MaskFactory, depth: int, num_heads: int, options: GraphMaskOptions | None = None
) -> list[Mask | None]:
    """The masks of the layers of a model, without a graph: they are on the graph of every call.

    Args:
        mask: A name of this file; a function that makes the mask of a layer; or a mask, which all layers share.
        depth: Layers.
        num_heads: Heads.
        options: What the name does not say. One that it does not obey is refused.
    """
    options = GraphMaskOptions() if options is None else options
    if not isinstance(options, GraphMaskOptions):
        raise ValueError(
            f"`mask_options` must be GraphMaskOptions, but is a {type(options).__name__}. Write "
            "GraphMaskOptions(num_walks=20), say."
        )
    if not isinstance(mask, str) and options.given():
        raise ValueError(
            f"`mask_options` are for masks by name, but `mask` is a {type(mask).__name__}. Leave them out."
        )
    if isinstance(mask, type) or not (isinstance(mask, str | Mask) or callable(mask)):
        given_instead = f"the class {mask.__name__}" if isinstance(mask, type) else repr(mask)
        raise ValueError(
            f"`mask` must be a name of {GRAPH_MASKS}, a mask, or a function of a number of heads that "
            f"makes one, but is {given_instead}."
        )
    if isinstance(mask, Mask):
        return [_checked(mask)] * depth
    if callable(mask):
        return [_checked(mask(num_heads)) for _ in range(depth)]
    check_mask(mask, options)
    if mask == "none":
        return [None] * depth
    given = options.given()
    own_walks, learnable = given.pop("own_walks", False), given.pop("learnable", True)
    num_heads = 1 if given.pop("shared_heads", False) else num_heads
    if "seed" in options_of(mask):
        given.setdefault("seed", draw_seed())
    steps = range(depth) if own_walks else [0] * depth
    seeds = [{"seed": given["seed"] + step} if "seed" in given else {} for step in steps]
    return [_make(mask, num_heads, given | seed).requires_grad_(learnable) for seed in seeds]


def check_mask(name: str, options: GraphMaskOptions | None = None) -> None:
    """A ValueError unless there is a mask of this name, and it obeys these options."""
    if name not in GRAPH_MASKS:
        hint = did_you_mean(name, GRAPH_MASKS)
        raise ValueError(f"`mask` must be one of {GRAPH_MASKS}, but is {name!r}.{hint}")
    check_options(f"mask {name!r}", () if options is None else options.given(), options_of(name))


def _make(name: str, num_heads: int, given: dict[str, Any]) -> Mask:
    """A mask without a graph, with the given fields of :class:`GraphMaskOptions`."""
    entry = MASKS[name]
    options, fields = entry.options(), {theirs: ours for ours, theirs in entry.model_names.items()}
    settings = dict(entry.in_models or {}) | {fields.get(field, field): value for field, value in given.items()}
    if "num_heads" in options:
        settings["num_heads"] = num_heads
    if "coefficients" in options:
        settings["coefficients"] = _halving(settings["coefficients"]).expand(num_heads, -1)
    return entry.load()(None, **settings)


def _halving(max_length: int) -> Tensor:
    """The coefficients 2^-k, [max_length + 1]."""
    if max_length != int(max_length) or max_length < 0:
        raise ValueError(f"`max_length` must be a whole number from 0, the highest power, but is {max_length}.")
    return 0.5 ** torch.arange(int(max_length) + 1)
