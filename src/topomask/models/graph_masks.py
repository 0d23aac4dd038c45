"""Masks of graph transformers, by name: what a model takes as its argument ``mask``.

=================== ================================================================================ ================
name                mask                                                                             pairs
=================== ================================================================================ ================
``"walk"``          a learnt power series of the adjacency matrix, estimated by walks                O(N)
``"visit"``         how much walks from two nodes overlap: the random-walk kernel of GKAT             O(N), few hubs
``"diffusion"``     the heat kernel: the diffusion kernel of GKAT                                    sum of n^2
``"power-series"``  a learnt power series of the adjacency matrix                                    sum of n^2
``"neighbor"``      edges and self-loops                                                             O(E)
``"shortest-path"`` a learnt weight per number of hops                                               sum of n^2
``"degree"``        a learnt function of the degrees of query and key                                N^2
``"all"``           all nodes of the same graph: no mask, to compare with                            sum of n^2
``"none"``          nothing: without attention; and without a local branch, without the graph        none
=================== ================================================================================ ================

N is the number of nodes of all graphs of a batch, n that of one graph: pairs of two graphs are not formed, unless
softmax attention with ``"diffusion"`` or ``"power-series"`` has more than 2^26 entries, or one graph has nearly all; or
with ``"degree"``.
Linear attention takes O(N) with ``"walk"``, ``"visit"``, ``"neighbor"``, ``"degree"`` and ``"all"``, and O(K E) with
``"diffusion"`` and ``"power-series"``; softmax attention goes over pairs, and keeps none of them with ``"all"`` on one
graph. Trees and forests have :class:`topomask.ForestMask`, passed as ``mask=lambda graph, heads: ForestMask(...)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from topomask import masks
from topomask.builders import path_graph
from topomask.graph import Graph, Normalization
from topomask.masks.base import Mask
from topomask.masks.bound_walks import draw_seed
from topomask.masks.graph_operator import Operator
from topomask.masks.views import check_movable
from topomask.near_names import did_you_mean
from topomask.walks import Coupling

# Makes the mask of a layer on a graph, with a number of heads.
MaskFactory = Callable[[Graph, int], Mask]


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
    operator: Operator | None = None
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
        return GraphMaskOptions(
            **{name: value for name, value in self.given().items() if name in GRAPH_MASKS[mask].takes}
        )


class NamedGraphMask(NamedTuple):
    """A mask by name."""

    make: Callable[..., Mask] | None
    takes: frozenset[str]  # the options that it obeys
    about: str


def _movable(mask: Any) -> Mask:
    """The mask, or a ValueError where it cannot be moved to other graphs, which is tried."""
    if not isinstance(mask, Mask):
        raise ValueError(f"`mask` must make masks, but made a {type(mask).__name__}. Return one of topomask.masks.")
    check_movable(mask, f"Take a mask of graphs, or one by name: {', '.join(GRAPH_MASKS)}.")
    return mask


def layer_masks(
    mask: str | Mask | MaskFactory, depth: int, num_heads: int, options: GraphMaskOptions | None = None
) -> list[Mask | None]:
    """The masks of the layers of a model, on a placeholder: they are moved to the graph of every call.

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
            f"`mask` must be a name of {tuple(GRAPH_MASKS)}, a mask, or a function of a graph and a number of heads "
            f"that makes one, but is {given_instead}."
        )
    if isinstance(mask, Mask):
        return [_movable(mask)] * depth
    placeholder = path_graph(1)
    if callable(mask):
        return [_movable(mask(placeholder, num_heads)) for _ in range(depth)]
    check_mask(mask, options)
    make, takes, _ = GRAPH_MASKS[mask]
    if make is None:
        return [None] * depth
    given = options.given()
    own_walks, learnable = given.pop("own_walks", False), given.pop("learnable", True)
    num_heads = 1 if given.pop("shared_heads", False) else num_heads
    if "seed" in takes:
        given.setdefault("seed", draw_seed())
    steps = range(depth) if own_walks else [0] * depth
    seeds = [{"seed": given["seed"] + step} if "seed" in given else {} for step in steps]
    return [make(placeholder, num_heads, **(given | seed)).requires_grad_(learnable) for seed in seeds]


def check_mask(name: str, options: GraphMaskOptions | None = None) -> None:
    """A ValueError unless there is a mask of this name, and it obeys these options."""
    if name not in GRAPH_MASKS:
        hint = did_you_mean(name, GRAPH_MASKS)
        raise ValueError(f"`mask` must be one of {tuple(GRAPH_MASKS)}, but is {name!r}.{hint}")
    for option in () if options is None else options.given():
        if option not in GRAPH_MASKS[name].takes:
            taken = sorted(GRAPH_MASKS[name].takes) or "no options"
            raise ValueError(
                f"`{option}` says nothing to the mask {name!r}, which takes {taken}. Leave it out, or set it to None."
            )


def _walk(graph: Graph, num_heads: int, symmetric: bool = False, **options: Any) -> Mask:
    return masks.WalkMask(graph, num_heads=num_heads, symmetric=symmetric, **options)


def _visit(graph: Graph, num_heads: int, unit_diagonal: bool = True, **options: Any) -> Mask:
    return masks.VisitMask(graph, num_heads=num_heads, normalize=unit_diagonal, **options)


def _diffusion(graph: Graph, num_heads: int, operator: Operator = "normalized_laplacian", time: float = 1.0) -> Mask:
    return masks.DiffusionMask(graph, operator, time, num_heads)


def _power_series(
    graph: Graph, num_heads: int, max_length: int = 4, normalization: Normalization | None = None
) -> Mask:
    if max_length != int(max_length) or max_length < 0:
        raise ValueError(f"`max_length` must be a whole number from 0, the highest power, but is {max_length}.")
    series = 0.5 ** torch.arange(int(max_length) + 1)
    return masks.PowerSeriesMask(graph, series.expand(num_heads, -1), normalization=normalization)


def _shortest_path(graph: Graph, num_heads: int, max_length: int = 4) -> Mask:
    return masks.ShortestPathMask(graph, num_heads, max_length)


def _neighbor(graph: Graph, num_heads: int) -> Mask:  # noqa: ARG001
    return masks.NeighborMask(graph)


def _degree(graph: Graph, num_heads: int) -> Mask:
    return masks.DegreeMask(graph, num_heads)


def _all(graph: Graph, num_heads: int) -> Mask:  # noqa: ARG001
    return masks.SameGraphMask(graph)


# Those of all masks that have parameters.
_LEARNT = frozenset({"learnable", "shared_heads"})
_WALKS = _LEARNT | {"num_walks", "max_length", "halt_prob", "coupling", "seed", "own_walks"}

GRAPH_MASKS: dict[str, NamedGraphMask] = {
    "walk": NamedGraphMask(_walk, _WALKS | {"symmetric", "normalization"}, "a power series of W, estimated by walks"),
    "visit": NamedGraphMask(_visit, _WALKS | {"unit_diagonal"}, "overlap of walks, the random-walk kernel of GKAT"),
    "diffusion": NamedGraphMask(_diffusion, _LEARNT | {"operator", "time"}, "the diffusion kernel of GKAT"),
    "power-series": NamedGraphMask(_power_series, _LEARNT | {"max_length", "normalization"}, "a power series of W"),
    "neighbor": NamedGraphMask(_neighbor, frozenset(), "edges and self-loops"),
    "shortest-path": NamedGraphMask(_shortest_path, _LEARNT | {"max_length"}, "a weight per number of hops"),
    "degree": NamedGraphMask(_degree, _LEARNT, "a function of the degrees of query and key"),
    "all": NamedGraphMask(_all, frozenset(), "no mask: all nodes of the same graph"),
    "none": NamedGraphMask(None, frozenset(), "no attention"),
}
