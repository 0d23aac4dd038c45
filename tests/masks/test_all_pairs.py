import subprocess
import sys

import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_batch, ragged_graph
from topomask.masks import all_pairs


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_is_attention_without_a_mask_graph_by_graph(kind):
    torch.manual_seed(0)
    graphs = [tm.path_graph(1), ragged_graph(), tm.cycle_graph(5)]
    mask = tm.AllPairsMask(tm.Graph.batch(graphs)).double()
    x = torch.randn(mask.on().num_queries, 8, dtype=torch.float64)
    masked = tm.nn.MaskedAttention(8, 2, mask, kind=kind).double()
    plain = tm.nn.Attention(8, 2, kind=kind).double()
    plain.load_state_dict(masked.state_dict())
    expected = torch.cat([plain(part[None])[0] for part in x.split([graph.num_nodes for graph in graphs])])
    torch.testing.assert_close(masked(x), expected)


@pytest.mark.parametrize("make", [ragged_graph, ragged_batch])
@pytest.mark.parametrize("attend", [tm.masked_attention, tm.masked_softmax_attention])
def test_compiles(make, attend):
    mask = tm.AllPairsMask(make())
    q = torch.randn(2, mask.on().num_queries, 4, requires_grad=True)
    compiled = torch.compile(lambda q: attend(q, q, q, mask), fullgraph=True, backend="aot_eager")
    found = [[out, *torch.autograd.grad(out.square().sum(), [q])] for out in (compiled(q), attend(q, q, q, mask))]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_moves_to_other_graphs_and_one_large_graph_forms_no_pairs(monkeypatch):
    mask = tm.AllPairsMask().on(tm.path_graph(1 << 15))
    monkeypatch.setattr(all_pairs.AllPairsOperator, "entries", None)
    q = torch.randn(1, 1 << 15, 4)
    torch.testing.assert_close(tm.masked_attention(q, q, q, mask), tm.linear_attention(q, q, q))
    with pytest.raises(ValueError, match="Only dense attention is possible, with 1,073,741,824 weights: "):
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
    found = tm.masked_softmax_attention(q, k, v, tm.AllPairsMask(graph), key_padding_mask=padded)
    # A mask of ones that does not know it.
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


@pytest.mark.parametrize("value_dim", [4, *(pytest.param(width, marks=pytest.mark.slow) for width in (3, 5))])
def test_softmax_attention_on_one_large_graph_keeps_no_weights(value_dim):
    """10,000 nodes have 400 MB of weights, in float32. Peak memory is measured in a process of its own."""
    script = f"""
import resource, torch, topomask as tm
mask = tm.AllPairsMask(tm.path_graph(10_000))
assert "stores no weights" in tm.plan_attention(mask, 4, {value_dim}, kernel="softmax").reason
q, k = torch.randn(2, 1, 10_000, 4)
v = torch.randn(1, 10_000, {value_dim})
q.requires_grad_()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = tm.masked_softmax_attention(q, k, v, mask)
out.sum().backward()
assert q.grad.isfinite().all()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
expected = (q.detach()[:, :3].double() @ k.double().mT / 2).softmax(dim=-1) @ v.double()
torch.testing.assert_close(out.detach()[:, :3].double(), expected, rtol=1e-3, atol=1e-4)
print(grown)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 150_000, run.stdout


def test_dense_softmax_attention_on_one_graph_has_second_derivatives():
    torch.manual_seed(0)
    mask = tm.AllPairsMask(tm.path_graph(4))
    q = torch.randn(1, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda q: tm.masked_softmax_attention(q, q, q, mask, strategy="dense"), q)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("sizes", [[1, 1], [7, 1, 100, 2], [64, 65, 3], [200, 5, 5, 5]])
def test_linear_attention_of_a_batch_goes_graph_by_graph(sizes, dtype):
    """Through tiles, which some graphs fill, overflow or leave empty."""
    torch.manual_seed(0)
    mask = tm.AllPairsMask(tm.Graph.batch([tm.path_graph(size) for size in sizes]))
    phi_q, phi_k, v = (torch.rand(2, 3, sum(sizes), width, dtype=dtype, requires_grad=True) for width in (4, 4, 5))
    parts = zip(*(x.split(sizes, dim=-2) for x in (phi_q, phi_k, v)), strict=True)
    expected = torch.cat([(q.double() @ (k.mT.double() @ v.double())) for q, k, v in parts], dim=-2)
    found = mask.on().attend(phi_q, phi_k, v)
    assert found.dtype == dtype
    if dtype == torch.float16:
        torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=1e-2)
        return
    weights = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(out, [phi_q, phi_k, v], weights) for out in (found, expected))
    for one, other in zip((found, *ours), (expected, *theirs), strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_summed_per_graph_never_takes_much_memory(monkeypatch):
    mask = tm.AllPairsMask(ragged_batch())
    q = torch.randn(2, mask.on().num_queries, 4)
    expected = tm.masked_attention(q, q, q, mask, strategy="product")
    monkeypatch.setattr(all_pairs, "ELEMENTS_PER_CHUNK", 1)
    monkeypatch.setattr(all_pairs, "multiply_per_graph", None)
    torch.testing.assert_close(tm.masked_attention(q, q, q, mask, strategy="product"), expected)
