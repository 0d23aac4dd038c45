"""Attention over a product of features: the compiled kernel against the reference, forward and backward."""

import copy
import gc

import pytest
import torch
from torch.autograd import gradcheck

import topomask as tm
from helpers.graphs import ragged_graph, star_graph
from helpers.mask_cases.walks import walk_mask
from topomask.ops.feature_attention import (
    Attention,
    FeatureValues,
    PackedAttention,
    PackedWeights,
    _by_column,
    _feature_attention,
    _packed_attention,
    feature_attention,
    numba,
    reference,
)
from topomask.ops.pair_values import join_factors
from topomask.ops.tiles import layout

GRAPHS = {
    "ragged": ragged_graph,
    "star": lambda: star_graph(40),
    "grid": lambda: tm.grid_graph(9, 7),
    "one node": lambda: tm.path_graph(1),
}


VALUES = ("query_values", "query_magnitudes", "key_values", "key_magnitudes")


def arguments(
    name: str,
    separate: bool,
    dtype=torch.float32,
    num_heads=1,
    width=21,
    depth=18,
    heads: tuple[int, ...] = (),
    batch=2,
):
    """Patterns, their values and (q, k, v); ``num_heads`` blocks in the pattern, ``heads`` rows of values."""
    torch.manual_seed(0)
    mask = walk_mask(GRAPHS[name](), num_heads=num_heads, max_length=2)
    patterns = tuple(side._pattern for side in mask.walks)
    values = tuple(torch.rand(*heads, side.num_nonzeros, dtype=dtype) + 0.1 for side in mask.walks)
    magnitudes = ()
    if separate:
        magnitudes = tuple(x + torch.rand_like(x) for x in values)
        values = tuple(x * torch.randn_like(x).sign() for x in values)
    rows = num_heads * mask.on().num_queries
    q, k = torch.rand(2, batch, rows, width, dtype=dtype)
    return patterns, FeatureValues(*values, *magnitudes), (q, k, torch.randn(batch, rows, depth, dtype=dtype))


def record(patterns, features, tokens, is_key=None, softmax=False, normalize=True) -> Attention:
    values = _by_column(patterns[1], features)
    return Attention(join_factors(*patterns), *values, *tokens, is_key, softmax, normalize)


def given(attention: Attention) -> dict[str, torch.Tensor]:
    """What gets a gradient."""
    names = (*VALUES, "q", "k", "v")
    return {name: getattr(attention, name) for name in names if getattr(attention, name) is not None}


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("heads", [(), (3,)])
def test_threads_share_keys_without_losing_gradients(threads, heads):
    # 144 tokens with 2 heads make 18 tiles; neighbouring blocks of them see many keys in common.
    mask = walk_mask(tm.grid_graph(12, 12), num_heads=2, max_length=3)
    patterns = tuple(side._pattern for side in mask.walks)
    features = FeatureValues(*(torch.rand(*heads, side.num_nonzeros) + 0.1 for side in mask.walks))
    q, k, v, grad = torch.rand(4, 3, 288, 20)
    attention = record(patterns, features, (q, k, v))

    def both_ways():
        out = numba.feature_attention(attention)
        grads = numba.feature_attention_backward(attention, out, grad, frozenset(given(attention)))
        return [*out, *(grads[name] for name in given(attention))]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = both_ways()
        torch.set_num_threads(threads)
        shared = both_ways()
    finally:
        torch.set_num_threads(before)
    for a, b in zip(shared, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("way", ["softmax", "normalized", "plain"])
@pytest.mark.parametrize("min_lanes", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("heads", [(), (2,)])
def test_agrees_with_the_reference(name, separate, way, min_lanes, heads, monkeypatch):
    monkeypatch.setattr(layout, "MIN_LANES", min_lanes)
    patterns, features, tokens = arguments(name, separate, num_heads=2, heads=heads)
    is_key = torch.rand(*tokens[1].shape[:2]) > 0.3 if way == "softmax" else None
    attention = record(patterns, features, tokens, is_key, way == "softmax", way != "plain")
    fine = attention._replace(**{name: x.double() for name, x in given(attention).items()})
    found, expected = numba.feature_attention(attention), reference.feature_attention(fine)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-4, atol=1e-4)
    grad, wanted = torch.randn_like(found[0]), frozenset(given(attention))
    grads = numba.feature_attention_backward(attention, found, grad, wanted)
    right = reference.feature_attention_backward(fine, expected, grad.double(), wanted)
    for key in wanted:
        scale = max(1.0, float(right[key].abs().max())) if right[key].numel() else 1.0
        torch.testing.assert_close(grads[key].double(), right[key], rtol=2e-4, atol=2e-4 * scale)
    packed = PackedAttention(attention.factors, PackedWeights(*patterns, features).packed, *attention[5:])
    kept = numba.packed_attention(packed)
    torch.testing.assert_close(kept[0], found[0], rtol=1e-5, atol=1e-5)
    again = numba.packed_attention_backward(packed, kept, grad, frozenset("qkv"))
    for key in ("q", "k", "v"):
        torch.testing.assert_close(again[key], grads[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize(("dtype", "pack"), [(torch.float32, False), (torch.float64, False), (torch.float32, True)])
def test_heads_may_share_patterns(name, separate, softmax, dtype, pack):
    """Six items, of which 0 and 3, 1 and 4, 2 and 5 have the same values: the same as one head after the other."""
    patterns, features, tokens = arguments(name, separate, dtype, heads=(3,), batch=6)
    values = [x for x in features if x is not None]
    inputs = [x.requires_grad_() for x in (*tokens, *([] if pack else values))]

    def run(values, tokens):
        features = FeatureValues(*values)
        features = PackedWeights(*patterns, features) if pack else features
        return feature_attention(*patterns, features, *tokens, softmax=softmax).out

    found = run(values, tokens)
    by_head = [run([x[head] for x in values], [x[head::3] for x in tokens]) for head in range(3)]
    expected = torch.stack(by_head, dim=1).flatten(0, 1)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(found, expected, **tolerance)
    weights = torch.randn_like(found)
    grads = [torch.autograd.grad((x * weights).sum(), inputs) for x in (found, expected)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("heads", [(), (2,)])
def test_gradcheck(separate, softmax, heads):
    patterns, features, tensors = arguments("ragged", separate, torch.float64, width=3, depth=2, heads=heads)
    leaves = [x.requires_grad_() for x in (*features, *tensors) if x is not None]

    def run(*leaves):
        return feature_attention(*patterns, FeatureValues(*leaves[:-3]), *leaves[-3:], softmax=softmax).out

    assert gradcheck(run, leaves, fast_mode=True)


def test_opcheck():
    # The compiled kernel adds up in another order under the tracing of aot_dispatch.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for dtype in (torch.float32, torch.float64):
        for separate, heads in ((True, ()), (False, (2,))):
            patterns, features, tokens = arguments("ragged", separate, dtype, heads=heads)
            attention = record(patterns, features, tokens)
            for x in given(attention).values():
                x.requires_grad_()
            _feature_attention.check(attention, test_utils=tests)
            if dtype == torch.float32:
                weights = PackedWeights(*patterns, features)
                _packed_attention.check(
                    PackedAttention(attention.factors, weights.packed, *attention[5:]), test_utils=tests
                )


def test_layouts_are_made_once_and_kept_as_long_as_the_features(monkeypatch):
    made = []
    original = numba.make_layout
    monkeypatch.setattr(numba, "make_layout", lambda *args, **kwargs: made.append(1) or original(*args, **kwargs))
    mask = tm.WalkMask(tm.grid_graph(12, 12), seed=0)
    q, k, v = torch.randn(3, 1, 1, 144, 8).requires_grad_()
    for _ in range(3):
        tm.masked_attention(q, k, v, mask, strategy="pairs").sum().backward()
    with torch.no_grad():
        tm.masked_attention(q, k, v, mask, strategy="pairs")
    assert len(made) == 1
    count = len(numba._layouts)
    del mask
    gc.collect()
    assert len(numba._layouts) < count


def test_packed_weights_follow_the_modulation():
    mask = tm.WalkMask(tm.grid_graph(12, 12), seed=0)
    q, k, v = torch.randn(3, 1, 1, 144, 8)
    with torch.no_grad():
        for _ in range(2):
            found = tm.masked_attention(q, k, v, mask, strategy="pairs")
            torch.testing.assert_close(found, tm.masked_attention(q, k, v, mask, strategy="dense"))
            mask.modulation.weight.mul_(torch.rand(11) - 0.5)


def test_frozen_f_still_gives_gradients_of_the_inputs():
    mask = tm.WalkMask(tm.grid_graph(12, 12), seed=0)
    mask.modulation.weight.requires_grad_(False)
    found = []
    for strategy in ("pairs", "dense"):
        torch.manual_seed(0)
        q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, 144, 8))
        out = tm.masked_attention(q, k, v, mask, strategy=strategy)
        found.append(torch.autograd.grad(out.square().sum(), [q, k, v]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def tiled_mask() -> tm.WalkMask:
    mask = tm.WalkMask(tm.grid_graph(12, 12), seed=0)
    assert mask.on().cost().tiles is not None
    return mask


def test_compiles_in_one_graph():
    mask = tiled_mask()
    inputs = torch.randn(3, 1, 2, 144, 8).unbind()
    torch._dynamo.reset()
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        found = []
        for wrap in (lambda run: torch.compile(run, fullgraph=True, backend="aot_eager"), lambda run: run):
            q, k, v = (x.clone().requires_grad_() for x in inputs)
            out = wrap(lambda q, k, v, a=attend: a(q, k, v, mask, strategy="pairs"))(q, k, v)
            found.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v, mask.modulation.weight])])
        for compiled, eager in zip(*found, strict=True):
            torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-3)


def test_copies_and_selections_keep_apart():
    """A copy has no suggested order of rows, and a selection of keys suggests one for the same queries."""
    mask = copy.deepcopy(tiled_mask())
    q, k, v = torch.randn(3, 1, 1, 144, 8)
    nodes = torch.arange(0, 144, 2)
    with torch.no_grad():
        expected = tm.masked_attention(q, k, v, mask, strategy="dense")
        for _ in range(2):
            torch.testing.assert_close(tm.masked_attention(q, k, v, mask, strategy="pairs"), expected)
            part = (q, k[..., nodes, :], v[..., nodes, :], mask)
            found = [tm.masked_attention(*part, key_nodes=nodes, strategy=s) for s in ("pairs", "dense")]
            torch.testing.assert_close(*found)


def test_packed_weights_survive_saved_tensors_that_are_copies():
    mask = tiled_mask()
    mask.modulation.weight.requires_grad_(False)
    found = []
    for pack in (lambda x: x, torch.clone):
        torch.manual_seed(0)
        q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, 144, 8))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            out = tm.masked_attention(q, k, v, mask, strategy="pairs")
        found.append(torch.autograd.grad(out.square().sum(), [q, k, v]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_writing_to_the_modulation_behind_its_version_is_noticed():
    mask = tiled_mask()
    q, k, v = torch.randn(3, 1, 1, 144, 8)
    with torch.no_grad():
        before = tm.masked_attention(q, k, v, mask, strategy="pairs")
        mask.modulation.weight.data.mul_(torch.arange(11) % 3)
        after = tm.masked_attention(q, k, v, mask, strategy="pairs")
        torch.testing.assert_close(after, tm.masked_attention(q, k, v, mask, strategy="dense"))
    assert not torch.allclose(before, after)


def test_dense_masks_given_away_can_be_written_to():
    mask = tiled_mask()
    with torch.no_grad():
        expected = mask.on()._dense_weights().clone()
        mask.to_dense().zero_()
        assert torch.equal(mask.on()._dense_weights(), expected)


def test_another_default_device():
    """A model may be built without memory, and filled by a checkpoint."""
    expected = tiled_mask()
    with torch.device("meta"):
        mask = tm.WalkMask(tm.grid_graph(12, 12), seed=1)
    mask.load_state_dict(expected.state_dict(), assign=True)
    q, k, v = torch.randn(3, 1, 1, 144, 8)
    found = [tm.masked_attention(q, k, v, x, strategy="pairs") for x in (mask, expected)]
    assert torch.equal(*found)


def test_no_queries():
    q, k, v = torch.randn(3, 1, 1, 144, 8)
    none = torch.zeros(0, dtype=torch.int64)
    assert tm.masked_attention(q[..., :0, :], k, v, tiled_mask(), query_nodes=none).shape == (1, 1, 0, 8)


@pytest.mark.parametrize("softmax", [True, False])
def test_numbers_that_are_not_finite_stay_visible(softmax):
    mask = tiled_mask()
    attend = tm.masked_softmax_attention if softmax else tm.masked_attention
    q, k, v = torch.rand(3, 1, 1, 144, 8).unbind()
    for x in (q, v):
        x[0, 0, 5] = torch.nan
        assert attend(q, k, v, mask, strategy="pairs")[0, 0, 5].isnan().all()
        x[0, 0, 5] = 1.0


def test_uninitialised_memory_is_never_read(monkeypatch):
    mask = tiled_mask()
    inputs = [x.requires_grad_() for x in torch.randn(3, 1, 1, 144, 5)]

    def run():
        out = tm.masked_attention(*inputs, mask, strategy="pairs")
        return [out, *torch.autograd.grad(out.square().sum(), [*inputs, mask.modulation.weight])]

    clean = run()
    for owner, name in ((torch, "empty"), (torch.Tensor, "new_empty"), (torch, "empty_like")):
        original = getattr(owner, name)

        def poisoned(*args, original=original, **kwargs):
            out = original(*args, **kwargs)
            return out.fill_(torch.nan) if out.is_floating_point() else out

        monkeypatch.setattr(owner, name, poisoned)
    for a, b in zip(run(), clean, strict=True):
        assert torch.equal(a, b)
