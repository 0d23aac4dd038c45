"""Choose the strategy of masked attention: all give the same result, at different cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import torch

from topomask.attention import costs
from topomask.masks.mask import Mask, not_a_mask
from topomask.masks.operator import MAX_KEPT_ENTRIES, Cost, Operator
from topomask.ops import dense_attention
from topomask.support.checks import check_choice
from topomask.walks.record import MAX_PAIRS_PER_QUERY

Strategy = Literal["auto", "pairs", "product", "dense"]
Kernel = Literal["linear", "softmax"]

# In small problems, this many pairs of walks may meet, regardless of their number per query.
_MIN_PAIR_BUDGET = 1 << 22
# Entries of a sparse mask: with the data stored for each, about 8 GB.
_MAX_PAIRS = 1 << 28
# Attention weights of all inputs and heads that "auto" computes at a time.
_MAX_DENSE_ENTRIES = 1 << 28
# Beyond this many attention weights, memory dominates the time.
_LARGE = 1 << 23


@dataclass(frozen=True)
class Plan:
    """The strategy that was chosen, and why.

    Attributes:
        strategy: ``"pairs"``, ``"product"`` or ``"dense"``.
        reason: Why it was chosen, in one sentence.
        seconds: Estimated time of each possible strategy.
        flops: Number of floating-point operations of each possible strategy.
        is_plain: Whether this is plain softmax attention, because all entries of the mask are 1.
    """

    strategy: Strategy
    reason: str
    seconds: dict[str, float]
    flops: dict[str, float]
    is_plain: bool = False

    def __str__(self) -> str:
        table = ", ".join(f"{name} {time:.2g} s" for name, time in sorted(self.seconds.items(), key=lambda x: x[1]))
        return f"{self.strategy}: {self.reason} (estimates: {table})"


class Problem(NamedTuple):
    """Everything that a plan depends on."""

    name: str  # of the mask, for error messages
    cost: Cost
    is_all_ones: bool
    num_heads: int  # of the mask
    num_queries: int
    num_keys: int
    num_features: int
    value_dim: int
    times: int  # number of inputs, times heads that share a head of the mask
    strategy: Strategy = "auto"
    kernel: Kernel = "linear"
    dropout: bool = False

    @classmethod
    def of(
        cls, operator: Operator, num_features: int, value_dim: int, batch_size: int, num_heads: int | None, **how: Any
    ) -> Problem:
        """Describe attention with an operator; the arguments are those of :func:`plan_attention`."""
        heads = operator.num_heads
        times = batch_size * (max(num_heads or 1, heads) // heads)
        cost, sizes = operator.cost(), (heads, operator.num_queries, operator.num_keys, num_features, value_dim, times)
        return cls(operator.name, cost, operator.is_all_ones, *sizes, **how)

    @property
    def entries(self) -> int:
        """Number of entries of the mask as a dense matrix."""
        return self.num_heads * self.num_queries * self.num_keys


def plan_attention(
    mask: Mask | Operator,
    num_features: int,
    value_dim: int,
    batch_size: int = 1,
    num_heads: int | None = None,
    *,
    strategy: Strategy = "auto",
    kernel: Kernel = "linear",
    dropout: bool = False,
) -> Plan:
    """Choose how to compute masked attention, by estimated time.

    Args:
        mask: A mask or an operator.
        num_features: Width of the query and key features M.
        value_dim: Width of the values D.
        batch_size: Number of inputs that share the mask.
        num_heads: Number of heads of the input. Default: that of the mask.
        strategy: ``"auto"``, or the strategy to use.
        kernel: ``"linear"`` or ``"softmax"`` attention.
        dropout: Whether pairs are dropped.

    Returns:
        The plan: its strategy, the reason, and the estimated time of each possible strategy.

    Example:
        >>> import topomask as tm
        >>> mask = tm.WalkMask(tm.grid_graph(8, 8), seed=0)
        >>> tm.plan_attention(mask, num_features=16, value_dim=16).strategy
        'dense'
    """
    if not isinstance(mask, (Mask, Operator)):
        raise not_a_mask(mask, "topomask.Mask or an Operator")
    operator = mask.on() if isinstance(mask, Mask) else mask
    check_choice("kernel", kernel, get_args(Kernel))
    check_choice("strategy", strategy, get_args(Strategy))
    if num_heads is not None and operator.num_heads not in (1, num_heads):
        raise ValueError(f"`mask` must have one head or num_heads={num_heads}, but has {operator.num_heads}.")
    if isinstance(batch_size, torch.SymInt):
        # An exported program serves any batch, so the choice must not depend on it.
        batch_size = batch_size.node.hint or 1
    sizes = (num_features, value_dim, batch_size, num_heads)
    problem = Problem.of(operator, *sizes, strategy=strategy, kernel=kernel, dropout=dropout)
    return _choose(problem) if torch.compiler.is_compiling() else _cached_plan(problem, id(costs.constants))


@lru_cache(1024)
def _cached_plan(problem: Problem, _: int) -> Plan:
    """Plans are cached until the constants of the cost model change."""
    return _choose(problem)


def _choose(problem: Problem) -> Plan:
    strategy, closed, work = problem.strategy, _closed(problem), count_work(problem)
    flops = {name: way.flops for name, way in work.items()}
    seconds = {
        name: 1e-9 * sum([costs.constants[term] * count for term, count in way.terms.items()])
        for name, way in work.items()
    }
    if strategy != "auto":
        if strategy in closed:
            raise ValueError(f"`strategy` is {strategy!r}, but {closed[strategy]}.")
        return Plan(strategy, "requested", seconds, flops)
    open_ways = {name: time for name, time in seconds.items() if name not in closed}
    if problem.kernel == "softmax" and problem.is_all_ones and not problem.dropout:
        reason = "all entries are 1: plain attention, which stores no weights"
        return Plan("dense", reason, {"dense": open_ways["dense"]}, {"dense": flops["dense"]}, is_plain=True)
    weights, reasons = problem.times * problem.entries, "; ".join(closed.values())
    if weights > _MAX_DENSE_ENTRIES:
        if len(open_ways) == 1:
            raise ValueError(
                f"Only dense attention is possible, with {weights:,} weights: {reasons}. Use WalkMask(symmetric=False),"
                " which has few pairs on any graph (mask='walk' in graph transformers), or linear attention"
                " (kind='linear'), or force it with strategy='dense' in masked_softmax_attention."
            )
        open_ways.pop("dense")
    # A plain loop: the compiler cannot trace min() with a key if sizes are symbolic.
    best = next(iter(open_ways))
    for name, time in open_ways.items():
        if time < open_ways[best]:
            best = name
    if len(open_ways) == 1:
        reason = f"the only way, because {reasons}"
    else:
        reason = "lowest estimated time" + (f" ({reasons})" if closed else "")
    return Plan(best, reason, open_ways, {name: flops[name] for name in open_ways})  # type: ignore[arg-type]


def _closed(problem: Problem) -> dict[str, str]:
    """The strategies that are not possible, each with the reason."""
    closed: dict[str, str] = {}
    cost = problem.cost
    rows = max(cost.inner_rows, problem.num_queries, problem.num_keys)
    limit = max(_MIN_PAIR_BUDGET, MAX_PAIRS_PER_QUERY * problem.num_heads * rows)
    if cost.pairs is None or cost.max_pairs is None:
        closed["pairs"] = f"{problem.name} has no sparse entries"
    elif cost.max_pairs > limit:
        closed["pairs"] = (
            f"{problem.name} has up to {cost.max_pairs:,} pairs, more than {MAX_PAIRS_PER_QUERY} per query and head; "
            "WalkMask(symmetric=False) has few pairs even if the graph has hubs, or walks are many and long"
        )
    elif cost.pairs > _MAX_PAIRS:
        closed["pairs"] = f"about {cost.pairs:,} entries would not fit in memory; WalkMask(symmetric=False) has fewer"
    if problem.kernel == "softmax":
        closed["product"] = "softmax attention needs the entries of the mask"
    elif problem.dropout:
        closed["product"] = "dropout acts on pairs, which products with the mask never compute"
    return closed


class Work(NamedTuple):
    """The work of a strategy."""

    flops: float
    terms: dict[str, float]  # count of each term of the cost model


def count_work(problem: Problem) -> dict[str, Work]:
    """Count the work of each strategy."""
    work = {"product": _count_product(problem), "dense": _count_dense(problem)}
    if problem.cost.pairs is not None:
        work["pairs"] = _count_pairs(problem, problem.cost.pairs)
    return work


def _count_product(problem: Problem) -> Work:
    cost, rows = problem.cost, problem.num_heads * problem.num_queries
    spread = problem.times * problem.num_features * (problem.value_dim + 1)
    flops = 2.0 * spread * (cost.product + rows)
    if cost.rank is not None and cost.rank <= problem.value_dim:
        # Features and values are multiplied as matrices, without their outer products.
        joined = 2 * cost.rank * rows * spread
        return Work(flops, {"product: call": 1.0, "dense: multiply-add": joined, "product: refresh": cost.refresh})
    terms = {
        "product: call": 1.0,
        "product: multiply-add": spread * cost.product,
        "product: element": spread * rows * cost.passes,
        "product: refresh": min(cost.refresh, cost.product),
    }
    return Work(flops, terms)


def _count_dense(problem: Problem) -> Work:
    cost, times, entries = problem.cost, problem.times, problem.entries
    width, softmax = problem.num_features + problem.value_dim, float(problem.kernel == "softmax")
    formed = entries if cost.refresh or entries > MAX_KEPT_ENTRIES else 0
    sizes = (problem.num_queries, problem.num_keys, problem.num_features, problem.value_dim)
    # For few tokens there is a kernel that writes no scores to memory; measured in float32 on the CPU.
    share = 0.5 if problem.kernel == "linear" and not problem.dropout and dense_attention.fits(*sizes) else 1.0
    terms = {
        "dense: call": 1.0,
        "dense: multiply-add": times * entries * width,
        "dense: weight": share * times * entries,
        "dense: power": softmax * times * entries,
        # Weights that do not fit in the caches are loaded repeatedly. Linear attention takes a few inputs at a time.
        "dense: large weight": times * entries if entries * (times if softmax else 1) > _LARGE else 0,
        "dense: entry": formed,
        "dense: formed": cost.dense if formed else 0,
    }
    return Work(2.0 * times * entries * width + 2.0 * cost.dense, terms)


def _count_pairs(problem: Problem, pairs: int) -> Work:
    cost, times, rows = problem.cost, problem.times, problem.num_heads * problem.num_queries
    width, softmax = problem.num_features + problem.value_dim, float(problem.kernel == "softmax")
    pairs, tiles = min(pairs, problem.entries), cost.tiles
    if tiles is None:
        kind, counts = "rows", {"multiply-add": pairs * width, "pair": pairs, "power": softmax * pairs}
    else:
        kind, counts = "tiles", {"key": tiles.keys, "alone": tiles.alone, "power": softmax * tiles.keys}
        counts |= {"key, per width": tiles.keys * width, "alone, per width": tiles.alone * width}
    terms = {f"{kind}: {name}": times * count for name, count in (counts | {"query": rows * width}).items()}
    terms |= {f"{kind}: call": 1.0, f"{kind}: refresh": cost.refresh}
    return Work(2.0 * times * pairs * width + 2.0 * cost.refresh, terms)
