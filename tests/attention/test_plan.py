import numpy as np
import pytest
import torch

import topomask as tm
from helpers.graphs import star_graph
from helpers.mask_cases.walks import walk_mask
from helpers.problems import problem
from topomask.attention import costs
from topomask.attention.plan import count_work, plan_attention
from topomask.walks.record import MAX_PAIRS_PER_QUERY


def test_small_graphs_are_dense_and_large_ones_are_not():
    small = tm.WalkMask(tm.grid_graph(8, 8), seed=0)
    assert plan_attention(small, 64, 64).strategy == "dense"
    large = tm.WalkMask(tm.path_graph(20_000), num_walks=4, max_length=4, symmetric=False, seed=0)
    plan = plan_attention(large, 64, 64)
    assert plan.strategy == "pairs"
    assert "lowest estimated time" in plan.reason
    assert set(plan.seconds) == {"pairs", "product"}, "a dense mask of 400 million entries is not considered"


def test_hubs_close_the_way_over_pairs():
    mask = tm.WalkMask(star_graph(30_000), num_walks=4, max_length=4, seed=0)
    assert mask.on().cost().max_pairs > MAX_PAIRS_PER_QUERY * mask.graph.num_nodes
    plan = plan_attention(mask, 16, 16)
    assert plan.strategy == "product"
    assert "symmetric=False" in str(plan)
    with pytest.raises(ValueError, match=r"WalkMask has up to [\d,]+ pairs, more than"):
        plan_attention(mask, 16, 16, strategy="pairs")
    with pytest.raises(ValueError, match=r"Only dense attention is possible, with [\d,]+ weights[^!]*symmetric=False"):
        plan_attention(mask, 16, 16, kernel="softmax")
    asymmetric = tm.WalkMask(star_graph(30_000), num_walks=4, max_length=4, seed=0, symmetric=False)
    assert asymmetric.on().cost().max_pairs == asymmetric.walks.num_nonzeros
    assert plan_attention(asymmetric, 16, 16, kernel="softmax").strategy == "pairs"


def test_masks_without_entries():
    mask = tm.PowerSeriesMask(tm.path_graph(30_000), torch.ones(3))
    assert plan_attention(mask, 16, 16).strategy == "product"
    with pytest.raises(ValueError, match="no sparse entries"):
        plan_attention(mask, 16, 16, strategy="pairs")
    with pytest.raises(ValueError, match="Only dense attention"):
        plan_attention(mask, 16, 16, kernel="softmax")
    assert plan_attention(mask, 16, 16, kernel="softmax", strategy="dense").strategy == "dense"
    with pytest.raises(ValueError, match="Only dense attention"):
        plan_attention(mask, 16, 16, dropout=True)


def test_dense_weights_are_counted_over_the_batch():
    """A mask of one head that serves 64 inputs of 8 heads: 34 GB of weights are not formed."""
    mask = tm.WalkMask(tm.path_graph(4096), num_walks=4, max_length=4, symmetric=False, seed=0)
    assert plan_attention(mask, 16, 16, batch_size=64, num_heads=8).strategy != "dense"


def test_linear_attention_takes_large_batches_of_small_graphs_some_inputs_at_a_time():
    mask = tm.WalkMask(tm.grid_graph(14, 14), num_heads=3, seed=0)
    for kernel, is_large in (("linear", False), ("softmax", True)):
        work = count_work(problem(mask, 64, 64, 256, kernel))["dense"].terms
        assert (work["dense: large weight"] > 0) is is_large


def test_few_queries_of_a_large_mask_stay_cheap():
    """Neither the whole mask nor its pairs are formed for a handful of queries."""
    mask = tm.WalkMask(tm.grid_graph(128, 128), num_walks=8, max_length=6, symmetric=False, seed=0)
    few = mask.on().select(torch.tensor([0, 5]), None)
    assert few.cost().max_pairs < 200
    assert plan_attention(few, 16, 16, kernel="softmax").strategy in ("pairs", "dense")
    exact = tm.PowerSeriesMask(tm.path_graph(2**17), torch.ones(3)).on().select(None, torch.tensor([0, 1, 5, 9]))
    assert exact.to_dense().shape == (1, 2**17, 4), "a mask of 2^34 entries would not fit"


def test_estimated_pairs_are_close():
    mask = tm.WalkMask(tm.grid_graph(50, 50), num_walks=8, max_length=6, seed=0)
    found, cost = len(mask.on().entries().pattern.columns), mask.on().cost()
    assert abs(cost.pairs - found) < 0.15 * found
    assert found <= cost.max_pairs


def test_counted_work_and_memory_per_node_are_flat():
    """The promise of O(N): from 2^10 to 2^14 nodes of a path and of a grid, work per node stays within 5 %."""
    for build in (tm.path_graph, lambda n: tm.grid_graph(16, n // 16)):
        for symmetric in (True, False):
            per_node = []
            for size in (2**10, 2**12, 2**14):
                mask = tm.WalkMask(build(size), num_walks=8, max_length=6, symmetric=symmetric, seed=0)
                plan = plan_attention(mask, 16, 16)
                sides = mask.walks if isinstance(mask.walks, tuple) else (mask.walks,)
                size_in_bytes = sum(side.num_bytes for side in sides)
                work = count_work(problem(mask, 16, 16))
                flops = [work[name].flops / size for name in ("pairs", "product")]
                pairs = len(mask.on().entries().pattern.columns)
                per_node.append([*flops, size_in_bytes / size, pairs / size])
                assert plan.flops.keys() <= {"pairs", "product", "dense"}
            spread = np.max(per_node, axis=0) / np.min(per_node, axis=0)
            assert (spread < 1.05).all(), spread


def test_counted_flops_are_those_of_the_route():
    """Two per multiply-add: scores and sums; features carry a column of ones for the normaliser."""
    mask = walk_mask(tm.grid_graph(40, 40), symmetric=False)
    pairs, refresh = mask.on().cost().max_pairs, mask.on().cost().refresh
    plan = plan_attention(mask, 8, 4, batch_size=3, strategy="pairs")
    assert plan.flops["pairs"] == 2 * 3 * pairs * (8 + 4) + 2 * refresh
    assert plan.flops["product"] == 2 * 3 * 8 * (4 + 1) * (pairs + 1600)
    mask.modulation.weight.requires_grad_(False)
    assert plan_attention(mask, 8, 4, strategy="pairs").flops["pairs"] == 2 * pairs * (8 + 4)


def test_plans_are_made_once():
    mask = walk_mask(tm.grid_graph(4, 4), num_heads=2)
    plan = plan_attention(mask, 8, 8)
    assert plan_attention(mask.on(), 8, 8) is plan
    with torch.no_grad():
        at_rest = plan_attention(mask, 8, 8)
        assert plan_attention(mask, 8, 8) is at_rest
    assert at_rest is not plan, "entries that are kept need not be computed"
    for other in (plan_attention(mask, 8, 8, batch_size=2), plan_attention(mask, 8, 8, kernel="softmax")):
        assert other is not plan
    # Whether anything is negative decides whether the normaliser takes entries of its own.
    with torch.no_grad():
        mask.modulation.weight.abs_().add_(0.1)
    assert plan_attention(mask, 8, 8) is not plan


def test_plans_follow_the_constants_of_the_cost_model(monkeypatch):
    mask = walk_mask(tm.grid_graph(4, 4), num_heads=2)
    plan = plan_attention(mask, 8, 8)
    monkeypatch.setattr(costs, "constants", {term: 3.0 * value for term, value in costs.DEFAULTS.items()})
    slower = plan_attention(mask, 8, 8)
    assert slower.seconds[slower.strategy] == pytest.approx(3 * plan.seconds[plan.strategy])


def test_a_star_with_many_leaves_runs_in_bounded_memory():
    """2^16 leaves: a dense mask would take 17 GB. Peak memory is measured in a process of its own."""
    import subprocess
    import sys

    script = """
import resource, numpy as np, torch, topomask as tm
leaves = np.arange(1, 2**16 + 1)
graph = tm.Graph.from_edges(np.stack([np.zeros_like(leaves), leaves]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
mask = tm.WalkMask(graph, num_walks=4, max_length=4, seed=0)
q, k, v = torch.randn(3, 1, 1, graph.num_nodes, 8)
q.requires_grad_()
out = tm.masked_attention(q, k, v, mask)
out.sum().backward()
assert out.isfinite().all() and q.grad.isfinite().all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    kilobytes = int(run.stdout)
    assert kilobytes < 1_500_000, kilobytes


def test_what_cannot_be_planned_is_refused():
    mask = tm.WalkMask(tm.path_graph(5), num_walks=4, max_length=3, num_heads=4, seed=0)
    with pytest.raises(ValueError, match=r"`kernel` must be one of .* but is 'sofmax'"):
        tm.plan_attention(mask, 4, 4, kernel="sofmax")
    with pytest.raises(ValueError, match="one head or num_heads=3, but has 4"):
        tm.plan_attention(mask, 4, 4, num_heads=3)
    with pytest.raises(ValueError, match=r"must be a topomask.Mask or an Operator, but is a Tensor"):
        tm.plan_attention(torch.ones(3, 3), 4, 4)
