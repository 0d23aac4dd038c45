"""Attention where numbers are as large or as small as they get, and where there are none at all."""

from functools import partial

import pytest
import torch

import topomask as tm
from helpers.mask_cases import MASKS
from helpers.operator_inputs import strategies
from helpers.tokens import STRATEGIES
from topomask.ops.pair_attention import pair_attention
from topomask.ops.sparse_product import make_pattern

CLOSE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def column(numbers, dtype=torch.float64) -> torch.Tensor:
    return torch.as_tensor(numbers, dtype=torch.float64).to(dtype).view(1, 1, -1, 1)


def isolated_nodes(count: int) -> tm.Graph:
    return tm.Graph.from_edges(torch.zeros(2, 0, dtype=torch.int64), num_nodes=count)


def rows_of(weights: torch.Tensor) -> list[tm.Mask]:
    """Masks whose rows are all the same, as a dense matrix, and by the weights of edges."""
    size = len(weights)
    edges = torch.cartesian_prod(torch.arange(size), torch.arange(size)).T
    graph = tm.Graph.from_edges(
        edges, num_nodes=size, weights=weights.repeat(size).double(), directed=True, signed=True
    )
    return [tm.DenseMask(weights.repeat(size, 1)), tm.NeighborMask(graph, weighted=True, self_loops=False)]


def softmax_formula(scores, weights, values):
    """With logarithms of weights, in float64."""
    logs = scores.double() + weights.double().abs().log()
    powers = (logs - logs.amax()).exp()
    return (powers * weights.double().sign() * values.double()).sum() / powers.sum()


# Rows of weights, scores and values: small weights that outweigh large ones; signs; and subnormal numbers.
ROWS = {
    "small": ([1.0, 1e-30, 1e-30], [0.0, 70.0, 72.0], [0.0, 1.0, 2.0]),
    "signed": ([1.0, -1e-30, 1e-30], [0.0, 70.0, 72.0], [0.5, 1.0, 2.0]),
    "large": ([1.0, 1e30, 1e-30], [70.0, 0.0, 140.0], [0.5, 1.0, 2.0]),
    "subnormal": ([1e-42, 1e-40, 1e-44], [5.0, 1.0, 8.0], [0.5, 1.0, 2.0]),
    "beside subnormal": ([1.0, 1e-44, 1e-20], [0.0, 101.0, 45.0], [0.5, 1.0, 2.0]),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("repeats", [1, 12])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_softmax_counts_every_weight_whatever_its_size(monkeypatch, name, dtype, repeats, backend):
    """In rows of few entries and, with 36, in tiles."""
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    weights, scores, values = (torch.tensor(x, dtype=torch.float64).repeat(repeats) for x in ROWS[name])
    weights = weights.to(dtype)
    leaves = [column(x).clone().requires_grad_() for x in (scores, values)]
    expected = softmax_formula(leaves[0].flatten(), weights, leaves[1].flatten())
    expected_grads = torch.autograd.grad(expected, leaves)
    q = torch.ones(1, 1, len(weights), 1, dtype=dtype)
    for mask in rows_of(weights):
        mask = mask.to(dtype)
        for strategy in strategies(mask.on(), "softmax"):
            k, v = (leaf.detach().to(dtype).requires_grad_() for leaf in leaves)
            out = tm.masked_softmax_attention(q, k, v, mask, strategy=strategy, scale=1.0)
            torch.testing.assert_close(out[0, 0, 0, 0].double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])
            for found, grad in zip(torch.autograd.grad(out[0, 0, 0, 0], (k, v)), expected_grads, strict=True):
                torch.testing.assert_close(found.double(), grad, rtol=10 * CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("biases", [[0.0, -69.0, -69.0], [-110.0, 0.0, -95.0], [60.0, -60.0, 0.0], [0.0, -110.0, 1.0]])
@pytest.mark.parametrize("wrap", ["plain", "batch", "prefix", "sum", "kronecker", "selection"])
def test_biases_are_added_to_scores_whatever_their_size(dtype, biases, wrap):
    """Graphormer's softmax(score + bias), alone and inside of other masks."""
    graph = tm.path_graph(3)
    if wrap == "batch":
        graph = tm.Graph.batch([graph, tm.path_graph(1)])
    initial = torch.tensor(biases)
    mask = path = tm.ShortestPathMask(graph, max_distance=2, bias=True, initial=initial)
    distance = torch.arange(3)
    logs = initial[(distance[:, None] - distance).abs()].double()
    if wrap == "batch":
        logs = torch.nn.functional.pad(logs, (0, 1, 0, 1), value=-torch.inf)
        logs[3, 3] = initial[0]
    elif wrap == "prefix":
        mask, logs = tm.PrefixMask(path), torch.nn.functional.pad(logs, (1, 0, 1, 0), value=0.0)
    elif wrap == "sum":
        mask, logs = 0.5 * path + path, logs + torch.tensor(1.5).log()
    elif wrap == "kronecker":
        mask, logs = (
            tm.KroneckerMask(path, tm.AllPairsMask(tm.path_graph(2))),
            logs.repeat_interleave(2, dim=0).repeat_interleave(2, dim=1),
        )
    size, generator = len(logs), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, size, 2, generator=generator).to(dtype) for _ in range(3))
    selected = {}
    if wrap == "selection":
        selected = {"query_nodes": torch.tensor([2, 0]), "key_nodes": torch.tensor([1, 2, 0])}
        logs, q = logs[selected["query_nodes"]][:, selected["key_nodes"]], q[:, :, :2]
    # Scores that make up for the biases.
    k = k + column(torch.linspace(0.0, 60.0, size), dtype)
    expected = ((q.double() @ k.double().mT) + logs).softmax(dim=-1) @ v.double()
    for strategy in strategies(mask.on(), "softmax"):
        out = tm.masked_softmax_attention(q, k, v, mask, strategy=strategy, scale=1.0, **selected)
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=20 * CLOSE[dtype])
    grads = torch.autograd.grad(out.sum(), path.weight)
    assert grads[0].isfinite().all()


@pytest.mark.parametrize("bias", [-95.0, -110.0, -300.0, 300.0])
@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_a_constant_bias_cancels(bias, kind):
    attend = tm.masked_attention if kind == "linear" else tm.masked_softmax_attention
    q, k, v = torch.rand(3, 1, 1, 4, 2)
    for graph in (tm.path_graph(4), tm.Graph.batch([tm.path_graph(3), tm.path_graph(1)])):
        masks = [
            tm.ShortestPathMask(graph, max_distance=2, bias=True, initial=torch.full((3,), x)) for x in (bias, 0.0)
        ]
        for strategy in strategies(masks[0].on(), kind):
            found, expected = (attend(q, k, v, mask, strategy=strategy) for mask in masks)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
            grads = [
                torch.autograd.grad(out.square().sum(), mask.weight)[0]
                for out, mask in zip((found, expected), masks, strict=True)
            ]
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("feature_map", "keys"),
    [
        ("elu", [0.0, -100.0]),
        ("elu", [0.0, -300.0]),
        ("exp", [0.0, -100.0]),
        ("exp", [90.0, -500.0]),
        ("softmax", [0.0, -15.0]),
        ("relu", [1.0, 1e-30]),
        ("relu", [1.0, 2.0**-24]),
        ("identity", [-1e20, 1e-30]),
        ("identity", [-6e4, 2.0**-24]),
    ],
)
def test_a_node_that_sees_itself_alone_gives_its_own_value(dtype, strategy, feature_map, keys):
    """However small its features are beside those of other nodes; nothing but the value has a gradient."""
    if dtype == torch.float16 and 1e-30 in keys:
        pytest.skip("1e-30 is 0 in float16")
    keys = column(keys, dtype)
    mask = tm.NeighborMask(isolated_nodes(2))
    leaves = [x.clone().requires_grad_() for x in (column([1.0, 1.0], dtype), keys, column([2.0, 1.167], dtype))]
    out = tm.masked_attention(*leaves, mask, feature_map=feature_map, strategy=strategy)
    expected = leaves[2] * leaves[1].sign() if feature_map == "identity" else leaves[2]
    torch.testing.assert_close(out, expected, rtol=CLOSE[dtype], atol=0)
    grads = torch.autograd.grad(out.sum(), leaves)
    for leaf, grad in zip(leaves[:2], grads[:2], strict=True):
        # A feature that is the key itself changes by what the key changes, however small it is.
        change = grad * leaf if feature_map in ("relu", "identity") else grad
        torch.testing.assert_close(change, torch.zeros_like(grad), rtol=0, atol=CLOSE[dtype])
    torch.testing.assert_close(grads[2].abs(), torch.ones_like(grads[2]), rtol=CLOSE[dtype], atol=0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("feature_map", ["elu", "exp"])
def test_features_of_queries_and_keys_that_hardly_meet(strategy, feature_map):
    """No feature is small by itself in all tokens, but all products are."""
    q = torch.tensor([[0.0, -90.0]]).repeat(3, 1)[None, None].requires_grad_()
    k = torch.tensor([[-100.0, 0.0], [-99.0, -2.0], [-98.0, 1.0]])[None, None].requires_grad_()
    v = torch.randn(1, 1, 3, 2, requires_grad=True)
    graph = tm.path_graph(3)

    def formula(q, k, v):
        phi_q, phi_k = (x.exp() if feature_map == "exp" else torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
        weights = (phi_q @ phi_k.mT) * tm.NeighborMask(graph).double().to_dense()
        return (weights / weights.sum(dim=-1, keepdim=True)) @ v

    leaves, fine = (q, k, v), [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = tm.masked_attention(*leaves, tm.NeighborMask(graph), feature_map=feature_map, strategy=strategy)
    expected = formula(*fine)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    pairs = zip(*(torch.autograd.grad(x.square().sum(), y) for x, y in ((out, leaves), (expected, fine))), strict=True)
    for found, grad in pairs:
        torch.testing.assert_close(found.double(), grad, rtol=1e-4, atol=1e-5)
    plain, all_pairs = tm.linear_attention(*leaves, feature_map=feature_map), tm.AllPairsMask(graph)
    expected = tm.masked_attention(*fine, all_pairs.double(), feature_map=feature_map)
    torch.testing.assert_close(plain.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("low", ["queries", "keys", "both"])
def test_elu_of_very_negative_tokens_keeps_all_digits(strategy, low):
    """exp(-100) has three digits left in float32, and a scale does not bring the others back."""
    tokens = [torch.randn(1, 1, 3, 2) for _ in range(3)]
    for place, name in enumerate(("queries", "keys")):
        if low in (name, "both"):
            tokens[place] = torch.tensor([-100.0, -101.0]) + tokens[place]
    mask, found = tm.NeighborMask(tm.path_graph(3)), []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in tokens]
        out = tm.masked_attention(*leaves, mask, feature_map="elu", strategy=strategy)
        plain = tm.linear_attention(*leaves, feature_map="elu")
        found.append([out, plain, *torch.autograd.grad((out + plain).square().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_attention_with_subnormal_weights_has_finite_gradients(dtype):
    """A factor of the mask cancels."""
    weights, tokens, found = torch.rand(4, 4), torch.rand(3, 1, 1, 4, 2), []
    for factor in (1.0, 1e-40):
        mask = tm.DenseMask((factor * weights.double()).to(dtype))
        for strategy in strategies(mask.on()):
            leaves = [x.to(dtype).requires_grad_() for x in tokens]
            out = tm.masked_attention(*leaves, mask, strategy=strategy)
            found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            # Subnormal numbers have few digits.
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("feature_map", ["elu", "exp", "relu"])
def test_compiled_attention_is_finite_where_float32_ends(feature_map):
    """The compiler cannot look at numbers: a query that float32 cannot serve attends to nothing."""
    mask = tm.NeighborMask(isolated_nodes(2))
    leaves = [column(x, torch.float32).requires_grad_() for x in ([1.0, 1.0], [0.0, -100.0], [2.0, 1.167])]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def attend(q, k, v):
        return tm.masked_attention(q, k, v, mask, feature_map=feature_map)

    out = attend(*leaves)
    assert out.isfinite().all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("feature_map", ["exp", "softmax", "relu", "elu"])
def test_fewer_keys_than_graphs(feature_map):
    batch = tm.Graph.batch([tm.path_graph(2)] * 5)
    nodes = torch.tensor([9, 3])
    q, k, v = torch.randn(1, 1, 10, 3), 1e8 * torch.rand(1, 1, 2, 3), torch.randn(1, 1, 2, 3)
    out = tm.masked_attention(q, k, v, tm.NeighborMask(batch), feature_map=feature_map, key_nodes=nodes)
    if feature_map == "elu":
        # Positive, so that a query that sees one key has its value.
        for place, node in enumerate(nodes):
            own = torch.tensor([node, node - 1])
            torch.testing.assert_close(out[0, 0, own], v[0, 0, [place]].expand(2, -1))
    others = torch.tensor([0, 1, 4, 5, 6, 7])
    assert out.isfinite().all()
    assert out[:, :, others].eq(0).all()
    softmax = tm.masked_softmax_attention(q, k * 1e-8, v, tm.NeighborMask(batch), key_nodes=nodes)
    torch.testing.assert_close(softmax[0, 0, [9, 8, 3, 2]], v[0, 0, [0, 0, 1, 1]])


EMPTY = {
    "no inputs": ((0, 3, 2), {}),
    "no width": ((2, 0, 2), {}),
    "no values": ((2, 3, 0), {}),
    "no queries": ((2, 3, 2), {"query_nodes": []}),
    "no keys": ((2, 3, 2), {"key_nodes": []}),
    "nothing": ((2, 3, 2), {"query_nodes": [], "key_nodes": []}),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("case", EMPTY)
def test_what_is_empty_goes_forward_and_backward(name, case):
    mask = MASKS[name]()
    operator = mask.on()
    (batch, width, value_dim), selected = EMPTY[case]
    selected = {key: torch.tensor(nodes, dtype=torch.int64) for key, nodes in selected.items()}
    num_queries, num_keys = (
        0 if f"{side}_nodes" in selected else size
        for side, size in (("query", operator.num_queries), ("key", operator.num_keys))
    )
    shapes = ((num_queries, width), (num_keys, width), (num_keys, value_dim))
    tokens = [torch.randn(batch, mask.num_heads, *shape).double().requires_grad_() for shape in shapes]
    ways = [(partial(tm.masked_attention, feature_map=phi), "linear") for phi in ("relu", "exp")]
    for attend, kind in (*ways, (tm.masked_softmax_attention, "softmax")):
        for strategy in strategies(operator, kind):
            out = attend(*tokens, mask, strategy=strategy, **selected)
            assert out.shape == (batch, mask.num_heads, num_queries, value_dim)
            for token, grad in zip(tokens, torch.autograd.grad(out.sum(), tokens), strict=True):
                assert grad.shape == token.shape
                assert grad.isfinite().all()


@pytest.mark.parametrize("strategy", ["pairs", "dense"])
def test_no_inputs_with_dropout(strategy):
    mask = tm.NeighborMask(tm.path_graph(3))
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        tokens = torch.randn(3, 0, 1, 3, 2, requires_grad=True)
        out = attend(*tokens, mask, strategy=strategy, dropout_p=0.5)
        assert out.shape == (0, 1, 3, 2)
        out.sum().backward()
        assert tokens.grad.shape == tokens.shape


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("size", [4, 64])
def test_large_entries_of_padding_leave_slopes_of_zero_entries_alone(size, backend, monkeypatch):
    """Powers of entries of 0 are capped, so that their slopes are finite: by entries that count, not by padding."""
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    torch.manual_seed(0)
    q, k, v = torch.randn(1, size, 16), torch.zeros(1, size, 16), torch.randn(1, size, 16)
    is_key = torch.arange(size)[None] < size - 1
    matrix = torch.rand(size, size)
    matrix[:, 1] = 0
    every = make_pattern(torch.arange(size + 1) * size, torch.arange(size).repeat(size), size)
    slopes = []
    for large in (1.0, 1e19):
        matrix[:, -1] = large
        values = matrix.clone().requires_grad_()
        pairs = pair_attention(every, values.flatten(), None, q, k, v, is_key=is_key, softmax=True).out
        slopes.append(torch.autograd.grad(pairs.sum(), values)[0])
        dense = tm.DenseMask(values)
        options = {"normalizer": "signed", "scale": 1.0, "key_padding_mask": ~is_key}
        out = tm.masked_softmax_attention(*(x[None] for x in (q, k, v)), dense, **options)
        slopes.append(torch.autograd.grad(out.sum(), values)[0])
    assert slopes[0][:, 1].abs().mean() > 1e-3
    for found in slopes[1:]:
        torch.testing.assert_close(found, slopes[0], rtol=1e-4, atol=1e-5)
