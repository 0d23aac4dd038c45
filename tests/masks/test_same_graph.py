import resource

import pytest
import torch

import topomask as tm
from registry import ragged_batch, ragged_graph
from topomask.masks import same_graph


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_is_attention_without_a_mask_graph_by_graph(kind):
    torch.manual_seed(0)
    graphs = [tm.path_graph(1), ragged_graph(), tm.cycle_graph(5)]
    mask = tm.SameGraphMask(tm.Graph.batch(graphs)).double()
    x = torch.randn(mask.num_queries, 8, dtype=torch.float64)
    masked = tm.nn.MaskedAttention(8, 2, mask, kind=kind).double()
    plain = tm.nn.Attention(8, 2, kind=kind).double()
    plain.load_state_dict(masked.state_dict())
    expected = torch.cat([plain(part[None])[0] for part in x.split([graph.num_nodes for graph in graphs])])
    torch.testing.assert_close(masked(x), expected)


@pytest.mark.parametrize("make", [ragged_graph, ragged_batch])
@pytest.mark.parametrize("attend", [tm.masked_attention, tm.masked_softmax_attention])
def test_compiles(make, attend):
    mask = tm.SameGraphMask(make())
    q = torch.randn(2, mask.num_queries, 4, requires_grad=True)
    compiled = torch.compile(lambda q: attend(q, q, q, mask), fullgraph=True, backend="aot_eager")
    found = [[out, *torch.autograd.grad(out.square().sum(), [q])] for out in (compiled(q), attend(q, q, q, mask))]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_moves_to_other_graphs_and_one_large_graph_forms_no_pairs():
    mask = tm.SameGraphMask(tm.path_graph(1)).on(tm.path_graph(1 << 15))
    assert mask._pairs is None
    q = torch.randn(1, 1 << 15, 4)
    torch.testing.assert_close(tm.masked_attention(q, q, q, mask), tm.linear_attention(q, q, q))
    assert mask._pairs is None
    with pytest.raises(ValueError, match="Only dense attention with 1,073,741,824 weights would do"):
        tm.masked_softmax_attention(q, q, q, mask, dropout_p=0.1)


@pytest.mark.parametrize("padding", ["none", "some", "all"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_softmax_attention_on_one_graph_is_plain(padding, dtype):
    torch.manual_seed(0)
    graph = tm.path_graph(50)
    padded = {"none": None, "some": torch.rand(2, 50) < 0.3, "all": torch.arange(2)[:, None].expand(2, 50) == 1}[
        padding
    ]
    q, k, v = (torch.randn(2, 3, 50, width, dtype=dtype, requires_grad=True) for width in (4, 4, 5))
    found = tm.masked_softmax_attention(q, k, v, tm.SameGraphMask(graph), key_padding_mask=padded)
    # A mask of ones that does not know that it hides nothing.
    ones = tm.DenseMask(torch.ones(1, 50, 50, dtype=torch.float64))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = tm.masked_softmax_attention(*wide, ones, key_padding_mask=padded)
    assert found.dtype == dtype
    weights = torch.randn_like(expected)
    ours = torch.autograd.grad(found, [q, k, v], weights.to(dtype))
    theirs = torch.autograd.grad(expected, wide, weights)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip((found, *ours), (expected, *theirs), strict=True):
        torch.testing.assert_close(one.double(), other, **tolerance)


def test_softmax_attention_on_one_large_graph_keeps_no_weights():
    """20,000 nodes have 1.6 GB of weights, in float32."""
    mask = tm.SameGraphMask(tm.path_graph(20_000))
    assert "not kept" in tm.plan_attention(mask, 4, 4, kernel="softmax").reason
    q = torch.randn(1, 20_000, 4, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = tm.masked_softmax_attention(q, q, q, mask)
    out.sum().backward()
    assert q.grad is not None
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400_000, f"{grown} KB"
    rows = torch.randint(20_000, (3,))
    scores = q.detach()[:, rows].double() @ q.detach().double().mT / 2
    torch.testing.assert_close(
        out.detach()[:, rows].double(), scores.softmax(dim=-1) @ q.detach().double(), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("sizes", [[1, 1], [7, 1, 100, 2], [64, 65, 3], [200, 5, 5, 5]])
def test_linear_attention_of_a_batch_goes_graph_by_graph(sizes, dtype):
    """Through tiles, which some graphs fill, overflow or leave empty."""
    torch.manual_seed(0)
    mask = tm.SameGraphMask(tm.Graph.batch([tm.path_graph(size) for size in sizes]))
    phi_q, phi_k, v = (torch.rand(2, 3, sum(sizes), width, dtype=dtype, requires_grad=True) for width in (4, 4, 5))
    parts = zip(*(x.split(sizes, dim=-2) for x in (phi_q, phi_k, v)), strict=True)
    expected = torch.cat([(q.double() @ (k.mT.double() @ v.double())) for q, k, v in parts], dim=-2)
    found = mask.attend(phi_q, phi_k, v)
    assert found.dtype == dtype
    if dtype == torch.float16:
        torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=1e-2)
        return
    weights = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(out, [phi_q, phi_k, v], weights) for out in (found, expected))
    for one, other in zip((found, *ours), (expected, *theirs), strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_summed_per_graph_never_takes_much_memory(monkeypatch):
    mask = tm.SameGraphMask(ragged_batch())
    q = torch.randn(2, mask.num_queries, 4)
    expected = tm.masked_attention(q, q, q, mask, strategy="features")
    monkeypatch.setattr(same_graph, "ELEMENTS_PER_CHUNK", 1)
    monkeypatch.setattr(same_graph._Tiles, "cut", None)
    torch.testing.assert_close(tm.masked_attention(q, q, q, mask, strategy="features"), expected)
