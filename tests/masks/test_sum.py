"""What is particular to sums of masks; the laws cover the rest."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import topomask as tm
from helpers.graphs import ragged_batch, ragged_graph
from helpers.mask_cases.walks import walk_mask
from helpers.noisy import NOISE, NoisyMask


def dense_mask(num_heads: int = 1, size: int = 4, seed: int = 0) -> tm.DenseMask:
    generator = torch.Generator().manual_seed(seed)
    return tm.DenseMask(torch.randn(num_heads, size, size, generator=generator, dtype=torch.float64))


def test_operators_are_those_of_matrices():
    a, b = dense_mask(2), dense_mask(1, seed=1)
    m, n = a.to_dense(), b.to_dense()
    per_head = torch.tensor([2.0, -3.0], dtype=torch.float64)
    for mask, expected in (
        (a + b, m + n),
        (a - b, m - n),
        (-a, -m),
        (2 * a, 2 * m),
        (a * 2.5, 2.5 * m),
        (np.float32(0.5) * a, 0.5 * m),
        (per_head * a, per_head[:, None, None] * m),
        (per_head.numpy() * a, per_head[:, None, None] * m),
        (torch.tensor(3.0) * a + b, 3 * m + n),
        (per_head * b, per_head[:, None, None] * n),
        (a - (b - 2 * (a + b)), 3 * m + n),
        (0 * a + b, n.expand(2, -1, -1)),
    ):
        assert isinstance(mask, tm.SumMask)
        torch.testing.assert_close(mask.to_dense(), expected)


@pytest.mark.parametrize(
    "run",
    [
        lambda mask: mask + 1,
        lambda mask: 1 + mask,
        lambda mask: mask - torch.ones(4, 4),
        lambda mask: torch.ones(2) + mask,
        lambda mask: np.ones(2) - mask,
        lambda mask: mask + None,
        lambda mask: sum([mask, mask]),
        lambda mask: mask * mask,
        lambda mask: True * mask,
        lambda mask: "2" * mask,
        lambda mask: mask + mask.on(),
        lambda mask: mask.magnitude() + mask,
    ],
)
def test_what_is_no_mask_is_not_added(run):
    with pytest.raises(TypeError, match=r"can only be added to a mask|multiplied by a number"):
        run(dense_mask())


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: tm.SumMask([]), "empty"),
        (lambda: tm.SumMask([dense_mask(), torch.ones(4, 4)]), r"`masks\[1\]` must be a mask, but is a Tensor"),
        (lambda: dense_mask(2) + dense_mask(3), r"1 or 3 heads, but have \[2, 3\]"),
        (lambda: dense_mask(size=4) + dense_mask(size=5), r"\(4, 4\), \(5, 5\)"),
        (lambda: torch.ones(3) * dense_mask(2), r"1 or 3 heads, but have \[2\]"),
        (lambda: torch.ones(3) * dense_mask() + torch.ones(2) * dense_mask(), r"1 or 3 heads, but have \[3, 2\]"),
        (
            lambda: tm.SumMask([dense_mask()] * 2, [torch.ones(3), torch.ones(2)]),
            r"1 or num_heads=3 numbers per mask, but have \[3, 2\]",
        ),
        (lambda: torch.ones(4, 4) * dense_mask(), r"has shape \(4, 4\). For the product with x, use `mask @ x`"),
        (lambda: float("nan") * dense_mask(), "finite"),
        (lambda: torch.tensor([torch.inf]) * dense_mask(), "finite"),
        (lambda: torch.tensor([True]) * dense_mask(), "bool"),
        (lambda: tm.SumMask([dense_mask()], [1.0, 2.0]), "1 numbers or tensors, but is 2 of them. Pass one per mask"),
        (lambda: tm.SumMask([dense_mask()], 2.0), "but is a float"),
        (lambda: tm.SumMask([dense_mask()], torch.ones(2, 1)), r"\[1\] or \[1, H\]"),
        (
            lambda: tm.SumMask([dense_mask(), dense_mask().on()]),
            r"`masks\[1\]` must be a mask, but is an operator.*Combine the masks",
        ),
        (lambda: walk_mask(ragged_batch()) + walk_mask(tm.path_graph(23)), r"\[4, 1\] graphs"),
        (lambda: walk_mask(ragged_batch()) + tm.LowRankMask(torch.ones(23, 1)), "no graph attends to another"),
        (
            lambda: sum_on([tm.path_graph(2), tm.path_graph(3)], [tm.path_graph(3), tm.path_graph(2)]),
            "2, 2] graphs of different sizes",
        ),
    ],
)
def test_what_cannot_be_added_is_refused_with_numbers(run, message):
    with pytest.raises(ValueError, match=message):
        run()


def sum_on(*batches):
    return tm.SumMask([walk_mask(tm.Graph.batch(batch)) for batch in batches])


def test_weights_are_learnt_by_default():
    mask = tm.SumMask([dense_mask(3), dense_mask(seed=1)])
    assert {name: tuple(x.shape) for name, x in mask.named_parameters()} == {"weights.weight": (2, 3)}
    torch.testing.assert_close(mask.to_dense(), dense_mask(3).to_dense() + dense_mask(seed=1).to_dense())


def test_parameters_are_used_as_they_are():
    scale = nn.Parameter(torch.tensor([2.0, 3.0], dtype=torch.float64))
    mask = scale * dense_mask() + scale * dense_mask(seed=1) - 4.0 * dense_mask(seed=2)
    assert [parameter is scale for parameter in mask.parameters()] == [True]
    assert [name for name in mask.state_dict() if "weight" in name] == ["weights.weight"]
    optimizer = torch.optim.SGD(mask.parameters(), lr=1.0)
    before = mask.to_dense().sum()
    before.backward()
    optimizer.step()
    torch.testing.assert_close(
        mask.to_dense(), (scale * (dense_mask() + dense_mask(seed=1)) - 4.0 * dense_mask(seed=2)).to_dense()
    )
    assert mask.to_dense().sum() < before


def test_tensors_with_a_gradient_of_their_own_pass_it_on():
    leaf = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    mask = leaf.exp() * dense_mask(2)
    assert not list(mask.parameters())
    mask.double().to_dense().sum().backward()
    torch.testing.assert_close(leaf.grad, leaf.detach().exp() * dense_mask(2).to_dense().sum(dim=(1, 2)))
    with torch.no_grad():
        assert mask.on()._dense_weights() is mask.on()._dense_weights()
    assert mask.on()._dense_weights().requires_grad


def test_sums_of_sums_are_one_sum():
    inner = tm.SumMask([dense_mask(2), dense_mask(seed=1)]).double()
    outer = nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    mask = outer * inner + 0.5 * (inner + dense_mask(seed=2))
    assert [type(part) for part in mask.masks] == [tm.DenseMask] * 5
    assert len(list(mask.parameters())) == 2
    with torch.no_grad():
        inner.weights.weight.mul_(3.0)
        outer.add_(1.0)
    expected = outer[:, None, None] * inner.to_dense() + 0.5 * (inner.to_dense() + dense_mask(seed=2).to_dense())
    torch.testing.assert_close(mask.to_dense(), expected)


def test_the_magnitude_of_a_sum_has_magnitudes_of_parts():
    mask = -dense_mask() + 2.0 * dense_mask(seed=1)
    expected = dense_mask().to_dense().abs() + 2.0 * dense_mask(seed=1).to_dense().abs()
    torch.testing.assert_close(mask.magnitude().to_dense(), expected)


def test_magnitude_is_the_mask_itself_only_where_nothing_is_negative():
    positive = [walk_mask(ragged_graph(), f=torch.ones(4), positive=True, seed=seed) for seed in (1, 2)]
    fixed, opposed, mask = positive[0] + 2 * positive[1], positive[0] - positive[1], tm.SumMask(positive)
    for one, is_own in ((fixed, True), (opposed, False), (mask, True)):
        operator = one.on()
        assert (operator.magnitude() is operator) is is_own
    entries = mask.on().entries()
    assert entries.magnitudes is entries.values
    with torch.no_grad():
        mask.weights.weight[1].neg_()
    operator = mask.on()
    assert operator.magnitude() is not operator
    assert operator.entries().magnitudes is not operator.entries().values
    expected = positive[0].to_dense() + positive[1].to_dense()
    torch.testing.assert_close(mask.magnitude().to_dense(), expected)


def test_the_pattern_is_the_union_and_computed_once():
    parts = [walk_mask(ragged_graph(), symmetric=False, seed=seed, num_walks=1) for seed in (1, 2)]
    mask = parts[0] + parts[1]
    pattern = mask.on().entries().pattern
    assert mask.on().entries().pattern.columns is pattern.columns
    apart = [len(part.on().entries().pattern.columns) for part in parts]
    assert max(apart) < len(pattern.columns) < sum(apart) == mask.on().cost().max_pairs
    parts[0].resample(7)
    assert mask.on().entries().pattern.columns is not pattern.columns


def test_entries_are_kept_until_something_changes():
    part = walk_mask(ragged_graph(), num_heads=2)
    mask = tm.SumMask([part, walk_mask(ragged_graph(), symmetric=False, seed=3)]).double()
    q, k, v = torch.randn(3, 1, 2, 11, 4, dtype=torch.float64)
    with torch.no_grad():
        assert mask.on().cost().refresh == 0
        for change in (
            lambda: mask.weights.weight.mul_(-2.0),
            lambda: part.modulation.weight.mul_(2.0),
            lambda: part.resample(9),
        ):
            assert mask.on().entries() is mask.on().entries()
            kept = mask.on().entries()
            change()
            assert mask.on().entries() is not kept
            dense = tm.masked_softmax_attention(q, k, v, mask, strategy="dense")
            torch.testing.assert_close(tm.masked_softmax_attention(q, k, v, mask, strategy="pairs"), dense)
    assert mask.on().cost().refresh > 0
    assert mask.on().entries().values.requires_grad


def test_compiled_sums_notice_new_walks():
    inner = tm.WalkMask(tm.cycle_graph(8), num_walks=1, max_length=1, seed=0, symmetric=False)
    mask = inner - 0.5 * tm.WalkMask(tm.cycle_graph(8), num_walks=1, max_length=1, seed=5, symmetric=False)
    q, k, v = torch.randn(3, 1, 1, 8, 4)
    torch._dynamo.reset()
    run = torch.compile(
        lambda q, k, v: tm.masked_attention(q, k, v, mask, strategy="pairs"), fullgraph=True, backend="aot_eager"
    )
    for seed in range(3):
        inner.resample(seed)
        torch.testing.assert_close(run(q, k, v), tm.masked_attention(q, k, v, mask, strategy="pairs"))


def test_on_another_graph():
    """Parts on graphs move, with the walks they are given; the others stay, and must fit."""
    weights = nn.Parameter(torch.tensor([1.0, -0.5]))
    mask = tm.SumMask([walk_mask(ragged_graph()), tm.PowerSeriesMask(ragged_graph(), tm.series.heat(3))], weights)
    graph = tm.grid_graph(3, 4)
    operator = mask.on(graph)
    assert (operator.num_queries, mask.on().num_queries) == (12, 11)
    parts = [part.on(graph).to_dense() for part in mask.masks]
    torch.testing.assert_close(operator.to_dense(), parts[0] - 0.5 * parts[1])
    assert torch.autograd.grad(operator.to_dense().sum(), weights)[0].abs().sum() > 0
    walks = mask.sample(graph)
    assert walks[1] is None
    torch.testing.assert_close(mask.on(graph, walks).to_dense(), operator.to_dense())
    other = walk_mask(ragged_graph(), seed=9)
    with_other = mask.on(graph, [other.sample(graph), None])
    torch.testing.assert_close(with_other.to_dense(), other.on(graph).to_dense() - 0.5 * parts[1])
    for bad in (walks[:1], [None, walks[0]]):
        with pytest.raises(ValueError, match=r"one item for each of the 2 parts|does not use walks"):
            mask.on(graph, bad)
    mask.graph = graph
    assert [part.graph for part in mask.masks] == [graph, graph]
    torch.testing.assert_close(mask.to_dense(), operator.to_dense())

    constant = walk_mask(ragged_graph()) + tm.LowRankMask(torch.ones(11, 1))
    line = tm.path_graph(11)
    torch.testing.assert_close(constant.on(line).to_dense(), constant.masks[0].on(line).to_dense() + 1.0)
    assert (constant.graph, constant.takes_graph) == (constant.masks[0].graph, True)
    with pytest.raises(ValueError, match=r"\(12, 12\), \(11, 11\)"):
        constant.on(graph)
    with pytest.raises(ValueError, match="no graph attends to another"):
        constant.on(tm.Graph.batch([tm.path_graph(5), tm.path_graph(6)]))
    with pytest.raises(ValueError, match="does not take a graph"):
        (dense_mask() + dense_mask()).on(graph)


def test_parts_without_a_graph_wait_for_one():
    mask = tm.WalkMask(max_length=2, seed=0) + tm.NeighborMask()
    assert mask.graph is None
    expected = tm.WalkMask(ragged_graph(), max_length=2, seed=0) + tm.NeighborMask(ragged_graph())
    assert torch.equal(mask.on(ragged_graph()).to_dense(), expected.to_dense())
    with pytest.raises(ValueError, match="has no default graph"):
        mask.to_dense()


def test_a_batch_is_its_graphs_one_by_one():
    graphs = [tm.cycle_graph(5), ragged_graph(), tm.path_graph(1)]
    mask = walk_mask(graphs[0], num_heads=2) - 0.5 * walk_mask(graphs[0], symmetric=False)
    batch = mask.on(tm.Graph.batch(graphs))
    assert batch.num_graphs == 3
    assert batch.key_groups.tolist() == [0] * 5 + [1] * 11 + [2]
    apart = [mask.on(graph).to_dense() for graph in graphs]
    for head in range(2):
        torch.testing.assert_close(batch.to_dense()[head], torch.block_diag(*(part[head] for part in apart)))


def test_noise_is_that_of_the_parts():
    torch.manual_seed(0)
    matrix = torch.randn(2, 6, 6, dtype=torch.float64)
    x = torch.randn(3, 2, 6, 5, dtype=torch.float64)
    clean = tm.DenseMask(matrix)
    assert (clean + clean).on().product_noise(x) is None
    weights = torch.tensor([-3.0, 0.5], dtype=torch.float64)
    mask = weights * NoisyMask(matrix) + clean - 2 * NoisyMask(matrix)
    bound = mask.on().product_noise(x)
    expected = NOISE * (weights.abs() + 2)[:, None, None] * x.abs().sum(dim=-2, keepdim=True)
    torch.testing.assert_close(bound, expected)
    error = (mask @ x - mask.to_dense() @ x).abs()
    assert (error <= bound * (1 + 1e-9)).all()
    assert error.max() > bound.min()


def test_a_query_that_attends_to_nothing_gives_zero_in_spite_of_noise():
    matrix = torch.rand(6, 6)
    matrix[2] = 0
    mask = 0.5 * NoisyMask(matrix) + 2 * NoisyMask(matrix)
    q, k, v = (x.requires_grad_() for x in torch.rand(3, 1, 1, 6, 4).unbind())
    out = tm.masked_attention(q, k, v, mask, strategy="product")
    assert (out[..., 2, :] == 0).all()
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert (gradient[..., 2, :] == 0).all()
    assert (out[..., :2, :] != 0).all()


def test_half_precision_stays_finite():
    big = tm.LowRankMask(torch.full((16, 2), 150.0, dtype=torch.float16))
    mask = 4.0 * big - 4.0 * big
    x = torch.full((1, 16, 1), 0.5, dtype=torch.float16)
    assert (mask @ x).dtype == torch.float16
    assert (mask @ x == 0).all()
    learnt = tm.SumMask([walk_mask(ragged_graph(), num_heads=2)]).half()
    q, k, v = torch.randn(3, 1, 2, 11, 4, dtype=torch.float16)
    for strategy in ("pairs", "product", "dense"):
        assert tm.masked_attention(q, k, v, learnt, strategy=strategy).isfinite().all()


def test_copies_and_precision():
    mask = tm.SumMask([walk_mask(ragged_graph(), num_heads=2), walk_mask(ragged_graph(), symmetric=False)])
    other = copy.deepcopy(mask)
    assert other.weights.weight is not mask.weights.weight
    torch.testing.assert_close(other.to_dense(), mask.to_dense())
    assert mask.float().to_dense().dtype == torch.float32
    assert mask.double().on().entries().values.dtype == torch.float64


def test_plans():
    """Sparse sums go over pairs; with a part of low rank there is only the product."""
    graph = tm.path_graph(20_000)
    walks = [tm.WalkMask(graph, num_walks=4, max_length=4, symmetric=False, seed=seed) for seed in (0, 1)]
    assert tm.plan_attention(walks[0] + walks[1], 64, 64).strategy == "pairs"
    assert tm.plan_attention(walks[0] + walks[1], 64, 64, kernel="softmax").strategy == "pairs"
    constant = walks[0] + 0.1 * tm.LowRankMask(torch.ones(20_000, 1))
    assert tm.plan_attention(constant, 64, 64).strategy == "product"
    with pytest.raises(ValueError, match="SumMask has no sparse entries"):
        tm.plan_attention(constant, 64, 64, kernel="softmax")
    small = tm.SumMask([tm.WalkMask(tm.grid_graph(8, 8), seed=0), tm.LowRankMask(torch.ones(64, 1))])
    assert tm.plan_attention(small, 64, 64).strategy == "dense"
    parts = sum(part.on().cost().product for part in walks)
    assert parts < (walks[0] + walks[1]).on().cost().product <= parts + 2 * 20_000


def test_learnt_weights_of_walks_at_rest_keep_the_dense_walks():
    parts = [walk_mask(ragged_graph(), seed=seed).requires_grad_(False) for seed in (1, 2)]
    mask = tm.SumMask(parts).double()
    mask.on()._dense_weights().sum().backward()
    torch.testing.assert_close(mask.weights.weight.grad.flatten(), torch.stack([p.to_dense().sum() for p in parts]))
    assert parts[0].on()._dense_weights() is parts[0].on()._dense_weights()
    operators = mask.on()._parts
    assert operators[0] is parts[0].on()
    assert mask.on().cost().dense < sum(part.double().requires_grad_().on().cost().dense for part in parts)
