"""Masks on graphs, each with its plain definition."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

import topomask as tm
from fuzz.graphs import PlainGraph, Rng, pick
from fuzz.plain import Definition, PlainMask, constant, hops, lengths, normal, normalized, per_head, walk_loads
from fuzz.walk_laws import check_frontiers, check_walks


def _modulation(rng: Rng, heads: int, size: int, positive: bool, extreme: bool) -> Tensor:
    f = normal(rng, heads, size)
    if positive or rng.random() < 0.3:
        f = f.abs() + 1e-3
    elif rng.random() < 0.15:
        f[:, int(rng.integers(size))] = 0.0
    if extreme:
        f = f * 10.0 ** rng.uniform(-12, 12)
    return f if rng.random() < 0.7 or heads == 1 else f[:1].expand(heads, -1)


def _features(f: Tensor, loads: Tensor) -> Tensor:
    """Phi, [H, R, N], from f [H, L + 1] and loads [S, L + 1, R, N] with S = 1 or H."""
    return (f[:, :, None, None] * loads).sum(dim=1)


def walk(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """Phi_q Phi_k^T or Phi_q, from the loads that were sampled."""
    symmetric = bool(rng.random() < 0.6) and not (plain.directed and rng.random() < 0.9)
    shared = symmetric and bool(rng.random() < 0.4)
    size, positive = int(rng.integers(0, 5)), bool(rng.random() < 0.3)
    halt = float(pick(rng, [0.0, 0.0, 0.2, 0.5]))
    normalization = pick(rng, [None, None, "none", "row"] if not symmetric else [None, None, None, "none"])
    options = dict(
        num_walks=int(pick(rng, [1, 2, 3, 8, 20])),
        max_length=size,
        num_heads=heads,
        halt_prob=halt,
        coupling=pick(rng, ["repelling", "iid", "antithetic"] if halt else ["repelling", "iid"]),
        normalization=normalization,
        symmetric=symmetric,
        shared_walks=shared,
        shared_heads=bool(rng.random() < 0.3),
        positive=positive,
        seed=int(rng.integers(2**40)),
        f=_modulation(rng, heads, size + 1, positive, extreme),
    )
    mask = tm.WalkMask(plain.graph, **options)
    query, key = mask.walks if isinstance(mask.walks, tuple) else (mask.walks, mask.walks)
    for side in (query, key):
        check_walks(plain, side, options["num_walks"], halt, normalized(plain, normalization), normalization)
    define = _define(walk_loads(query, plain.size), walk_loads(key, plain.size), positive, symmetric)
    return PlainMask(mask, define, plain.groups)


def frontier(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """The same of pruned frontiers."""
    symmetric = bool(rng.random() < 0.6) and not (plain.directed and rng.random() < 0.9)
    size, positive = int(rng.integers(0, 5)), bool(rng.random() < 0.3)
    normalization = pick(rng, [None, None, "none", "row"] if not symmetric else [None, None, None, "none"])
    options = dict(
        prune=pick(rng, ["largest", "resample"]),
        width=int(pick(rng, [1, 2, 3, 8, 1000])),
        max_length=size,
        num_heads=heads,
        normalization=normalization,
        symmetric=symmetric,
        positive=positive,
        f=_modulation(rng, heads, size + 1, positive, extreme),
    )
    if options["prune"] == "resample":
        options |= dict(
            shared_walks=symmetric and bool(rng.random() < 0.4),
            shared_heads=bool(rng.random() < 0.3),
            seed=int(rng.integers(2**40)),
        )
    elif rng.random() < 0.5:
        options["max_entries"] = int(pick(rng, [1, 2, 5, 1000]))
    mask = tm.WalkMask(plain.graph, **options)
    query, key = mask.walks if isinstance(mask.walks, tuple) else (mask.walks, mask.walks)
    for side in (query, key):
        check_frontiers(side, options, normalized(plain, normalization))
    define = _define(walk_loads(query, plain.size), walk_loads(key, plain.size), positive, symmetric)
    return PlainMask(mask, define, plain.groups)


def _define(first: Tensor, second: Tensor, positive: bool, symmetric: bool) -> Definition:
    """M and its magnitude from the loads of queries and keys."""

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        f = p["modulation.weight"].exp() if positive else p["modulation.weight"]
        q, k = _features(f, first), _features(f, second)
        big_q, big_k = _features(f.abs(), first.abs()), _features(f.abs(), second.abs())
        return (q @ k.mT, big_q @ big_k.mT) if symmetric else (q, big_q)

    return define


def visit(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """Overlaps of visits, over the norms of rows where that is asked for."""
    size, positive, normalize = int(rng.integers(0, 5)), bool(rng.random() < 0.3), bool(rng.random() < 0.4)
    count = int(pick(rng, [1, 2, 8]))
    mask = tm.VisitMask(
        plain.graph,
        num_walks=count,
        max_length=size,
        num_heads=heads,
        shared_walks=bool(rng.random() < 0.7),
        shared_heads=bool(rng.random() < 0.3),
        normalize=normalize,
        positive=positive,
        seed=int(rng.integers(2**40)),
        f=_modulation(rng, heads, size + 1, positive, extreme),
    )
    query, key = mask.walks if isinstance(mask.walks, tuple) else (mask.walks, mask.walks)
    for side in (query, key):
        check_walks(plain, side, count, 0.0, normalized(plain, None), None)
    first, second = walk_loads(query, plain.size), walk_loads(key, plain.size)

    def rows(f: Tensor, loads: Tensor) -> tuple[Tensor, Tensor]:
        found, big = _features(f, loads), _features(f.abs(), loads)
        if not normalize:
            return found, big
        total = found.square().sum(dim=-1, keepdim=True)
        norms = torch.where(total > 0, total, 1.0).sqrt()
        return found / norms, big / norms

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        f = p["modulation.weight"].exp() if positive else p["modulation.weight"]
        (q, big_q), (k, big_k) = rows(f, first), rows(f, second)
        return q @ k.mT, big_q @ big_k.mT

    return PlainMask(mask, define, plain.groups, homogeneous=normalize)


def power_series(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """Sums of powers of W."""
    order, normalization = int(rng.integers(0, 5)), pick(rng, [None, None, "row", "none"])
    alpha = _modulation(rng, heads, order + 1, False, extreme)
    edge_weights, index = None, plain.graph.to_edge_index()[0].numpy()
    if rng.random() < 0.3 and index.shape[1]:
        edge_weights = nn.Parameter(normal(rng, index.shape[1]))
    mask = tm.PowerSeriesMask(plain.graph, alpha, normalization=normalization, edge_weights=edge_weights)
    fixed, kind = constant(normalized(plain, normalization)), normalization or ("row" if plain.directed else "sym")

    def matrix(weights: Tensor) -> Tensor:
        found = weights.new_zeros(plain.size, plain.size).index_put(tuple(torch.from_numpy(index)), weights)
        found = found if plain.directed else (found + found.mT) / 2
        degrees = found.abs().sum(dim=1)
        degrees = torch.where(degrees > 0, degrees, 1.0)
        if kind == "none":
            return found
        return found / (degrees[:, None] if kind == "row" else degrees[:, None].sqrt() * degrees.sqrt())

    def series(alpha: Tensor, w: Tensor) -> Tensor:
        power, total = torch.eye(plain.size, dtype=torch.float64), 0.0
        for k in range(order + 1):
            total = total + alpha[:, k, None, None] * power
            power = power @ w
        return total

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        alpha = p["coefficients"]
        alpha = alpha if alpha.ndim == 2 else alpha[None]
        w = matrix(p["edge_weights"]) if edge_weights is not None else fixed
        return series(alpha, w), series(alpha.abs(), w.abs())

    return PlainMask(mask, define, plain.groups, homogeneous=edge_weights is not None)


def diffusion(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """Exponentials of Laplacians and of the adjacency matrix, by eigenvalues."""
    kind = pick(rng, ["laplacian", "normalized_laplacian", "negated_adjacency"])
    most = np.abs(plain.adjacency).sum(axis=1).max() if plain.size else 1.0
    longest = min(3.0, 20.0 / max(1.0, most)) if kind == "negated_adjacency" else 30.0 if extreme else 3.0
    time = torch.from_numpy(rng.uniform(0.05, longest, size=heads))
    mask = tm.DiffusionMask(plain.graph, kind, time=time if heads > 1 else float(time[0]), num_heads=heads)

    def matrix(adjacency: np.ndarray) -> np.ndarray:
        degrees = np.abs(adjacency).sum(axis=1)
        if kind == "laplacian":
            return np.diag(degrees) - adjacency
        if kind == "negated_adjacency":
            return -adjacency
        roots = np.where(degrees > 0, degrees, 1.0) ** 0.5
        return np.diag((degrees > 0).astype(float)) - adjacency / roots[:, None] / roots

    def spectral(adjacency: np.ndarray) -> tuple[Tensor, Tensor]:
        values, vectors = np.linalg.eigh(matrix(adjacency))
        return torch.from_numpy(values), torch.from_numpy(vectors)

    # Between components M is 0, which eigenvectors of equal eigenvalues hide.
    together = torch.from_numpy(np.isfinite(hops((plain.adjacency != 0) | (plain.adjacency.T != 0))))
    both = spectral(plain.adjacency), spectral(np.abs(plain.adjacency))

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        time = p["log_time"].exp()
        found = [
            torch.einsum("ia,ha,ja->hij", vectors, (-time[:, None] * values).exp(), vectors) * together
            for values, vectors in both
        ]
        return found[0], found[1]

    growth = math.exp(float(time.max()) * most) if kind == "negated_adjacency" else 1.0
    return PlainMask(mask, define, plain.groups, noise=8.0 * growth * (1.0 + longest * (1.0 + most)) ** 0.5)


def forest(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """Sums of exponentials of distances on trees."""
    terms, growing, weighted = int(rng.integers(1, 4)), bool(rng.random() < 0.3), bool(rng.random() < 0.5)
    rate = torch.from_numpy(np.exp(rng.normal(size=(heads, terms))))
    if growing:
        rate = torch.from_numpy(rng.uniform(-0.2, 1.0, size=(heads, terms)))
    elif extreme:
        rate = rate * 10.0
    mask = tm.ForestMask(plain.graph, num_heads=heads, num_terms=terms, rate=rate, weighted=weighted, growing=growing)
    with torch.no_grad():
        learnt = mask.offset if terms == 1 else mask.coefficients
        learnt.copy_(normal(rng, *learnt.shape))
    distance = constant(lengths(plain.adjacency if weighted else (plain.adjacency != 0).astype(float)))
    reached = distance.isfinite()
    distance = torch.where(reached, distance, 0.0)

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        rates = -p["rates"] if growing else -p["rates"].exp()
        c = p["offset"].exp()[:, None] if terms == 1 else p["coefficients"]
        powers = (rates[:, :, None, None] * distance).exp()
        parts = [(x[:, :, None, None] * powers).sum(dim=1) * reached for x in (c, c.abs())]
        return parts[0], parts[1]

    # Entries between a few nodes are read off sums over trees.
    largest = define({name: x.detach().double() for name, x in mask.named_parameters()})[1].max()
    return PlainMask(mask, define, plain.groups, noise=float(largest))


def forest_table(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """A table of distances on trees."""
    weighted = bool((plain.adjacency == np.rint(plain.adjacency)).all()) and bool(rng.random() < 0.5)
    table = normal(rng, heads, int(rng.integers(1, 12)))
    table = table.abs() + 0.1 if rng.random() < 0.3 else table
    mask = tm.ForestMask(plain.graph, num_heads=heads, table=table, weighted=weighted)
    distance = lengths(plain.adjacency if weighted else (plain.adjacency != 0).astype(float))
    index = np.where(np.isfinite(distance), distance, 1e9)

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        found = per_head(p["table"], index)
        return found, found.abs()

    return PlainMask(mask, define, plain.groups, noise=16.0 * float(table.norm()))


def shortest_path(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """A weight per distance, or its exponential."""
    bias, by_length = bool(rng.random() < 0.5), bool(rng.random() < 0.3)
    unreachable = float(rng.normal()) if rng.random() < 0.4 else None
    options = {}
    if by_length:
        ends = np.sort(rng.uniform(0.0, 5.0, size=int(rng.integers(1, 5))))
        options["boundaries"] = ends.tolist()
        distance = lengths(plain.adjacency)
        buckets, size = np.searchsorted(ends, distance), len(ends) + 1
    else:
        options["max_distance"] = int(rng.integers(0, 6))
        distance, size = hops(plain.adjacency), options["max_distance"] + 1
        buckets = np.minimum(distance, size - 1)
    initial = normal(rng, heads, size)
    if extreme and bias:
        initial = initial + float(pick(rng, [-95.0, -110.0, -300.0, 60.0]))
        if rng.random() < 0.5:
            initial[:, 0] = 0.0
    mask = tm.ShortestPathMask(
        plain.graph, num_heads=heads, initial=initial, unreachable=unreachable, bias=bias, **options
    )
    same = plain.groups[:, None] == plain.groups
    beyond = size if unreachable is not None else size + 1
    index = np.where(same, np.where(np.isfinite(distance), buckets, beyond), size + 1)

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        found = per_head(p["weight"].exp() if bias else p["weight"], index)
        return found, found.abs()

    return PlainMask(mask, define, plain.groups, exact=bias)


def degree(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """sin(pi/4 (z(d_i) + z(d_j))) within a graph."""
    most = int(rng.integers(0, 8))
    z = torch.from_numpy(rng.uniform(0.01, 0.99, size=(heads, most + 1)))
    mask = tm.DegreeMask(plain.graph, num_heads=heads, max_degree=most, z=z)
    degrees = torch.from_numpy(np.minimum((plain.adjacency != 0).sum(axis=1), most).astype(np.int64))
    same = torch.from_numpy(plain.groups[:, None] == plain.groups)

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        z = p["logits"].sigmoid()[:, degrees]
        found = (math.pi / 4 * (z[:, :, None] + z[:, None])).sin() * same
        return found, found

    return PlainMask(mask, define, plain.groups)


def neighbor(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """Edges and self-loops."""
    weighted, self_loops = bool(rng.random() < 0.4), bool(rng.random() < 0.7)
    mask = tm.NeighborMask(plain.graph, weighted=weighted, self_loops=self_loops)
    found = plain.adjacency if weighted else (plain.adjacency != 0).astype(float)
    if self_loops:
        found = found + np.diag((np.diag(plain.adjacency) == 0).astype(float))
    matrix = constant(found)[None]
    return PlainMask(mask, lambda p: (matrix, matrix.abs()), plain.groups)


def all_pairs(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """Ones within a graph."""
    matrix = constant((plain.groups[:, None] == plain.groups).astype(float))[None]
    return PlainMask(tm.AllPairsMask(plain.graph), lambda p: (matrix, matrix), plain.groups)
