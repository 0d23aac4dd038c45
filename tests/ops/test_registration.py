"""Ops are registered so that autograd, fake tensors and the compiler understand them."""

import inspect
import subprocess
import sys

import pytest
import torch
import torch._dynamo.decorators

import topomask as tm
from helpers.graphs import ragged_graph
from helpers.mask_cases import MASKS
from helpers.mask_cases.walks import walk_mask
from topomask.ops import feature_values, pair_values, sparse_product


def test_opcheck():
    mask = walk_mask(ragged_graph(), num_heads=2)
    query, key = mask.walks
    pattern = query._pattern
    for heads in ((), (3,)):
        values, key_values = (
            torch.randn(*heads, side.num_nonzeros, dtype=torch.float64, requires_grad=True) for side in (query, key)
        )
        x, y = (torch.randn(*heads, 22, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        for transpose in (False, True):
            sparse_product._spmm_op.check(sparse_product._Product(pattern, values, x, transpose))
        sparse_product._sddmm_op.check(sparse_product._Samples(pattern, x, y))
        pairs, factors = mask.on().entries().pattern, pair_values.join_factors(pattern, key._pattern)
        product = pair_values.Product(pairs.row_ptr, pairs.columns, factors, values, key_values)
        pair_values._pair_values.check(product)
    f = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    for head_ptr in (query._head_ptr, None):
        walks = feature_values.Walks(head_ptr, query.entry_ptr, query.lengths, query.loads)
        feature_values._modulate_op.check(feature_values._Modulation(f, walks))


@pytest.mark.parametrize(
    "name",
    [
        "walk_asymmetric",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("toeplitz_grid", "diffusion_normalized", "sum_learnt", "all_pairs")
        ),
    ],
)
@pytest.mark.parametrize("attend", [tm.masked_attention, tm.masked_softmax_attention])
def test_compiled_attention_takes_batches_of_any_size(name, attend):
    """The way is chosen by estimated times, which are symbols once a second size comes."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    mask = MASKS[name]()
    compiled = torch.compile(lambda q: attend(q, q, q, mask), fullgraph=True, backend="aot_eager")
    for size in (4, 3, 1):
        q = torch.randn(size, mask.num_heads, mask.on().num_keys, 4, dtype=torch.float64, requires_grad=True)
        found = [[out, *torch.autograd.grad(out.square().sum(), [q])] for out in (compiled(q), attend(q, q, q, mask))]
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_compiled_masks_notice_new_walks():
    """Also where the new pattern happens to have as many entries as the old one."""
    inner = tm.WalkMask(tm.cycle_graph(8), num_walks=1, max_length=1, seed=0, symmetric=False)
    mask = tm.PrefixMask(inner)
    q, k, v = torch.randn(3, 1, 1, 9, 4)
    torch._dynamo.reset()
    run = torch.compile(
        lambda q, k, v: tm.masked_attention(q, k, v, mask, strategy="pairs"), fullgraph=True, backend="aot_eager"
    )
    for seed in range(3):
        inner.resample(seed)
        torch.testing.assert_close(run(q, k, v), tm.masked_attention(q, k, v, mask, strategy="pairs"))


@pytest.mark.parametrize("feature_map", ["elu", "exp", "softmax", "identity"])
def test_feature_maps_compile(feature_map):
    mask = walk_mask(ragged_graph())
    q, k, v = torch.randn(3, 1, 1, 11, 6, dtype=torch.float64)
    torch._dynamo.reset()
    run = torch.compile(
        lambda q, k, v: tm.masked_attention(q, k, v, mask, feature_map=feature_map), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(run(q, k, v), tm.masked_attention(q, k, v, mask, feature_map=feature_map))


def test_sparse_products_ignore_uninitialised_memory(monkeypatch):
    """Poison what torch.empty gives: no result may depend on it."""
    mask = walk_mask(ragged_graph(), num_heads=2)
    q, k, v = torch.randn(3, 1, 2, 11, 4, dtype=torch.float64)
    clean = tm.masked_attention(q, k, v, mask, strategy="pairs")
    original = torch.Tensor.new_empty

    def poisoned(self, *args, **kwargs):
        out = original(self, *args, **kwargs)
        return out.fill_(torch.nan) if out.is_floating_point() else out

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    assert torch.equal(tm.masked_attention(q, k, v, mask, strategy="pairs"), clean)


def test_torch_still_has_the_attributes_that_keep_its_compiler_from_being_imported():
    # They are private: if torch renames them, starting takes longer, and compiled code traces what it should not.
    sources = [inspect.getsource(module) for module in (torch._compile, torch._dynamo.decorators)]
    assert '"__dynamo_disable"' in sources[0]
    assert "_dynamo_marked_constant" in sources[1]
    code = "import sys, torch, topomask as tm; q = torch.randn(1, 1, 9, 4, requires_grad=True);"
    code += "tm.masked_attention(q, q, q, tm.WalkMask(tm.grid_graph(3, 3)), strategy='pairs').sum().backward();"
    code += "assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
