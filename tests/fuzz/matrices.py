"""Masks without a graph, and masks made of masks, each with its plain definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor, nn

import topomask as tm
from fuzz.graphs import PlainGraph, Rng, grid_shape, pick
from fuzz.plain import PlainMask, constant, normal, part


def _alone(size: int) -> np.ndarray:
    return np.zeros(size, dtype=int)


def _entries(rng: Rng, shape: tuple[int, ...], extreme: bool) -> Tensor:
    matrix = normal(rng, *shape)
    if rng.random() < 0.4:
        matrix = matrix.abs()
    if rng.random() < 0.3:
        matrix = matrix * torch.from_numpy(rng.random(shape) < 0.5)
    if extreme:
        scales = pick(rng, [[1.0, 1e-30], [1e-30], [1e-30, 1e30], [1e-40], [1e20, 1.0, 1e-20]])
        matrix = matrix * torch.from_numpy(rng.choice(scales, size=shape))
    return matrix


def dense(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """A given matrix."""
    keys = plain.size if rng.random() < 0.6 else int(rng.integers(1, 2 * plain.size + 1))
    shape = (heads, plain.size, keys) if heads > 1 or rng.random() < 0.5 else (plain.size, keys)
    mask = tm.DenseMask(nn.Parameter(_entries(rng, shape, extreme)))

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        matrix = p["matrix"] if p["matrix"].ndim == 3 else p["matrix"][None]
        return matrix, matrix.abs()

    return PlainMask(mask, define, _alone(keys), exact=True)


def low_rank(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """U V^T."""
    rank, tied = int(rng.integers(1, 6)), bool(rng.random() < 0.4)
    keys = plain.size if tied or rng.random() < 0.6 else int(rng.integers(1, 2 * plain.size + 1))
    scale = 10.0 ** rng.uniform(-10, 10) if extreme else 1.0
    lead = (heads,) if heads > 1 or rng.random() < 0.5 else ()
    u, v = (scale * normal(rng, *lead, size, rank) for size in (plain.size, keys))
    mask = tm.LowRankMask(nn.Parameter(u), None if tied else nn.Parameter(v))

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        u = p["u"] if p["u"].ndim == 3 else p["u"][None]
        v = u if tied else p["v"] if p["v"].ndim == 3 else p["v"][None]
        return u @ v.mT, u.abs() @ v.abs().mT

    return PlainMask(mask, define, _alone(keys))


def learned_features(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """Phi Phi^T."""
    mask = tm.LearnedFeatureMask(plain.size, num_features=int(rng.integers(1, 6)), num_heads=heads)
    with torch.no_grad():
        mask.features.copy_(normal(rng, *mask.features.shape))

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        phi = p["features"]
        return phi @ phi.mT, phi.abs() @ phi.abs().mT

    return PlainMask(mask, define, _alone(plain.size))


def hypercube(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """The heat kernel by the number of bits in which nodes differ."""
    dim = int(math.log2(plain.size))
    rate = torch.from_numpy(np.exp(rng.normal(size=heads) + (3.0 if extreme else 0.0)))
    mask = tm.HypercubeMask(dim, num_heads=heads, rate=rate)
    nodes = range(2**dim)
    bits = torch.tensor([[(i ^ j).bit_count() for j in nodes] for i in nodes], dtype=torch.float64)

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        change = -torch.expm1(-2.0 * p["log_rate"].exp())[:, None, None] / 2.0
        found = (1.0 - change) ** (dim - bits) * change**bits
        return found, found

    return PlainMask(mask, define, _alone(2**dim), homogeneous=True)


def toeplitz(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """A number per offset, or a function of distance, on a grid."""
    rows, columns = grid_shape(rng, plain.size)
    shape = pick(rng, [(rows * columns,), (rows, columns), (rows, 1, columns)])
    causal = len(shape) == 1 and bool(rng.random() < 0.4)
    distance = pick(rng, [None, "l1", "l2", "linf"])
    positive, module = bool(rng.random() < 0.4), distance is not None and bool(rng.random() < 0.3)
    places = list(itertools.product(*(range(size) for size in shape)))
    offsets = np.array([[np.subtract(j, i) for j in places] for i in places])  # [N, N, dims]
    size = len(places)
    kept = constant(np.tril(np.ones((size, size)))) if causal else torch.ones(size, size).double()
    measures = {
        "l1": np.abs(offsets).sum(-1),
        "l2": (offsets**2).sum(-1),
        "linf": np.abs(offsets).max(-1),
    }
    if distance is None:
        index = np.zeros((size, size), dtype=np.int64)
        for axis, length in enumerate(shape):
            index = index * (2 * length - 1) + offsets[:, :, axis] + length - 1
        sizes = (size,) if causal else tuple(2 * length - 1 for length in shape)
    else:
        levels, index = np.unique(measures[distance], return_inverse=True)
        levels = levels**0.5 if distance == "l2" else levels
        index, sizes = index.reshape(size, size), (len(levels),)
    f = normal(rng, heads, *sizes)
    f = f.abs() + 1e-3 if positive else f
    if module:
        f = tm.ExponentialDecay(heads, torch.from_numpy(np.exp(rng.normal(size=heads))))
    mask = tm.ToeplitzMask(shape, num_heads=heads, distance=distance, f=f, positive=positive, causal=causal)
    places_of = torch.from_numpy(np.minimum(index, math.prod(sizes) - 1))

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        if module:
            values = (-p["f.log_rate"].exp()[:, None] * constant(levels)).exp()
        else:
            values = p["weight"].reshape(heads, -1)
        values = values.exp() if positive else values
        found = values[:, places_of] * kept
        return found, found.abs()

    norm = 4.0 * (1.0 + float(define({n: x.detach().double() for n, x in mask.named_parameters()})[1].norm()))
    return PlainMask(mask, define, _alone(size), noise=norm * math.log2(2.0 + size))


def position(rng: Rng, plain: PlainGraph, heads: int, extreme: bool) -> PlainMask:
    """Products of codes of positions: waves or filters times frozen noise."""
    kind, gated = pick(rng, ["sine", "conv"]), bool(rng.random() < 0.6)
    columns = None if kind == "sine" and rng.random() < 0.5 else int(rng.integers(1, 9))
    size = int(rng.integers(1, 5))
    options = {"num_sines": size} if kind == "sine" else {"kernel_size": size}
    seed = None if columns is None else int(rng.integers(2**40))
    mask = tm.StochasticPositionMask(
        None, num_heads=heads, num_realizations=columns, kind=kind, gated=gated, seed=seed, **options
    )
    mask.graph = plain.graph
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.copy_(normal(rng, *parameter.shape))
    numbers = np.concatenate([np.arange(n) for n in np.bincount(plain.groups)])
    count = int(numbers.max()) + 1
    if columns is None:
        eye = torch.eye(2 * size + 1, dtype=torch.float64).expand(heads, -1, -1)
        process, steady = eye[:, :-1], eye[:, -1:]
    else:
        process, steady = (constant(x) for x in mask.templates.noise(mask.seed, 0, count, columns, "cpu"))
    same = constant((plain.groups[:, None] == plain.groups).astype(float))

    def codes(p: dict[str, Tensor], query: bool) -> Tensor:
        found = []
        for m in range(count):
            if kind == "sine":
                angles = math.pi * p["raw_frequencies"].sigmoid() * m + (p["phases"] if query else 0.0)
                waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
                gains = torch.nn.functional.softplus(p["raw_gains"]).repeat(1, 2)
                found.append(torch.einsum("hj,hjr->hr", waves * gains, process))
            else:
                taps = p["query_filter" if query else "key_filter"]
                found.append(sum(taps[:, lag, None] * process[:, m + size - 1 - lag] for lag in range(size)))
        codes = torch.stack(found, dim=1)
        if gated:
            share = p["gate"].sigmoid()[:, None, None]
            codes = share.sqrt() * steady + (1.0 - share).sqrt() * codes
        return codes[:, numbers]

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        p = part(p, "templates.")
        q, k = codes(p, True), codes(p, False)
        return q @ k.mT * same, q.abs() @ k.abs().mT * same

    # Angles at far positions are that much coarser.
    start = {name: x.detach().double() for name, x in mask.named_parameters()}
    noise = 0.1 * count * float(define(start)[1].max())
    return PlainMask(mask, define, plain.groups, noise=noise)


def add(rng: Rng, parts: list[PlainMask], extreme: bool) -> PlainMask:
    """A weighted sum of masks for the same tokens."""
    heads = max(plain.mask.num_heads for plain in parts)
    weights = normal(rng, len(parts), heads)
    weights = weights.abs() if rng.random() < 0.4 else weights
    if extreme:
        weights = weights * 10.0 ** rng.uniform(-10, 10)
    kind = pick(rng, ["learnt", "numbers", "buffer"])
    if kind == "numbers":
        weights = weights[:, :1].expand(-1, heads)
        given = [float(weight) for weight in weights[:, 0]]
    else:
        given = nn.Parameter(weights) if kind == "learnt" else weights
    mask = tm.SumMask([plain.mask for plain in parts], given)

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        own = (
            p["weights.weight"] if kind == "learnt" else constant(mask.weights.weight) if kind == "buffer" else weights
        )
        found = [plain.define(part(p, f"masks.{number}.")) for number, plain in enumerate(parts)]
        total = sum(own[number][:, None, None] * x for number, (x, _) in enumerate(found))
        return total, sum(own[number].abs()[:, None, None] * x for number, (_, x) in enumerate(found))

    noise = sum(float(weights[number].abs().max()) * plain.noise for number, plain in enumerate(parts))
    return PlainMask(mask, define, parts[0].groups, noise=noise, homogeneous=any(x.homogeneous for x in parts))


def kronecker(first: PlainMask, second: PlainMask) -> PlainMask:
    """M_1 x M_2 on pairs of tokens."""
    mask = tm.KroneckerMask(first.mask, second.mask)

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        a, b = first.define(part(p, "first.")), second.define(part(p, "second."))
        found = [
            (x[:, :, None, :, None] * y[:, None, :, None, :]).flatten(3, 4).flatten(1, 2)
            for x, y in zip(a, b, strict=True)
        ]
        return found[0], found[1]

    groups = (first.groups[:, None] * (int(second.groups.max(initial=0)) + 1) + second.groups).ravel()
    _, groups = np.unique(groups, return_inverse=True)
    sizes = [_largest(plain) for plain in (first, second)]
    noise = first.noise * (sizes[1] + second.noise * 1e-6) + second.noise * sizes[0]
    return PlainMask(mask, define, groups, noise=noise, homogeneous=first.homogeneous or second.homogeneous)


def _largest(plain: PlainMask) -> float:
    found = plain.define({name: x.detach().double() for name, x in plain.parameters().items()})[1]
    return float(found.detach().sum(dim=-1).max()) if found.numel() else 0.0


def prefix(rng: Rng, inner: PlainMask) -> PlainMask:
    """Tokens in front that see and are seen by all of their graph."""
    count, graphs = int(rng.integers(1, 3)), int(inner.groups.max(initial=0)) + 1
    mask = tm.PrefixMask(inner.mask, count)
    groups = np.concatenate([np.repeat(np.arange(graphs), count), inner.groups])
    start = count * graphs
    same = constant((groups[:, None] == groups).astype(float))
    ones = same.clone()
    ones[start:, start:] = 0.0

    def define(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        found = inner.define(part(p, "mask."))
        return tuple(ones + torch.nn.functional.pad(x, (start, 0, start, 0)) for x in found)

    return PlainMask(mask, define, groups, noise=inner.noise, homogeneous=inner.homogeneous)
