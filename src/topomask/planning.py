"""Which way to compute masked attention: all give the same answer, at different cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from topomask.masks.base import MAX_PAIRS_PER_QUERY, Mask

Strategy = Literal["auto", "pairs", "features", "dense"]
Kernel = Literal["linear", "softmax"]

# Pairs of walks that may meet in small problems whatever their number per query.
MIN_PAIR_BUDGET = 1 << 22
# Entries of a sparse mask: with what is kept beside each, about 8 GB.
MAX_PAIRS = 1 << 28
# Attention weights of all inputs and heads that "auto" is willing to form at a time.
MAX_DENSE_ENTRIES = 1 << 28

# Nanoseconds, set by hand near what benchmarks/calibrate.py prints for the compiled kernels on two cores in float32.
_NS_PAIR_SCORE = 0.12
_NS_PAIR_SUM = 0.12
_NS_PAIR_REFRESH = 1.5
_NS_FEATURE = 0.15
_NS_DENSE = 0.02
_NS_DENSE_ENTRY = 3.5


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
    flops, seconds = _costs(mask, num_features, value_dim, times)
    if strategy != "auto":
        if strategy in closed:
            raise ValueError(f"`strategy` is {strategy!r}, but {closed[strategy]}.")
        return Plan(strategy, "asked for", seconds, flops)
    open_ways = {name: time for name, time in seconds.items() if name not in closed}
    entries = times * mask.num_heads * mask.num_queries * mask.num_keys
    if len(open_ways) > 1 and entries > MAX_DENSE_ENTRIES:
        open_ways.pop("dense")
    if set(open_ways) == {"dense"} and entries > MAX_DENSE_ENTRIES:
        reasons = "; ".join(closed.values())
        raise ValueError(
            f"Only dense attention with {entries:,} weights would do: {reasons}. "
            "Use WalkMask(symmetric=False), whose pairs are few on any graph, or pass strategy='dense' all the same."
        )
    best = min(open_ways, key=lambda name: open_ways[name])
    others = "; ".join(closed.values())
    reason = "the least estimated time" if len(open_ways) > 1 else f"the only way, since {others}"
    if len(open_ways) > 1 and closed:
        reason += f" ({others})"
    return Plan(best, reason, open_ways, {name: flops[name] for name in open_ways})  # type: ignore[arg-type]


def _closed(mask: Mask, kernel: Kernel, dropout: bool) -> dict[str, str]:
    """The ways that are not open, with the reason."""
    closed = {}
    bound, estimate = mask.num_pairs_bound, mask.num_pairs_estimate
    limit = max(MIN_PAIR_BUDGET, MAX_PAIRS_PER_QUERY * mask.num_heads * mask.num_inner_rows)
    if bound is None or estimate is None:
        closed["pairs"] = f"{type(mask).__name__} has no sparse entries"
    elif bound > limit:
        closed["pairs"] = (
            f"up to {bound:,} pairs of walks meet, more than {MAX_PAIRS_PER_QUERY} per query and head (the graph has "
            "hubs, or walks are many and long); WalkMask(symmetric=False) has few pairs on any graph"
        )
    elif estimate > MAX_PAIRS:
        closed["pairs"] = f"about {estimate:,} entries would not fit in memory; WalkMask(symmetric=False) has fewer"
    if kernel == "softmax":
        closed["features"] = "softmax attention needs the entries of the mask"
    elif dropout:
        closed["features"] = "dropout acts on pairs, which products with the mask never form"
    return closed


def _costs(mask: Mask, num_features: int, value_dim: int, times: int) -> tuple[dict[str, float], dict[str, float]]:
    width = num_features + value_dim
    flops, seconds = {}, {}
    flops["features"] = 2.0 * times * num_features * value_dim * (mask.product_cost + mask.num_heads * mask.num_queries)
    seconds["features"] = 0.5e-9 * _NS_FEATURE * flops["features"]
    entries = mask.num_heads * mask.num_queries * mask.num_keys
    flops["dense"] = 2.0 * times * entries * width + 2.0 * mask.product_cost * mask.num_keys
    seconds["dense"] = 0.5e-9 * _NS_DENSE * flops["dense"] + 1e-9 * _NS_DENSE_ENTRY * entries * times
    bound, estimate = mask.num_pairs_bound, mask.num_pairs_estimate
    if bound is not None and estimate is not None:
        pairs = min(estimate, entries)
        refresh = bound if bound > mask.product_cost else 0
        flops["pairs"] = 2.0 * times * pairs * width + 2.0 * refresh
        per_pair = _NS_PAIR_SCORE * num_features + _NS_PAIR_SUM * value_dim
        seconds["pairs"] = 1e-9 * (times * pairs * per_pair + _NS_PAIR_REFRESH * refresh)
    return flops, seconds
