"""Masks of graph transformers by name: the values of their argument ``mask``.

The names are those in :data:`topomask.masks.registry.MASKS` that work on any graph, and ``"none"`` for no attention;
``topomask list masks`` describes them. ``"grf"`` is accepted for ``"walk"``. On trees and forests, pass
``mask=lambda num_heads: ForestMask(num_heads=num_heads)``.

Linear attention takes the time of products with the mask. Softmax attention takes time proportional to the number of
pairs: O(N) with ``"walk"``, and with ``"visit"`` if the graph has few hubs; O(E) with ``"neighbor"``; O(N^2) with
``"degree"``; and with the others the sum of n^2 over the graphs of a batch, where N is the number of nodes of the batch
and n that of a graph. Pairs between graphs are then skipped, unless ``"diffusion"`` or ``"power-series"`` has more than
2^26 entries, or one graph has nearly all nodes. ``"all"`` on a single graph stores no pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from topomask.graph import Normalization
from topomask.masks.graph_operator import GraphMatrix
from topomask.masks.mask import Mask, check_serves_any_graph
from topomask.masks.registry import MASKS, known_name
from topomask.masks.walking import draw_seed
from topomask.support.checks import check_choice, check_options
from topomask.support.config import Options
from topomask.walks import Coupling, Prune

# Makes the mask of a layer, given the number of heads.
MaskFactory = Callable[[int], Mask]


@dataclass(frozen=True)
class GraphMaskOptions(Options):
    """Options of a mask by name. None means the default of the mask.

    Attributes:
        num_walks: Number of walks per node and head. Default: 20.
        max_length: Maximum walk length, power, or number of hops. Default: 10 for walks, otherwise 4.
        halt_prob: Probability of halting before each step. Default: 0.
        coupling: "iid", "antithetic" or "repelling". Default: "repelling".
        symmetric: Whether keys walk too. Default: false, because graphs have hubs, where the walks of many nodes meet.
        normalization: Normalisation of the adjacency matrix: "sym", "row" or "none". Default: "sym", or "row" for
            directed graphs.
        unit_diagonal: Whether to scale the overlap of walks so that it is 1 on the diagonal. Default: true.
        operator: "laplacian", "normalized_laplacian" or "negated_adjacency". Default: "normalized_laplacian".
        time: Initial time of the diffusion. Default: 1.
        seed: Seed of the walks. Default: drawn from torch's generator.
        own_walks: Whether each layer has its own walks. Default: false; layers share walks, each with its own f, which
            is several times faster.
        learnable: Whether to learn the mask: f, time, coefficients or weights. Default: true.
        shared_heads: Whether all heads share one mask. Default: false; each has its own walks and parameters.
        prune: "largest" or "resample" for pruned frontiers instead of walks. Default: walks.
        width: For frontiers, entries of a row of one length at most. Default: 16.
        max_entries: For frontiers of the largest entries, entries of a row at most. Default: the width.
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
    prune: Prune | None = None
    width: int | None = None
    max_entries: int | None = None

    def obeyed_by(self, mask: str) -> GraphMaskOptions:
        """Return the options that a mask has, to compare several with the same options."""
        return self.only(options_of(checked_mask(mask)))


GRAPH_MASKS = (*(name for name, entry in MASKS.items() if entry.in_models is not None), "none")
# Names of attention on a grid that differ from those of masks.
_OTHER_NAMES = {"exact": "power-series", "visits": "visit"}


def options_of(mask: str) -> list[str]:
    """Return the fields of :class:`GraphMaskOptions` that a mask has."""
    if mask == "none":
        return []
    names, options = MASKS[mask].model_names, MASKS[mask].options()
    takes = {names.get(option, option) for option in options} - {"shared_heads"}
    # A mask that can differ between heads has parameters.
    takes |= {"learnable", "shared_heads"} if options.keys() & {"num_heads", "coefficients"} else set()
    takes |= {"own_walks"} if "seed" in options else set()
    return [field.name for field in dataclasses.fields(GraphMaskOptions) if field.name in takes]


def checked_mask(name: str, options: GraphMaskOptions | None = None) -> str:
    """Return the name in :data:`GRAPH_MASKS`, or raise a ValueError if there is none, or it does not have an option."""
    name = known_name(name, GRAPH_MASKS)
    if name not in GRAPH_MASKS:
        from topomask.models.graph_transformer import PRESETS

        preset = PRESETS.get(name, {"mask": _OTHER_NAMES[name]} if name in _OTHER_NAMES else {})
        how = ", ".join(f"{field}={preset[field]!r}" for field in ("mask", "kind") if field in preset)
        if how:
            raise ValueError(f"`mask` must be one of {GRAPH_MASKS}, but is {name!r}. Pass {how} instead.")
    check_choice("mask", name, GRAPH_MASKS)
    check_options(f"mask {name!r}", () if options is None else options.given(), options_of(name))
    return name


def layer_masks(
    mask: str | Mask | MaskFactory, depth: int, num_heads: int, options: GraphMaskOptions | None = None
) -> list[Mask | None]:
    """Make the masks of all layers, without a graph: by name, or with a function per layer, or one that all share."""
    options = GraphMaskOptions() if options is None else options
    if not isinstance(options, GraphMaskOptions):
        raise ValueError(
            f"`mask_options` must be GraphMaskOptions, but is a {type(options).__name__}. Pass for example "
            "GraphMaskOptions(num_walks=20)."
        )
    if not isinstance(mask, str) and options.given():
        raise ValueError(
            f"`mask_options` are for masks by name, but `mask` is a {type(mask).__name__}. Leave them out."
        )
    if isinstance(mask, type) or not (isinstance(mask, str | Mask) or callable(mask)):
        given_instead = f"the class {mask.__name__}" if isinstance(mask, type) else repr(mask)
        raise ValueError(
            f"`mask` must be one of {GRAPH_MASKS}, a mask, or a function that makes a mask for a number of heads, but "
            f"is {given_instead}."
        )
    if not isinstance(mask, str):
        return [_checked(mask)] * depth if isinstance(mask, Mask) else [_checked(mask(num_heads)) for _ in range(depth)]
    name, given = checked_mask(mask, options), options.given()
    if name == "none":
        return [None] * depth
    own_walks, learnable = given.pop("own_walks", False), given.pop("learnable", True)
    num_heads = 1 if given.pop("shared_heads", False) else num_heads
    if "seed" in options_of(name):
        given.setdefault("seed", draw_seed())
    steps = range(depth) if own_walks else [0] * depth
    seeds = [{"seed": given["seed"] + step} if "seed" in given else {} for step in steps]
    return [_make(name, num_heads, given | seed).requires_grad_(learnable) for seed in seeds]


def _checked(mask: Any) -> Mask:
    """Return a mask of the user, or raise a ValueError if it does not work on any graph."""
    if not isinstance(mask, Mask):
        raise ValueError(
            f"`mask` must return a mask, but returned a {type(mask).__name__}. Return one of topomask.masks."
        )
    check_serves_any_graph(mask, f"Use a mask that works on any graph, or a name: {', '.join(GRAPH_MASKS)}.")
    return mask


def _make(name: str, num_heads: int, given: dict[str, Any]) -> Mask:
    """Make a mask without a graph from fields of :class:`GraphMaskOptions`."""
    entry = MASKS[name]
    options, fields = entry.options(), {theirs: ours for ours, theirs in entry.model_names.items()}
    settings = dict(entry.in_models or {}) | {fields.get(field, field): value for field, value in given.items()}
    if "num_heads" in options:
        settings["num_heads"] = num_heads
    if "coefficients" in options:
        highest = settings["coefficients"]
        if highest != int(highest) or highest < 0:
            raise ValueError(f"`max_length` must be an integer of at least 0, the highest power, but is {highest}.")
        settings["coefficients"] = (0.5 ** torch.arange(int(highest) + 1)).expand(num_heads, -1)
    return entry.load()(None, **settings)
