"""Which way to compute masked attention: all give the same answer, at different cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from topomask import costs
from topomask.masks.base import MAX_KEPT_ENTRIES, MAX_PAIRS_PER_QUERY, Mask

Strategy = Literal["auto", "pairs", "features", "dense"]
Kernel = Literal["linear", "softmax"]

# Pairs of walks that may meet in small problems whatever their number per query.
MIN_PAIR_BUDGET = 1 << 22
# Entries of a sparse mask: with what is kept beside each, about 8 GB.
MAX_PAIRS = 1 << 28
# Attention weights of all inputs and heads that "auto" is willing to form at a time.
MAX_DENSE_ENTRIES = 1 << 28
# Attention weights from which on memory decides.
_LARGE = 1 << 23


@dataclass(frozen=True)
class Plan:
    """The way that was chosen, and why.

    Attributes:
        strategy: ``"pairs"``, ``"features"`` or ``"dense"``.
        reason: One sentence.
        seconds: Estimated time of every way that is open.
        flops: Counted floating-point operations of every way that is open.
    """

    strategy: Strategy
    reason: str
    seconds: dict[str, float]
    flops: dict[str, float]

    def __str__(self) -> str:
        table = ", ".join(f"{name} {time:.2g} s" for name, time in sorted(self.seconds.items(), key=lambda x: x[1]))
        return f"{self.strategy}: {self.reason} (estimates: {table})"


def plan_attention(
    mask: Mask,
    num_features: int,
    value_dim: int,
    batch_size: int = 1,
    num_heads: int | None = None,
    *,
    strategy: Strategy = "auto",
    kernel: Kernel = "linear",
    dropout: bool = False,
) -> Plan:
    """Choose how to compute masked attention.

    Args:
        mask: The mask.
        num_features: Width of the query and key features M.
        value_dim: Width of the values D.
        batch_size: Inputs that share the mask.
        num_heads: Heads of the input. Default: those of the mask.
        strategy: ``"auto"``, or the way to take.
        kernel: ``"linear"`` or ``"softmax"`` attention.
        dropout: Whether pairs are dropped.

    Example:
        >>> import topomask as tm
        >>> mask = tm.WalkMask(tm.grid_graph(8, 8), seed=0)
        >>> tm.plan_attention(mask, num_features=16, value_dim=16).strategy
        'dense'
    """
    if strategy not in get_args(Strategy):
        raise ValueError(f"`strategy` must be one of {get_args(Strategy)}, but is {strategy!r}.")
    times = batch_size * (max(num_heads or 1, mask.num_heads) // mask.num_heads)
    closed = _closed(mask, kernel, dropout)
    flops, seconds = _costs(mask, num_features, value_dim, times, kernel)
    if strategy != "auto":
        if strategy in closed:
            raise ValueError(f"`strategy` is {strategy!r}, but {closed[strategy]}.")
        return Plan(strategy, "asked for", seconds, flops)
    open_ways = {name: time for name, time in seconds.items() if name not in closed}
    if kernel == "softmax" and is_plain(mask, strategy, dropout):
        reason = "nothing is hidden: plain attention, whose weights are not kept"
        return Plan("dense", reason, {"dense": open_ways["dense"]}, {"dense": flops["dense"]})
    entries = times * mask.num_heads * mask.num_queries * mask.num_keys
    if len(open_ways) > 1 and entries > MAX_DENSE_ENTRIES:
        open_ways.pop("dense")
    if set(open_ways) == {"dense"} and entries > MAX_DENSE_ENTRIES:
        reasons = "; ".join(closed.values())
        raise ValueError(
            f"Only dense attention with {entries:,} weights would do: {reasons}. "
            "Use WalkMask(symmetric=False), whose pairs are few on any graph (mask='walk' of graph transformers), or "
            "linear attention (kind='linear'), or strategy='dense' of masked_softmax_attention all the same."
        )
    # A plain loop: the compiler cannot look into min() with a key where sizes are symbols.
    best = next(iter(open_ways))
    for name, time in open_ways.items():
        if time < open_ways[best]:
            best = name
    others = "; ".join(closed.values())
    reason = "the least estimated time" if len(open_ways) > 1 else f"the only way, since {others}"
    if len(open_ways) > 1 and closed:
        reason += f" ({others})"
    return Plan(best, reason, open_ways, {name: flops[name] for name in open_ways})  # type: ignore[arg-type]


def is_plain(mask: Mask, strategy: Strategy, dropout: bool) -> bool:
    """Whether softmax attention is that without a mask: nothing is hidden or dropped, and no way was asked for."""
    return strategy == "auto" and mask.hides_nothing and not dropout


def _closed(mask: Mask, kernel: Kernel, dropout: bool) -> dict[str, str]:
    """The ways that are not open, with the reason."""
    closed = {}
    bound, estimate = mask.num_pairs_bound, mask.num_pairs_estimate
    limit = max(MIN_PAIR_BUDGET, MAX_PAIRS_PER_QUERY * mask.num_heads * mask.num_inner_rows)
    if bound is None or estimate is None:
        closed["pairs"] = f"{type(mask).__name__} has no sparse entries"
    elif bound > limit:
        closed["pairs"] = (
            f"{type(mask).__name__} has up to {bound:,} pairs, more than {MAX_PAIRS_PER_QUERY} per query and head; "
            "WalkMask(symmetric=False) has few pairs on any graph, also where it has hubs, or walks are many and long"
        )
    elif estimate > MAX_PAIRS:
        closed["pairs"] = f"about {estimate:,} entries would not fit in memory; WalkMask(symmetric=False) has fewer"
    if kernel == "softmax":
        closed["features"] = "softmax attention needs the entries of the mask"
    elif dropout:
        closed["features"] = "dropout acts on pairs, which products with the mask never form"
    return closed


def _costs(
    mask: Mask, num_features: int, value_dim: int, times: int, kernel: Kernel
) -> tuple[dict[str, float], dict[str, float]]:
    """Counted operations and estimated seconds of every way."""
    work = count_work(mask, num_features, value_dim, times, kernel)
    return (
        {name: way.flops for name, way in work.items()},
        {
            name: 1e-9 * sum(costs.constants[term] * count for term, count in way.terms.items())
            for name, way in work.items()
        },
    )


class Work(NamedTuple):
    """What a way does."""

    flops: float
    terms: dict[str, float]  # how often every term of the cost model counts


def count_work(mask: Mask, num_features: int, value_dim: int, times: int, kernel: Kernel) -> dict[str, Work]:
    """The work of every way to attend ``times`` times with a mask."""
    width = num_features + value_dim
    rows, entries = mask.num_heads * mask.num_queries, mask.num_heads * mask.num_queries * mask.num_keys
    refresh = mask.refresh_cost
    softmax = float(kernel == "softmax")
    spread = times * num_features * (value_dim + 1)
    features = {
        "features: call": 1.0,
        "features: multiply-add": spread * mask.product_cost,
        "features: element": spread * rows,
        "features: refresh": min(refresh, mask.product_cost),
    }
    if mask.rank is not None:
        # Features of queries and keys are multiplied by values as matrices, and never spread over them.
        joined = 2 * mask.rank * rows * spread
        features = {"features: call": 1.0, "dense: multiply-add": joined, "features: refresh": refresh}
    formed = entries if mask.refresh_cost or entries > MAX_KEPT_ENTRIES else 0
    dense = {
        "dense: call": 1.0,
        "dense: multiply-add": times * entries * width,
        "dense: weight": times * entries,
        "dense: power": softmax * times * entries,
        # What does not fit in the caches is paged in again and again. Linear attention takes some inputs at a time.
        "dense: large weight": times * entries if entries * (times if softmax else 1) > _LARGE else 0,
        "dense: entry": formed,
        "dense: formed": mask.dense_cost if formed else 0,
    }
    work = {
        "features": Work(2.0 * spread * (mask.product_cost + rows), features),
        "dense": Work(2.0 * times * entries * width + 2.0 * mask.dense_cost, dense),
    }
    bound, estimate = mask.num_pairs_bound, mask.num_pairs_estimate
    if bound is not None and estimate is not None:
        pairs = min(estimate, entries)
        tiles = mask.tile_work
        if tiles is None:
            terms = {
                "rows: call": 1.0,
                "rows: multiply-add": times * pairs * width,
                "rows: pair": times * pairs,
                "rows: power": softmax * times * pairs,
                "rows: query": times * rows * width,
                "rows: refresh": refresh,
            }
        else:
            terms = {
                "tiles: call": 1.0,
                "tiles: key": times * tiles.keys,
                "tiles: key, per width": times * tiles.keys * width,
                "tiles: alone": times * tiles.alone,
                "tiles: alone, per width": times * tiles.alone * width,
                "tiles: power": softmax * times * tiles.keys,
                "tiles: query": times * rows * width,
                "tiles: refresh": refresh,
            }
        work["pairs"] = Work(2.0 * times * pairs * width + 2.0 * refresh, terms)
    return work
