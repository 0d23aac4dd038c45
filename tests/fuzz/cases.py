"""Random cases: a mask on a graph, and calls of attention with it. Everything follows from (seed, index)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import topomask as tm
from fuzz import masks, matrices
from fuzz.formulas import Setting
from fuzz.graphs import BATCHES, DIRECTED, FORESTS, KINDS, UNDIRECTED, PlainGraph, Rng, draw_graph, pick
from fuzz.plain import PlainMask

ON_GRAPHS = {
    "walk": masks.walk,
    "visit": masks.visit,
    "power_series": masks.power_series,
    "diffusion": masks.diffusion,
    "forest": masks.forest,
    "forest_table": masks.forest_table,
    "shortest_path": masks.shortest_path,
    "degree": masks.degree,
    "neighbor": masks.neighbor,
    "all_pairs": masks.all_pairs,
    "position": matrices.position,
}
ALONE = {
    "dense": matrices.dense,
    "low_rank": matrices.low_rank,
    "learned_features": matrices.learned_features,
    "hypercube": matrices.hypercube,
    "toeplitz": matrices.toeplitz,
}
MASKS = (*ON_GRAPHS, *ALONE, "sum", "kronecker", "prefix")
# Masks on graphs that came later are drawn by name only, so that cases with a known number stay what they are.
BY_NAME = {"frontier": masks.frontier}
SPARSE = ("walk", "frontier", "visit", "neighbor", "all_pairs")
MAY_BE_SPARSE = ("power_series", "diffusion", "shortest_path", "sum", "kronecker", "prefix")
# Kinds of graphs that a mask takes; the others are drawn now and then, to be refused.
_FITTING = {
    "forest": (*FORESTS, "batch_trees"),
    "forest_table": ("path", "tree", "forest", "star", "no_edges", "whole_tree", "batch_trees"),
    "position": ("path", "batch_paths"),
    "diffusion": (*UNDIRECTED, "batch"),
}
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Case:
    """A mask with what it was drawn from."""

    name: str
    graph_kind: str
    plain: PlainMask
    extreme: bool
    dtype: torch.dtype


def draw_size(rng: Rng) -> int:
    """Mostly a few nodes, sometimes as many as tiles and blocks have."""
    return int(pick(rng, [rng.integers(1, 4), rng.integers(4, 13), rng.integers(13, 34), 70, 200], [20, 55, 20, 4, 1]))


def draw_case(rng: Rng, name: str | None = None, kind: str | None = None) -> Case:
    """A random case, of a given mask or kind of graph where that is asked for."""
    name = pick(rng, MASKS) if name is None else name
    size, heads, extreme = draw_size(rng), int(pick(rng, [1, 2, 3], [5, 4, 1])), bool(rng.random() < 0.25)
    small = name == "kronecker"
    graph_kind, plain = _draw_mask(rng, name, min(size, 6) if small else size, heads, extreme, kind)
    dtype = pick(rng, _DTYPES, [5, 5, 0, 0] if extreme else [45, 45, 5, 5])
    torch.manual_seed(int(rng.integers(2**40)))
    plain.mask.to(dtype)
    return Case(name, graph_kind, plain, extreme, dtype)


def draw_kind(rng: Rng, name: str) -> str:
    """A kind of graph, mostly one that the mask takes."""
    fitting = _FITTING.get(name, KINDS[:-1])
    return pick(rng, fitting if rng.random() < 0.96 else KINDS)


def _draw_mask(
    rng: Rng, name: str, size: int, heads: int, extreme: bool, kind: str | None, inside: bool = False
) -> tuple[str, PlainMask]:
    if name == "kronecker":
        parts = []
        for _ in range(2):
            inner = pick(rng, [*ON_GRAPHS, *ALONE])
            own = heads if rng.random() < 0.7 else 1
            parts.append(_draw_mask(rng, inner, int(rng.integers(1, size + 1)), own, False, kind, inside=True))
        return parts[0][0], matrices.kronecker(parts[0][1], parts[1][1])
    base = pick(rng, ON_GRAPHS) if name in ("sum", "prefix") else name
    kind = draw_kind(rng, base) if kind is None else kind
    graph = draw_graph(kind, rng, size)
    if name not in ("sum", "prefix"):
        make = ON_GRAPHS.get(name) or BY_NAME.get(name) or ALONE[name]
        plain = make(rng, graph, heads, extreme)
        return kind, plain if name in ALONE or inside else _place(rng, plain, graph)
    first = ON_GRAPHS[base](rng, graph, heads, extreme and name == "prefix")
    if name == "prefix":
        return kind, matrices.prefix(rng, first)
    parts = [first]
    for _ in range(int(rng.integers(0, 3))):
        others = [other for other in ON_GRAPHS if kind in _FITTING.get(other, KINDS)]
        if graph.num_graphs == 1 and kind not in BATCHES:
            others += ["learned_features"]
        other = pick(rng, others)
        make = ON_GRAPHS.get(other) or ALONE[other]
        parts.append(make(rng, graph, heads if rng.random() < 0.7 else 1, False))
    return kind, matrices.add(rng, parts, extreme)


def _place(rng: Rng, plain: PlainMask, graph: PlainGraph) -> PlainMask:
    """Let some masks have no graph, or another one, and be put on this one for the call."""
    if rng.random() < 0.3 and not (isinstance(plain.mask, tm.PowerSeriesMask) and plain.mask.edge_weights is not None):
        mask = plain.mask
        walks = getattr(mask, "walks", None) if rng.random() < 0.3 else None
        mask.graph = None
        plain.make = lambda: mask.on(graph.graph, walks)
    return plain


@dataclass
class Call:
    """One call of attention."""

    setting: Setting
    options: dict[str, Any]
    q: Tensor
    k: Tensor
    v: Tensor
    padded: Tensor | None  # [B or 1, N_k]
    projection: Tensor | None
    mode: str  # what is done beside the gradient
    regimes: tuple[str, str, str]

    def run(self, mask: tm.Mask | tm.Operator) -> Tensor:
        """The library's answer."""
        attend = tm.masked_softmax_attention if self.setting.softmax else tm.masked_attention
        return attend(self.q, self.k, self.v, mask, **self.options)

    def __str__(self) -> str:
        shown = {
            name: tuple(x.shape)
            if isinstance(x, Tensor) and x.numel() > 8
            else x.tolist()
            if isinstance(x, Tensor)
            else x
            for name, x in self.options.items()
        }
        kind = "softmax" if self.setting.softmax else "linear"
        shapes = f"q={tuple(self.q.shape)}, k={tuple(self.k.shape)}, v={tuple(self.v.shape)}"
        return f"{kind}, {shapes}, {str(self.q.dtype)[6:]}, {'/'.join(self.regimes)}, {self.mode}, {shown}"


_REGIMES = ("zeros", "scores", "low", "huge", "tiny", "subnormal", "mixed", "equal")


def cubic(x: Tensor) -> Tensor:
    """A feature map of a user's own."""
    return x**3 / 4 + x


def tokens(rng: Rng, shape: tuple[int, ...], regime: str, dtype: torch.dtype, strided: bool, fine: bool) -> Tensor:
    """Queries, keys or values, [..., H, N, D]."""
    x, rows = rng.normal(size=shape), (*shape[:-1], 1)
    largest = {torch.float16: 4.0, torch.float64: 60.0 if fine else 15.0}.get(dtype, 15.0)
    if regime == "zeros":
        x = x * (rng.random(rows) < 0.5)
    elif regime == "scores":
        x = x * 8.0
    elif regime == "low":
        x = x + rng.choice([0.0, -100.0, -50.0], size=rows)
    elif regime == "huge":
        x = x * 10.0 ** rng.uniform(0.0, largest)
    elif regime == "tiny":
        x = x * 10.0 ** -rng.uniform(0.0, largest)
    elif regime == "subnormal":
        x = x * {torch.float16: 1e-6, torch.float64: 1e-90}.get(dtype, 1e-40)
    elif regime == "mixed":
        x = x * 10.0 ** rng.uniform(-largest, largest, size=rows)
    elif regime == "equal":
        x = np.broadcast_to(x[..., :1, :], shape)
    found = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
    if strided:
        found = found.transpose(-2, -3).contiguous().transpose(-2, -3)
    return found.requires_grad_()


def draw_call(rng: Rng, case: Case, num_queries: int, num_keys: int) -> Call:
    """A random call with a mask of so many queries and keys."""
    softmax = bool(rng.random() < 0.5)
    dtype = pick(rng, _DTYPES, [40, 40, 10, 10])
    heads = case.plain.mask.num_heads if case.plain.mask.num_heads > 1 else int(pick(rng, [1, 2, 4]))
    key_heads = int(pick(rng, [n for n in range(1, heads + 1) if heads % n == 0]))
    batch = pick(rng, [(1,), (3,), (2,), (), (2, 2), (0,)], [5, 3, 2, 2, 1, 1])
    width, value_width = (
        int(pick(rng, [0, 1, 2, 3, 8], [1, 6, 12, 12, 8])),
        int(pick(rng, [0, 1, 2, 5, 16], [1, 6, 12, 12, 3])),
    )
    pairs = 5.0 if case.name in SPARSE else 1.5 if case.name in MAY_BE_SPARSE else 0.1
    options: dict[str, Any] = {
        "strategy": pick(rng, ["auto", "pairs", "product", "dense"], [3, pairs, 0.2 if softmax else 3, 3])
    }
    for name, count in (("query_nodes", num_queries), ("key_nodes", num_keys)):
        if rng.random() < 0.15:
            size = int(rng.integers(0 if rng.random() < 0.1 else 1, count + 3))
            options[name] = torch.from_numpy(rng.integers(0, count, size=size))
    num_queries = len(options["query_nodes"]) if "query_nodes" in options else num_queries
    num_keys = len(options["key_nodes"]) if "key_nodes" in options else num_keys
    normalizer = pick(rng, ["absolute", "signed", None, "none"], [5, 3, 2, 0 if softmax else 2])
    if normalizer is not None:
        options["normalizer"] = normalizer
    effective = normalizer or case.plain.mask.default_normalizer
    feature_map, projection, scale = "exp", None, 1.0 / math.sqrt(max(1, width))
    if softmax:
        if rng.random() < 0.2:
            options["scale"] = scale = float(rng.uniform(-1.0, 3.0))
    else:
        feature_map = pick(rng, ["relu", "elu", "exp", "softmax", "identity", "cubic"], [4, 3, 3, 2, 2, 1])
        options["feature_map"] = cubic if feature_map == "cubic" else feature_map
        if feature_map == "softmax":
            width = max(1, width)
            random = tm.feature_maps.SoftmaxFeatures(
                width, **({"num_features": 5, "seed": 3} if rng.random() < 0.5 else {})
            )
            options["feature_map"] = random if len(random.projection) == 5 and width not in (5,) else "softmax"
            projection = random.projection.double()
    regimes = _draw_regimes(rng, softmax, feature_map, effective)
    if feature_map == "cubic" and dtype in (torch.bfloat16, torch.float16):
        dtype = torch.float32
    shapes = ((heads, num_queries, width), (key_heads, num_keys, width), (key_heads, num_keys, value_width))
    q, k, v = (
        tokens(rng, (*batch, *shape), regime, dtype, bool(rng.random() < 0.3), case.dtype == torch.float64)
        for shape, regime in zip(shapes, regimes, strict=True)
    )
    padded = _draw_padding(rng, math.prod(batch), num_keys, options, k, v, batch)
    mode = pick(rng, ["no_grad", "inference", "differences", "plain"], [3, 1, 1, 5])
    return Call(Setting(softmax, feature_map, effective, scale), options, q, k, v, padded, projection, mode, regimes)


def _draw_regimes(rng: Rng, softmax: bool, feature_map: str, normalizer: str) -> tuple[str, str, str]:
    if rng.random() < 0.5:
        return "ordinary", "ordinary", "ordinary"
    allowed = [name for name in _REGIMES if name not in ("huge", "mixed")] if softmax else list(_REGIMES)
    if feature_map in ("exp", "elu", "softmax", "cubic") and not softmax:
        allowed = [name for name in allowed if name not in ("huge", "mixed")]
    if feature_map == "cubic" or normalizer == "none":
        allowed = ["zeros", "equal"]
    q, k = ("ordinary" if rng.random() < 0.4 else pick(rng, allowed) for _ in range(2))
    v = "ordinary" if rng.random() < 0.6 else pick(rng, ["zeros", "huge", "tiny", "mixed", "equal"])
    return q, k, v


def _draw_padding(
    rng: Rng, batch: int, num_keys: int, options: dict[str, Any], k: Tensor, v: Tensor, shape: tuple[int, ...]
) -> Tensor | None:
    if rng.random() < 0.7:
        return None
    share = pick(rng, [0.3, 0.8, 1.0], [6, 2, 1])
    padded = torch.from_numpy(rng.random((batch, num_keys)) < share)
    if rng.random() < 0.2:
        padded = padded[:1] if batch else torch.zeros(1, num_keys, dtype=torch.bool)
        options["key_padding_mask"] = padded[0]
    else:
        options["key_padding_mask"] = padded.reshape(*shape, num_keys)
    if rng.random() < 0.5 and padded.shape[0] == batch:
        # The contents of padding, NaN included, must not matter.
        place = padded.reshape(*shape, 1, num_keys, 1)
        with torch.no_grad():
            k.masked_fill_(place, math.nan)
            v.masked_fill_(place, math.inf)
    return padded


__all__ = ["BATCHES", "BY_NAME", "DIRECTED", "KINDS", "MASKS", "Call", "Case", "draw_call", "draw_case"]
